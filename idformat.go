package stint

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/stint-go/stint/internal/spell"
)

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

	// Shared is the empty id: one bucket for everyone, that of name.Key("").
	Shared IDFormat = spell.Shared

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

func (s NameSpec) format() IDFormat {
	if s.ID == nil {
		return AnyID
	}
	return s.ID
}

// parts returns the number of parts that the ids of a format have.
func parts(f IDFormat) int {
	if t, ok := f.(*tuple); ok {
		return len(t.parts)
	}
	return 1
}
