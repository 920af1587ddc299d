// Package idformat provides the formats of ids that Boulder's rate limits use.
//
// Use them as the IDs or OverrideIDs of a stint.NameSpec, in addition to stint.AnyID,
// stint.Single, stint.IPAddress and stint.Tuple. The errors of all formats wrap
// stint.ErrInvalidID.
package idformat

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/spell"
)

// The formats of one part.
var (
	// IPv6Range is an IPv6 network of 48 bits: "2001:db8::/48". One subscriber
	// typically has such a network.
	IPv6Range stint.IDFormat = spell.NewFormat("ipv6Range", ipv6Range)

	// RegID is the number of an account, from 0 to 2⁶⁴−1.
	RegID stint.IDFormat = spell.NewFormat("regId", regID)

	// Hostname is a domain name of ASCII letters, digits and hyphens, in lower
	// case, without a dot at the end.
	Hostname stint.IDFormat = spell.NewFormat("hostname", hostname)

	// FQDNSet is a list of Hostnames and addresses, in any order, with commas
	// between them. Its canonical spelling is the SHA-256, in hex, of the list in
	// lower case, sorted and without duplicates. The hash is accepted as an id too.
	FQDNSet stint.IDFormat = spell.NewFormat("fqdnSet", fqdnSet)
)

// Domain is a Hostname that consists of a public suffix and one more label, such
// as "example.co.uk". The suffixes are those of the list, such as the List of
// golang.org/x/net/publicsuffix: it returns the suffix of a domain in lower case,
// without a dot at its beginning or end. The list changes with time: an id whose
// suffix it no longer has is refused.
func Domain(list interface{ PublicSuffix(domain string) string }) stint.IDFormat {
	return spell.NewFormat("domain", func(id string) (string, error) { return domain(list.PublicSuffix, id) })
}

const maxSetLen = 64 * 1024 // bytes of an FQDNSet before it is hashed

// AnyOf accepts an id of any of the formats. The first that accepts it also
// chooses its spelling. A nil format means stint.AnyID.
func AnyOf(formats ...stint.IDFormat) stint.IDFormat {
	formats = slices.Clone(formats)
	for i, f := range formats {
		if f == nil {
			formats[i] = stint.AnyID
		}
	}
	return spell.NewFormat(spell.Call("anyOf", formats), func(id string) (string, error) {
		canonical, err := first(formats, id)
		if err == nil && canonical != id {
			// Another of the formats must not read the canonical spelling as another id.
			// Otherwise two ids would share one bucket.
			if again, _ := first(formats, canonical); again != canonical {
				err = fmt.Errorf("its canonical spelling %s would be read as another id", spell.Quote(canonical))
			}
		}
		return canonical, err
	})
}

// first returns the spelling of an id in the first of the formats that accepts it.
func first(formats []stint.IDFormat, id string) (string, error) {
	var whys []string
	for _, f := range formats {
		canonical, err := spell.Canonical(f, id)
		if err == nil {
			return canonical, nil
		}
		whys = append(whys, spell.Reason(err))
	}
	return "", errors.New(strings.Join(whys, "; "))
}

func ipv6Range(id string) (string, error) {
	prefix, err := netip.ParsePrefix(id)
	switch {
	case err != nil || prefix.Addr().Is4In6() || prefix.Bits() != 48:
		return "", errors.New("want an IPv6 network of 48 bits such as 2001:db8::/48")
	case prefix != prefix.Masked():
		return "", fmt.Errorf("bits are set after the first 48: want %v", prefix.Masked())
	}
	return prefix.String(), nil
}

func regID(id string) (string, error) {
	if _, err := strconv.ParseUint(id, 10, 64); err != nil || id[0] == '0' && len(id) > 1 {
		return "", errors.New("want a decimal number below 2⁶⁴ without leading zeros")
	}
	return id, nil
}

func hostname(id string) (string, error) {
	if strings.ContainsFunc(id, func(r rune) bool { return r >= 0x80 }) {
		return "", errors.New("it is not ASCII: write it in punycode (xn--…)")
	}
	if len(id) > 253 {
		return "", fmt.Errorf("it is %d bytes long, more than 253", len(id))
	}
	id = strings.ToLower(id)
	labels := strings.Split(id, ".")
	for _, label := range labels {
		switch {
		case label == "":
			return "", errors.New("a label is empty")
		case len(label) > 63:
			return "", errors.New("a label is longer than 63 bytes")
		case strings.ContainsFunc(label, notLDH) || label[0] == '-' || label[len(label)-1] == '-':
			return "", fmt.Errorf("label %q: want letters, digits, and hyphens between them", label)
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return "", errors.New("the last label is a number: want a name such as example.com")
	}
	return id, nil
}

func notLDH(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
}

func domain(suffixOf func(domain string) string, id string) (string, error) {
	host, why := hostname(id)
	if why != nil {
		return "", why
	}
	rest, ok := strings.CutSuffix(host, "."+suffixOf(host))
	if !ok {
		return "", errors.New("it is a public suffix: want one more label before it")
	}
	if i := strings.LastIndexByte(rest, '.'); i >= 0 {
		return "", fmt.Errorf("want its eTLD+1, %s", host[i+1:])
	}
	return host, nil
}

func fqdnSet(id string) (string, error) {
	if len(id) == 2*sha256.Size && strings.Trim(id, "0123456789abcdef") == "" {
		return id, nil // a hash: as a hostname it would be one label, of more than 63 bytes
	}
	if len(id) > maxSetLen {
		return "", fmt.Errorf("it is %d bytes long, more than %d", len(id), maxSetLen)
	}
	members := strings.Split(id, ",")
	for i, member := range members {
		canonical, why := stint.IPAddress.Canonical(member)
		if why != nil {
			canonical, why = hostname(member)
		}
		if why != nil {
			return "", fmt.Errorf("member %d, %s, is neither an address nor a hostname: %w",
				i+1, spell.Quote(member), why)
		}
		members[i] = canonical
	}
	slices.Sort(members)
	hash := sha256.Sum256([]byte(strings.Join(slices.Compact(members), ",")))
	return hex.EncodeToString(hash[:]), nil
}
