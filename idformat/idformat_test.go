package idformat

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

var errFickle = errors.New("not today")

// fickle is a format that a program might have by mistake: its errors do not
// wrap ErrInvalidID, and it may return any id.
type fickle struct{}

func (fickle) String() string { return "fickle" }

func (fickle) Canonical(id string) (string, error) {
	switch id {
	case "long":
		return strings.Repeat("x", 513), nil
	case "flip":
		return "flop", nil
	case "flop":
		return "flip", nil
	}
	return "", errFickle
}

// suffixes is a short list of public suffixes.
type suffixes []string

func (s suffixes) PublicSuffix(domain string) string {
	for _, suffix := range s {
		if domain == suffix || strings.HasSuffix(domain, "."+suffix) {
			return suffix
		}
	}
	return domain[strings.LastIndexByte(domain, '.')+1:]
}

func hash(list string) string {
	sum := sha256.Sum256([]byte(list))
	return hex.EncodeToString(sum[:])
}

func TestCanonical(t *testing.T) {
	domains := Domain(suffixes{"co.uk"})
	label63 := strings.Repeat("x", 63)
	host253 := strings.Repeat(label63+".", 3) + strings.Repeat("x", 61)
	account := stint.Tuple(RegID, AnyOf(Hostname, stint.IPAddress))
	for _, tc := range []struct {
		format   stint.IDFormat
		id, want string
	}{
		{IPv6Range, "2001:0db8:0000::/48", "2001:db8::/48"},
		{IPv6Range, "2602:80a:6000::/48", "2602:80a:6000::/48"},
		{IPv6Range, "::/48", "::/48"},
		{RegID, "0", "0"},
		{RegID, "18446744073709551615", "18446744073709551615"},
		{Hostname, "Example.COM", "example.com"},
		{Hostname, "localhost", "localhost"},
		{Hostname, "xn--bcher-kva.example", "xn--bcher-kva.example"},
		{Hostname, "4.3.2.1.in-addr.arpa", "4.3.2.1.in-addr.arpa"},
		{Hostname, "a." + label63, "a." + label63},
		{Hostname, host253, host253},
		{domains, "Example.co.uk", "example.co.uk"},
		{domains, "le.wtf", "le.wtf"},
		{domains, "notco.uk", "notco.uk"},
		{FQDNSet, "example.com", hash("example.com")},
		{FQDNSet, "B.example,a.example,b.example", hash("a.example,b.example")},
		{FQDNSet, "2602:80A:6000:0::1,9.9.9.9,example.com", hash("2602:80a:6000::1,9.9.9.9,example.com")},
		{FQDNSet, "::ffff:9.9.9.9,9.9.9.9", hash("9.9.9.9")},
		{FQDNSet, hash("example.com"), hash("example.com")},
		{FQDNSet, strings.Repeat("example.com,", 5000) + "example.com", hash("example.com")},
		{account, "12345678:Example.com", "12345678:example.com"},
		{account, "12345678:2001:db8:0::1", "12345678:2001:db8::1"},
		{stint.Tuple(RegID, FQDNSet), "7:b.example,a.example", "7:" + hash("a.example,b.example")},
		{AnyOf(RegID, Hostname), "A.example", "a.example"},
		{AnyOf(RegID, nil), "A.example", "A.example"},
	} {
		for range 2 { // the canonical spelling is its own
			got, err := tc.format.Canonical(tc.id)
			require.NoError(t, err, "%v %q", tc.format, tc.id)
			require.Equal(t, tc.want, got, "%v %q", tc.format, tc.id)
			tc.id = got
		}
	}
}

func TestNotCanonical(t *testing.T) {
	domains := Domain(suffixes{"co.uk"})
	label64 := strings.Repeat("x", 64)
	account := stint.Tuple(RegID, AnyOf(Hostname, stint.IPAddress))
	for _, tc := range []struct {
		format   stint.IDFormat
		id, want string
	}{
		{IPv6Range, "2001:db8::1", "not of format ipv6Range: want an IPv6 network of 48 bits such as 2001:db8::/48"},
		{IPv6Range, "2001:db8::/64", "want an IPv6 network of 48 bits"},
		{IPv6Range, "10.0.0.0/24", "want an IPv6 network of 48 bits"},
		{IPv6Range, "::ffff:10.0.0.0/48", "want an IPv6 network of 48 bits"},
		{IPv6Range, "2001:db8:0:1::/48", "bits are set after the first 48: want 2001:db8::/48"},

		{RegID, "", "not of format regId: want a decimal number below 2⁶⁴ without leading zeros"},
		{RegID, "01", "without leading zeros"},
		{RegID, "00", "without leading zeros"},
		{RegID, "+1", "want a decimal number"},
		{RegID, "-1", "want a decimal number"},
		{RegID, "1_0", "want a decimal number"},
		{RegID, "18446744073709551616", "want a decimal number below 2⁶⁴"},

		{Hostname, "", "not of format hostname: a label is empty"},
		{Hostname, "example.com.", "a label is empty"},
		{Hostname, ".example.com", "a label is empty"},
		{Hostname, "a..b", "a label is empty"},
		{Hostname, label64 + ".example", "a label is longer than 63 bytes"},
		{Hostname, strings.Repeat("abcdefg.", 31) + "abcdef", "it is 254 bytes long, more than 253"},
		{Hostname, "-a.example", `label "-a": want letters, digits, and hyphens between them`},
		{Hostname, "a-.example", `label "a-": want letters, digits, and hyphens between them`},
		{Hostname, "*.example", `label "*"`},
		{Hostname, "a_b.example", `label "a_b"`},
		{Hostname, "a b", `label "a b"`},
		{Hostname, "10.0.0.1", "the last label is a number"},
		{Hostname, "bücher.example", "it is not ASCII: write it in punycode (xn--…)"},
		{Hostname, "\u212aelvin.example", "it is not ASCII"}, // the Kelvin sign, which lower-cases to a k
		{Hostname, "a\xff.example", "it is not ASCII"},

		{domains, "www.example.co.uk", "not of format domain: want its eTLD+1, example.co.uk"},
		{domains, "co.uk", "it is a public suffix: want one more label before it"},
		{domains, "com", "it is a public suffix"},
		{domains, "10.0.0.1", "the last label is a number"},

		{FQDNSet, "", `not of format fqdnSet: member 1, "", is neither an address nor a hostname: a label is empty`},
		{FQDNSet, "a.example,,b.example", `member 2, "", is neither an address`},
		{FQDNSet, "a.example, b.example", `member 2, " b.example", is neither an address`},
		{FQDNSet, strings.ToUpper(hash("a")), "a label is longer than 63 bytes"},
		{FQDNSet, hash("a") + ",b", "a label is longer than 63 bytes"},
		{FQDNSet, strings.Repeat("g", 64), "a label is longer than 63 bytes"},
		{FQDNSet, strings.Repeat("a,", 1<<15) + "a", "it is 65537 bytes long, more than 65536"},

		{account, "12345678", "not of format tuple(regId,anyOf(hostname,ipAddress)): want 2 parts, not 1"},
		{account, "x:example.com", `part 1, "x": not of format regId: want a decimal number`},
		{account, "1:a:b", `part 2, "a:b": not of format anyOf(hostname,ipAddress): ` +
			`not of format hostname: label "a:b": want letters, digits, and hyphens between them; ` +
			`not of format ipAddress: want an address`},

		{AnyOf(), "x", "not of format anyOf(): "},
		{AnyOf(RegID, stint.Single), "", "not of format anyOf(regId,single): it is empty"},
		{AnyOf(RegID, fickle{}), "x", "not of format anyOf(regId,fickle): not of format regId: want a decimal number " +
			"below 2⁶⁴ without leading zeros; not of format fickle: not today"},
		{AnyOf(fickle{}), "flip", `its canonical spelling "flop" would be read as another id`},
		{AnyOf(stint.Tuple(RegID, FQDNSet), stint.IPAddress), "01:2::3",
			`its canonical spelling "1:2::3" would be read as another id`},
		{AnyOf(fickle{}), "long", "it is 513 bytes long"},
	} {
		got, err := tc.format.Canonical(tc.id)
		require.ErrorIs(t, err, stint.ErrInvalidID, "%v %q", tc.format, tc.id)
		require.Empty(t, got)
		require.ErrorContains(t, err, tc.want)
		require.ErrorContains(t, err, ": not of format "+tc.format.String()+": ")
		require.Less(t, len(err.Error()), 500)
	}
}

func TestFormatsCompare(t *testing.T) {
	domains := Domain(suffixes{"co.uk"})
	formats := []stint.IDFormat{
		stint.AnyID, stint.Single, stint.IPAddress, IPv6Range, RegID, Hostname, domains, FQDNSet,
		stint.Tuple(RegID, RegID), AnyOf(RegID, Hostname),
	}
	var names []string
	for i, f := range formats {
		for j, g := range formats {
			require.Equal(t, i == j, f == g, "%v == %v", f, g)
		}
		names = append(names, f.String())
	}
	either := AnyOf(formats[:8]...)
	clear(formats) // it has a copy
	require.Equal(t, "anyOf(anyID,single,ipAddress,ipv6Range,regId,hostname,domain,fqdnSet)", either.String())
	require.Equal(t, "anyID single ipAddress ipv6Range regId hostname domain fqdnSet "+
		"tuple(regId,regId) anyOf(regId,hostname)",
		strings.Join(names, " "))
}

func FuzzFormats(f *testing.F) {
	domains := Domain(suffixes{"co.uk"})
	formats := []stint.IDFormat{
		stint.AnyID, stint.Single, stint.IPAddress, IPv6Range, RegID, Hostname, domains, FQDNSet,
		stint.Tuple(RegID, AnyOf(Hostname, stint.IPAddress)),
		stint.Tuple(Hostname, FQDNSet),
		stint.Tuple(stint.AnyID, IPv6Range, AnyOf(RegID, FQDNSet)),
		AnyOf(domains, Hostname, stint.IPAddress),
		AnyOf(stint.Tuple(RegID, FQDNSet), stint.IPAddress, stint.Tuple(stint.AnyID, Hostname)),
	}
	for _, id := range []string{
		"", "x", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "2001:0db8:0000::/48", "12345678", "Example.COM",
		"B.example,a.example", "12345678:Example.com", "01:2::3", hash("x"), "bücher.example",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		for _, f := range formats {
			canonical, err := f.Canonical(id)
			if err != nil {
				require.ErrorIs(t, err, stint.ErrInvalidID)
				require.Empty(t, canonical)
				continue
			}
			require.LessOrEqual(t, len(canonical), 512)
			require.Equal(t, f == stint.Single, canonical == "", "%v: only the id of Single is empty", f)
			again, err := f.Canonical(canonical)
			require.NoError(t, err, "%v: %q became %q", f, id, canonical)
			require.Equal(t, canonical, again, "%v: %q is not settled", f, id)
		}
	})
}
