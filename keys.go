package stint

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Name is one of the limits that a program declares, as a number. The number is what the file stores: it is never given
// another meaning. 0 is no limit.
type Name uint16

// Unknown is the Name that no limit has.
const Unknown Name = 0

// Key is one bucket: a limit, and the id of whom it is held against.
type Key struct {
	Name Name
	ID   string
}

// Key returns the bucket of an id, taken as is. It is for ids that the program makes itself; see Names.Key for others.
func (n Name) Key(id string) Key { return Key{n, id} }

// IP returns the bucket of an address: one, however it is written. An IPv4-mapped IPv6 address is the IPv4 address, and
// a zone is dropped.
//
// The zero Addr gives a Key with an empty ID, which a Limiter answers with ErrInvalidID: what could not be parsed does
// not share a bucket.
func (n Name) IP(addr netip.Addr) Key {
	if !addr.IsValid() {
		return Key{Name: n}
	}
	return Key{n, addr.Unmap().WithZone("").String()}
}

// Prefix returns the bucket of the network that an address is in: of v4 bits for IPv4, even where it is mapped, and
// of v6 bits for IPv6.
//
// The zero Addr, and a number of bits that the address does not have, give a Key with an empty ID, which a Limiter
// answers with ErrInvalidID.
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

// compare orders keys as a store does: by number, then by the bytes of the id.
func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Name, other.Name), strings.Compare(k.ID, other.ID))
}

// ParseKey is the inverse of Key.String. The id is all that follows the first colon, as is.
func ParseKey(s string) (Key, error) {
	number, id, found := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 10, 16)
	switch {
	case !found || err != nil || number[0] == '0':
		return Key{}, fmt.Errorf("%w: %s is not a key: want a number from 1 to 65535, a colon and the id",
			ErrInvalidID, quote(s))
	case len(id) > maxIDLen:
		return Key{}, fmt.Errorf("%w: key %s: %w", ErrInvalidID, quote(s), checkLen(id))
	}
	return Key{Name(n), id}, nil
}

// NameSpec is what a program declares about a limit.
type NameSpec struct {
	Label string   // as written in a limits file: "NewOrdersPerAccount"
	ID    IDFormat // nil means AnyID

	// Override is how an override's id is written where that is the leading part of a Tuple: with RegID here and
	// Tuple(RegID, Hostname) as the ID, an override for 12345678 covers 12345678:example.com. nil means as the ID.
	Override IDFormat
}

// Names are the limits that a program declares.
type Names map[Name]NameSpec

// Key returns the bucket of an id that comes from outside, in its canonical spelling. The error is ErrUnknownName or
// ErrInvalidID.
func (ns Names) Key(name Name, id string) (Key, error) {
	spec, declared := ns[name]
	if !declared || name == 0 {
		return Key{}, fmt.Errorf("%w %d, for the id %s", ErrUnknownName, name, quote(id))
	}
	canonical, err := canonicalID(spec.format(), id)
	if err != nil {
		return Key{}, fmt.Errorf("%w (%s)", err, spec.Label)
	}
	return Key{name, canonical}, nil
}

// overrideID returns the canonical id of an override of a declared name.
func (ns Names) overrideID(name Name, given string) (string, error) {
	spec := ns[name]
	if spec.Override == nil {
		return canonicalID(spec.format(), given)
	}
	canonical, err := canonicalID(spec.Override, given)
	if n := parts(spec.Override); err == nil && strings.Count(canonical, ":") != n-1 {
		err = &idError{given, spec.Override, fmt.Errorf("want %d parts, not %d", n, strings.Count(canonical, ":")+1)}
	}
	if id, ok := spec.ID.(*tuple); err == nil && ok { // as Key writes it, or no key has it
		for i, part := range strings.SplitN(canonical, ":", len(id.parts)) {
			as, why := canonicalID(id.parts[i], part)
			if why == nil && as != part {
				why = fmt.Errorf("in an id it is %s", quote(as))
			}
			if why != nil {
				return "", &idError{given, spec.Override, fmt.Errorf("part %d, %s: %s", i+1, quote(part), reason(why))}
			}
		}
	}
	return canonical, err
}

// mistakes returns what is wrong with the declaration.
func (ns Names) mistakes() (errs []*ConfigError) {
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
			wrong("Override is %v, which is the leading part of a Tuple: the ID is %v", spec.Override, spec.format())
		} else if len(id.parts) <= parts(spec.Override) {
			wrong("Override is %v: want fewer parts than the ID, %v, has", spec.Override, id)
		}
	}
	return errs
}

func (s NameSpec) format() IDFormat {
	if s.ID == nil {
		return AnyID
	}
	return s.ID
}
