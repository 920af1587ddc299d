package stint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-go/stint/internal/share"
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
// An IPv4-mapped IPv6 address is the IPv4 address, and a zone is dropped.
//
// The zero Addr gives a Key with an empty ID. A Limiter answers it with
// ErrInvalidID, so addresses that could not be parsed do not share a bucket.
func (n Name) IP(addr netip.Addr) Key {
	if !addr.IsValid() {
		return Key{Name: n}
	}
	return Key{n, addr.Unmap().WithZone("").String()}
}

// Prefix returns the bucket of the network that an address is in. The network
// has v4 bits for an IPv4 address, also if it is mapped, and v6 bits for an
// IPv6 address.
//
// The zero Addr, or more bits than the address has, gives a Key with an empty
// ID. A Limiter answers it with ErrInvalidID.
func (n Name) Prefix(addr netip.Addr, v4, v6 int) Key {
	addr = addr.Unmap()
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

// String returns the bucket key as text: "6:12345678".
func (k Key) String() string { return strconv.Itoa(int(k.Name)) + ":" + k.ID }

// compare orders keys as a store does, by number and then by the bytes of the
// id.
func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Name, other.Name), strings.Compare(k.ID, other.ID))
}

// ParseKey returns the key that Key.String wrote. The id is all that follows
// the first colon.
func ParseKey(s string) (Key, error) {
	number, id, found := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 10, 16)
	switch {
	case !found || err != nil || number[0] == '0':
		return Key{}, fmt.Errorf("%w: %s is not a key: want a number from 1 to 65535, a colon and the id",
			ErrInvalidID, spell.Quote(s))
	case len(id) > maxIDLen:
		return Key{}, fmt.Errorf("%w: key %s: %w", ErrInvalidID, spell.Quote(s), spell.CheckLen(id))
	}
	return Key{Name(n), id}, nil
}

// NameSpec is the declaration of one limit.
type NameSpec struct {
	Label string   // its name in limits files: "NewOrdersPerAccount"
	ID    IDFormat // nil means AnyID
	Limit Limit    // of ids without an override; see NewLimits

	// Override is the format of an override's id that is only the leading part
	// of a Tuple. Without it, an override names the whole id. For example, if
	// ID is Tuple(IPAddress, AnyID) and Override is IPAddress, an override for
	// 10.0.0.1 covers 10.0.0.1:alice.
	Override IDFormat

	// Parent is the total that the limit is a share of: its requests need
	// tokens of the total, too. A total is a Shared limit without a Parent.
	// Floor is the limit whose overrides promise a part of the total to an id,
	// whatever others spend. docs/shares.md has the rules. 0 means none.
	Parent, Floor Name
}

// Names are the limits that a program declares.
type Names map[Name]NameSpec

// Key returns the bucket of an id that comes from outside, in its canonical
// spelling. The error is ErrUnknownName or ErrInvalidID.
func (ns Names) Key(name Name, id string) (Key, error) {
	spec, declared := ns[name]
	if !declared || name == 0 {
		return Key{}, fmt.Errorf("%w %d, for the id %s", ErrUnknownName, name, spell.Quote(id))
	}
	canonical, err := spell.Canonical(spec.format(), id)
	if err != nil {
		return Key{}, fmt.Errorf("%w (%s)", err, spec.Label)
	}
	return Key{name, canonical}, nil
}

// OverrideID returns the canonical spelling of an id that an Override names.
// The error is ErrUnknownName or ErrInvalidID.
func (ns Names) OverrideID(name Name, given string) (string, error) {
	spec, declared := ns[name]
	if !declared {
		return "", fmt.Errorf("%w %d, for the id %s", ErrUnknownName, name, spell.Quote(given))
	}
	if spec.Override == nil {
		return spell.Canonical(spec.format(), given)
	}
	canonical, err := spell.Canonical(spec.Override, given)
	if err != nil {
		return "", err
	}
	if n := parts(spec.Override); strings.Count(canonical, ":") != n-1 {
		why := fmt.Errorf("want %d parts, not %d", n, strings.Count(canonical, ":")+1)
		return "", spell.Invalid(spec.Override, given, why)
	}
	if id, ok := spec.ID.(*tuple); ok { // Key must write the parts in the same way
		for i, part := range strings.SplitN(canonical, ":", len(id.parts)) {
			as, why := spell.Canonical(id.parts[i], part)
			if why == nil && as != part {
				why = fmt.Errorf("in an id it is %s", spell.Quote(as))
			}
			if why != nil {
				why = fmt.Errorf("part %d, %s: %s", i+1, spell.Quote(part), spell.Reason(why))
				return "", spell.Invalid(spec.Override, given, why)
			}
		}
	}
	return canonical, nil
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
		if spec.Override == nil {
			continue
		}
		if id, ok := spec.ID.(*tuple); !ok {
			wrong("Override is %v: want an ID that is a Tuple, not %v",
				spec.Override, spec.format())
		} else if len(id.parts) <= parts(spec.Override) {
			wrong("Override is %v: want fewer parts than the ID, %v, has", spec.Override, id)
		}
	}
	return errs
}

// role is the place of a Name in a tree of shares.
type role uint8

const (
	plainRole role = iota // none
	classRole             // it has a Parent
	floorRole
	totalRole
)

// member is a Name in a tree of shares.
type member struct {
	role  role
	class Name // of a floor
	floor Name // of a class; 0 if it has none
	total Name
	sum   int // index in Limits.totals
}

// members returns the place of each Name in a tree of shares, the number of
// trees, and the mistakes by Name.
func (ns Names) members() (all []member, trees int, mistakes map[uint16][]string) {
	tree := make(share.Tree, len(ns))
	for name, spec := range ns {
		tree[uint16(name)] = share.Node{
			Label: spec.Label, Format: spec.format().String(), Shared: spec.ID == Shared,
			Prefix: spec.Override != nil, Parent: uint16(spec.Parent), Floor: uint16(spec.Floor),
		}
	}
	mistakes = tree.Mistakes()
	set := func(name Name, m member) {
		for len(all) <= int(name) {
			all = append(all, member{})
		}
		all[name] = m
	}
	for _, name := range slices.Sorted(maps.Keys(ns)) {
		spec := ns[name]
		if spec.Parent == 0 || mistakes[uint16(name)] != nil {
			continue
		}
		if int(spec.Parent) >= len(all) || all[spec.Parent].role == plainRole {
			set(spec.Parent, member{role: totalRole, total: spec.Parent, sum: trees})
			trees++
		}
		sum := all[spec.Parent].sum
		set(name, member{classRole, 0, spec.Floor, spec.Parent, sum})
		if spec.Floor != 0 {
			set(spec.Floor, member{floorRole, name, 0, spec.Parent, sum})
		}
	}
	return all, trees, mistakes
}

func (s NameSpec) format() IDFormat {
	if s.ID == nil {
		return AnyID
	}
	return s.ID
}

// IDFormat is the way in which the ids of a limit are written. Package idformat
// has more of them.
type IDFormat interface {
	// Canonical returns the one spelling of an id that is stored, of at most
	// 512 bytes, or the reason why the id is not of this format. The canonical
	// spelling of a canonical id is itself.
	Canonical(id string) (string, error)

	// String returns the name of the format: "ipAddress".
	String() string
}

// The formats of one part. Their errors wrap ErrInvalidID.
var (
	// AnyID is 1 to 512 bytes, as they are.
	AnyID IDFormat = spell.NewFormat("anyID", func(id string) (string, error) { return id, nil })

	// Shared is the empty id: one bucket for everyone.
	Shared IDFormat = spell.Shared{}

	// IPAddress is an IPv4 or IPv6 address without a zone. An IPv4-mapped IPv6
	// address is the IPv4 address.
	IPAddress IDFormat = spell.NewFormat("ipAddress", ipAddress)
)

// Tuple returns the format of ids that have several parts with colons between
// them, such as "12345678:example.com". Only the last part may contain a colon.
// A nil format means AnyID.
func Tuple(formats ...IDFormat) IDFormat {
	t := &tuple{}
	for _, f := range formats {
		switch f := f.(type) {
		case nil:
			t.parts = append(t.parts, AnyID)
		case *tuple:
			t.parts = append(t.parts, f.parts...)
		default:
			t.parts = append(t.parts, f)
		}
	}
	return t
}

type tuple struct{ parts []IDFormat }

func (t *tuple) String() string { return spell.Call("tuple", t.parts) }

func (t *tuple) Canonical(id string) (string, error) {
	ids := strings.SplitN(id, ":", len(t.parts))
	if len(ids) != len(t.parts) {
		return "", spell.Invalid(t, id, fmt.Errorf("want %d parts, not %d", len(t.parts), len(ids)))
	}
	for i, part := range ids {
		canonical, err := spell.Canonical(t.parts[i], part)
		if err == nil && i < len(ids)-1 && strings.Contains(canonical, ":") {
			err = fmt.Errorf("its canonical spelling %s holds a colon", spell.Quote(canonical))
		}
		if err != nil {
			err = fmt.Errorf("part %d, %s: %s", i+1, spell.Quote(part), spell.Reason(err))
			return "", spell.Invalid(t, id, err)
		}
		ids[i] = canonical
	}
	return spell.Finish(t, id, strings.Join(ids, ":"), nil)
}

func ipAddress(id string) (string, error) {
	if isIPv4(id) {
		return id, nil
	}
	addr, err := netip.ParseAddr(id)
	switch {
	case err != nil:
		return "", errors.New("want an address such as 10.0.0.1 or 2001:db8::1")
	case addr.Zone() != "":
		return "", errors.New("want an address without a zone")
	}
	return addr.Unmap().String(), nil
}

// isIPv4 reports whether id is an IPv4 address in the spelling of netip.
func isIPv4(id string) bool {
	dots, digits, n := 0, 0, 0
	for i := range len(id) {
		switch c := id[i]; {
		case c == '.' && digits > 0:
			dots, digits, n = dots+1, 0, 0
		case '0' <= c && c <= '9' && (digits == 0 || n > 0):
			digits, n = digits+1, 10*n+int(c-'0')
		default:
			return false
		}
		if n > 255 {
			return false
		}
	}
	return dots == 3 && digits > 0
}

// parts returns the number of parts that the ids of a format have.
func parts(f IDFormat) int {
	if t, ok := f.(*tuple); ok {
		return len(t.parts)
	}
	return 1
}

// leading returns the first parts of an id, or all of it if parts is 0. ok is
// false if the id has no further part.
func leading(id string, parts int) (first string, ok bool) {
	if parts == 0 {
		return id, true
	}
	for i := range len(id) {
		if id[i] == ':' {
			parts--
		}
		if parts == 0 {
			return id[:i], true
		}
	}
	return "", false
}

// ConfigError is a mistake in a limit or an override, with its place. NewLimits
// and package limitsfile return all of them at once, joined: errors.As finds
// the first.
type ConfigError struct {
	File  string // as it was passed; "" for limits in Go
	Line  int    // from 1; 0 if there is none
	Label string // of the limit; "" if there is none
	Err   error
}

func (e *ConfigError) Error() string {
	place := "stint: "
	if e.File != "" && e.Line > 0 {
		place = fmt.Sprintf("%s:%d: ", e.File, e.Line)
	} else if e.File != "" {
		place = e.File + ": "
	}
	if e.Label != "" {
		place += e.Label + ": "
	}
	return place + strings.TrimPrefix(e.Err.Error(), "stint: ")
}

func (e *ConfigError) Unwrap() error { return e.Err }
