package stint

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-go/stint/internal/spell"
)

const maxIDLen = spell.MaxID

// Name is the number of a limit that a program declares. The file stores the
// number, so never give it another meaning. 0 is no limit.
type Name uint16

// Unknown is the Name that no limit has.
const Unknown Name = 0

// Key is one bucket: a limit, and the id that it holds for.
type Key struct {
	Name Name
	ID   string
}

// Key returns the bucket of an id, taken as is. It is for ids that the program
// makes itself: Names.Key checks ids that come from outside.
func (n Name) Key(id string) Key { return Key{n, id} }

// IP returns the bucket of an address, the same one for all of its spellings.
// An IPv6 address that stands for an IPv4 address is the IPv4 address: mapped, or of
// NAT64's well-known prefix 64:ff9b::/96. A zone is dropped.
//
// The zero Addr gives a Key with an empty ID. A Limiter answers it with
// ErrInvalidID, so addresses that could not be parsed do not share a bucket.
func (n Name) IP(addr netip.Addr) Key {
	if !addr.IsValid() {
		return Key{Name: n}
	}
	return Key{n, spell.Address(addr).String()}
}

// Prefix returns the bucket of the network that an address is in. The network
// has v4 bits for an IPv4 address, in each form that IP has, and v6 bits for an
// IPv6 address.
//
// The zero Addr, or more bits than the address has, gives a Key with an empty
// ID. A Limiter answers it with ErrInvalidID.
func (n Name) Prefix(addr netip.Addr, v4, v6 int) Key {
	addr = spell.Address(addr)
	bits := v6
	if addr.Is4() {
		bits = v4
	}
	prefix, err := addr.Prefix(bits)
	if err != nil || !prefix.IsValid() {
		return Key{Name: n}
	}
	return Key{n, prefix.String()}
}

// Cost returns a Request for n tokens of the bucket.
func (k Key) Cost(n int64) Request { return Request{Key: k, Cost: n} }

// String returns the bucket key as text: "6:12345678".
func (k Key) String() string { return strconv.Itoa(int(k.Name)) + ":" + k.ID }

// compare orders keys as a store does, by number and then by the bytes of the
// id.
func (k Key) compare(other Key) int {
	if k.Name != other.Name {
		return cmp.Compare(k.Name, other.Name)
	}
	return strings.Compare(k.ID, other.ID)
}

// NameSpec is the declaration of one limit.
type NameSpec struct {
	Label string   // its name in limits files: "NewOrdersPerAccount"
	IDs   IDFormat // nil means AnyID
	Limit Limit    // of ids without an override; see NewLimits

	// OverrideIDs is the format of an override's id that is only the leading part
	// of a Tuple. Without it, an override names the whole id. For example, if
	// IDs is Tuple(IPAddress, AnyID) and OverrideIDs is IPAddress, an override for
	// 10.0.0.1 covers 10.0.0.1:alice.
	OverrideIDs IDFormat
}

// Names are the limits that a program declares.
type Names map[Name]NameSpec

// WithLimits returns the Names with other limits, such as those of a
// configuration. The Limit of all others stays.
func (ns Names) WithLimits(limits map[Name]Limit) Names {
	with := make(Names, len(ns))
	maps.Copy(with, ns)
	for name, l := range limits {
		spec := with[name]
		spec.Limit = l
		with[name] = spec
	}
	return with
}

// Key returns the bucket of an id that comes from outside, in its canonical
// spelling. The error is ErrUnknownName or ErrInvalidID.
func (ns Names) Key(name Name, id string) (Key, error) {
	spec, declared := ns[name]
	if !declared || name == 0 {
		return Key{}, notDeclared(name, id)
	}
	canonical, err := spell.Canonical(spec.format(), id)
	if err != nil {
		return Key{}, fmt.Errorf("%w (%s)", err, spec.Label)
	}
	return Key{name, canonical}, nil
}

func notDeclared(name Name, id string) error {
	return fmt.Errorf("%w %d, for the id %s", ErrUnknownName, name, spell.Quote(id))
}

// canonicalOverride returns the canonical spelling of an id that an Override names.
func (spec NameSpec) canonicalOverride(given string) (string, error) {
	return spell.CanonicalOverride(spec.IDs, spec.OverrideIDs, given)
}

// mistakes returns everything that is wrong with the declarations.
func (ns Names) mistakes() (errs []error) {
	labels := make(map[string]Name, len(ns))
	for _, name := range slices.Sorted(maps.Keys(ns)) {
		spec := ns[name]
		wrong := func(format string, args ...any) {
			errs = append(errs, &ConfigError{Label: spec.Label, Err: fmt.Errorf(format, args...)})
		}
		if name == 0 {
			wrong("Name 0 is no limit: want numbers from 1")
		}
		if spec.Label == "" {
			wrong("Name %d has no label", name)
		} else if other, taken := labels[spec.Label]; taken {
			wrong("Names %d and %d have the same label", other, name)
		} else {
			labels[spec.Label] = name
		}
		if spec.OverrideIDs == nil {
			continue
		}
		if id, ok := spec.IDs.(*spell.Tuple); !ok {
			wrong("OverrideIDs is %v: want IDs that are a Tuple, not %v",
				spec.OverrideIDs, spec.format())
		} else if spell.Parts(id) <= spell.Parts(spec.OverrideIDs) {
			wrong("OverrideIDs is %v: want fewer parts than the IDs, %v, have", spec.OverrideIDs, id)
		}
	}
	return errs
}

// labels returns the labels by number, as the file has them.
func (ns Names) labels() map[uint16]string {
	labels := make(map[uint16]string, len(ns))
	for name, spec := range ns {
		labels[uint16(name)] = spec.Label
	}
	return labels
}
