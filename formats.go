package stint

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"
)

const (
	maxIDLen  = 512       // bytes of an id as it is stored
	maxSetLen = 64 * 1024 // bytes of an FQDNSet as it is written
)

// IDFormat is how the ids of a limit are written.
type IDFormat interface {
	// Canonical returns the one spelling of an id that is stored, at most 512 bytes, or why the id is not of this
	// format. The canonical spelling of a canonical id is itself.
	Canonical(id string) (string, error)

	// String returns the name of the format: "ipAddress".
	String() string
}

// The formats of ids. Their errors wrap ErrInvalidID.
var (
	// AnyID is 1 to 512 bytes, as they are.
	AnyID IDFormat = &format{"anyID", func(id string) (string, error) { return id, nil }}

	// Shared is the empty id: one bucket for everyone.
	Shared IDFormat = shared{}

	// IPAddress is an IPv4 or IPv6 address, without a zone. An IPv4-mapped IPv6 address is the IPv4 address.
	IPAddress IDFormat = &format{"ipAddress", ipAddress}

	// IPv6Range is an IPv6 network of 48 bits, which is what one subscriber is typically assigned: "2001:db8::/48".
	IPv6Range IDFormat = &format{"ipv6Range", ipv6Range}

	// RegID is the number of an account, from 0 to 2⁶⁴−1.
	RegID IDFormat = &format{"regId", regID}

	// Hostname is a domain name of ASCII letters, digits and hyphens, in lower case, without a dot at the end.
	Hostname IDFormat = &format{"hostname", hostname}

	// Domain is a Hostname that somebody registered: a public suffix and one label more, such as "example.co.uk".
	Domain IDFormat = &format{"domain", domain}

	// FQDNSet is a list of Hostnames and IPAddresses, in any order, with commas between. It is stored as the SHA-256, in
	// hex, of the list that is lower-cased, sorted and free of duplicates, and may also be written as that.
	FQDNSet IDFormat = &format{"fqdnSet", fqdnSet}
)

// Tuple is an id of several parts with colons between, such as "12345678:example.com". Only the last part may itself
// hold a colon.
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

// AnyOf is an id of the first of the formats that accepts it.
func AnyOf(formats ...IDFormat) IDFormat {
	a := &anyOf{slices.Clone(formats)}
	for i, f := range a.formats {
		if f == nil {
			a.formats[i] = AnyID
		}
	}
	return a
}

// format is a format of one part.
type format struct {
	name      string
	canonical func(id string) (string, error) // or why not
}

func (f *format) String() string { return f.name }

func (f *format) Canonical(id string) (string, error) {
	canonical, why := f.canonical(id)
	return settle(f, id, canonical, why)
}

type shared struct{}

var errSharedID = errors.New("there is one bucket for everyone, and its id is empty")

func (shared) String() string { return "shared" }

func (shared) Canonical(id string) (string, error) {
	if id != "" {
		return "", &idError{id, Shared, errSharedID}
	}
	return "", nil
}

type tuple struct{ parts []IDFormat }

func (t *tuple) String() string { return listFormats("tuple", t.parts) }

func (t *tuple) Canonical(id string) (string, error) {
	ids := strings.SplitN(id, ":", len(t.parts))
	if len(ids) != len(t.parts) {
		return "", &idError{id, t, fmt.Errorf("want %d parts, not %d", len(t.parts), len(ids))}
	}
	for i, part := range ids {
		canonical, err := canonicalID(t.parts[i], part)
		if err == nil && i < len(ids)-1 && strings.Contains(canonical, ":") {
			err = fmt.Errorf("its canonical spelling %s holds a colon", quote(canonical))
		}
		if err != nil {
			return "", &idError{id, t, fmt.Errorf("part %d, %s: %s", i+1, quote(part), reason(err))}
		}
		ids[i] = canonical
	}
	return settle(t, id, strings.Join(ids, ":"), nil)
}

type anyOf struct{ formats []IDFormat }

func (a *anyOf) String() string { return listFormats("anyOf", a.formats) }

func (a *anyOf) Canonical(id string) (string, error) {
	canonical, err := a.first(id)
	if err == nil && canonical != id {
		// Another format may read the canonical spelling as an id of its own: that would be two ids in one.
		if again, _ := a.first(canonical); again != canonical {
			err = fmt.Errorf("its canonical spelling %s reads as another id", quote(canonical))
		}
	}
	return settle(a, id, canonical, err)
}

func (a *anyOf) first(id string) (string, error) {
	var whys []string
	for _, f := range a.formats {
		canonical, err := canonicalID(f, id)
		if err == nil {
			return canonical, nil
		}
		whys = append(whys, reason(err))
	}
	return "", errors.New(strings.Join(whys, "; "))
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

// isIPv4 reports whether id is an IPv4 address as netip writes it.
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
		return "", errors.New("the last label is a number")
	}
	return id, nil
}

func notLDH(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
}

func domain(id string) (string, error) {
	host, why := hostname(id)
	if why != nil {
		return "", why
	}
	registered, err := publicsuffix.EffectiveTLDPlusOne(host)
	switch {
	case err != nil:
		return "", errors.New("it is a public suffix: want one label more")
	case registered != host:
		return "", fmt.Errorf("want its eTLD+1, %s", registered)
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
		canonical, why := ipAddress(member)
		if why != nil {
			canonical, why = hostname(member)
		}
		if why != nil {
			return "", fmt.Errorf("member %d, %s, is no address and no hostname: %w", i+1, quote(member), why)
		}
		members[i] = canonical
	}
	slices.Sort(members)
	hash := sha256.Sum256([]byte(strings.Join(slices.Compact(members), ",")))
	return hex.EncodeToString(hash[:]), nil
}

// canonicalID is f.Canonical, held to what every format promises.
func canonicalID(f IDFormat, id string) (string, error) {
	canonical, err := f.Canonical(id)
	if err != nil && errors.Is(err, ErrInvalidID) {
		return "", err
	}
	return settle(f, id, canonical, err)
}

// settle returns the canonical id, or the error for it where why is given or its length is wrong.
func settle(f IDFormat, id, canonical string, why error) (string, error) {
	if why == nil && !isShared(f) {
		why = checkLen(canonical)
	}
	if why != nil {
		return "", &idError{id, f, why}
	}
	return canonical, nil
}

func checkLen(id string) error {
	switch {
	case id == "":
		return errors.New("it is empty")
	case len(id) > maxIDLen:
		return fmt.Errorf("it is %d bytes long, more than %d", len(id), maxIDLen)
	}
	return nil
}

func isShared(f IDFormat) bool {
	_, ok := f.(shared)
	return ok
}

// parts returns how many parts the ids of a format have.
func parts(f IDFormat) int {
	if t, ok := f.(*tuple); ok {
		return len(t.parts)
	}
	return 1
}

func listFormats(name string, formats []IDFormat) string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = f.String()
	}
	return name + "(" + strings.Join(names, ",") + ")"
}

// idError is ErrInvalidID with the id, the format and why the one is not of the other.
type idError struct {
	id     string
	format IDFormat
	why    error
}

func (e *idError) Error() string {
	return fmt.Sprintf("%v %s: %s", ErrInvalidID, quote(e.id), reason(e))
}

func (e *idError) Unwrap() []error { return []error{ErrInvalidID, e.why} }

// reason returns an id's error without the id, for an error that names it already.
func reason(err error) string {
	var e *idError
	if errors.As(err, &e) {
		return fmt.Sprintf("not of format %v: %v", e.format, e.why)
	}
	return err.Error()
}

// quote returns s in quotes, cut short where it is long.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
