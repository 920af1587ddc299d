package stint

import (
	"errors"
	"net/netip"

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
	AnyID IDFormat = spell.AnyID

	// Single is the empty id: one bucket for everyone, that of name.Key("").
	Single IDFormat = spell.Single

	// IPAddress is an IPv4 or IPv6 address without a zone. An IPv4-mapped IPv6
	// address is the IPv4 address.
	IPAddress IDFormat = spell.NewFormat("ipAddress", ipAddress)
)

// Tuple returns the format of ids that have several parts with colons between
// them, such as "12345678:example.com". Only the last part may contain a colon.
// A nil format means AnyID.
func Tuple(formats ...IDFormat) IDFormat {
	parts := make([]spell.Format, len(formats))
	for i, f := range formats {
		if parts[i] = f; f == nil {
			parts[i] = AnyID
		}
	}
	return spell.NewTuple(parts)
}

func ipAddress(id string) (string, error) {
	if spell.IsIPv4(id) {
		return id, nil
	}
	addr, err := netip.ParseAddr(id)
	switch {
	case err != nil:
		return "", errors.New("want an address such as 10.0.0.1 or 2001:db8::1")
	case addr.Zone() != "":
		return "", errors.New("want an address without a zone")
	}
	return spell.Address(addr).String(), nil
}

func (s NameSpec) format() IDFormat {
	if s.IDs == nil {
		return AnyID
	}
	return s.IDs
}
