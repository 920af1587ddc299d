package httplimit

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// If a client sends the field itself, the address that the proxy adds counts.
// The spelling of the field does not matter.
func TestHostileField(t *testing.T) {
	long := strings.Repeat("192.0.2.7, ", 300)
	for field, tc := range map[string]struct {
		sent  [][]string // by the client: lines
		added []string   // by the proxy
		more  string     // by a second proxy
	}{
		"X-Forwarded-For": {[][]string{
			{""}, {" "}, {","}, {",,,,"}, {victim}, {victim + ", " + victim}, {victim, victim},
			{"127.0.0.1"}, {"10.0.0.1, 10.0.0.2"}, {"::1"}, {"unknown"}, {"_hidden"}, {"localhost"},
			{"-"}, {`"192.0.2.7"`}, {`"192.0.2.7`}, {`192.0.2.7"`}, {`for=192.0.2.7`}, {`\`},
			{"192.0.2.7;"}, {"192.0.2.7:80"}, {"192.0.2.7:99999"}, {"[192.0.2.7]"},
			{"::ffff:192.0.2.7"}, {"[::ffff:192.0.2.7]:80"}, {"::ffff:c000:0207"}, {"192.0.2.007"},
			{"192.0.2"}, {"192.0.519"}, {"0xc0000207"}, {"3221225991"}, {"0300.0.2.7"},
			{"192.0.2.7/32"}, {"192.0.2.7%eth0"}, {"fe80::1%192.0.2.7"}, {"192。0。2。7"},
			{"١٩٢.0.2.7"}, {"192.0.2.7 192.0.2.7"}, {"192.0.2.7\t"}, {"'; DROP TABLE buckets; --"},
			{"%31%39%32.0.2.7"}, {long}, {strings.Repeat(",", 4000)},
			{strings.Repeat("10.0.0.1,", 400)}, {victim, "10.0.0.1"}, {"\xff\xfe"},
		}, []string{attacker, " \t" + attacker + " ", attacker + ":4711", "::ffff:" + attacker}, "10.0.0.9"},
		"Forwarded": {[][]string{ // quotes might hide what the proxy adds
			{""}, {","}, {"for=" + victim}, {"for=" + victim + ", for=" + victim}, {`for="`},
			{`for="192.0.2.7`}, {`for="192.0.2.7\`}, {`for="\"`}, {`for=""`},
			{`for=192.0.2.7;for=192.0.2.7`}, {`For=192.0.2.7;FOR="192.0.2.8"`}, {`for`}, {`for=`},
			{`=192.0.2.7`}, {`by=192.0.2.7`}, {`host="a,b";for=192.0.2.7`}, {`for=unknown`},
			{`for=_x`}, {`for="_x:80"`}, {`for="[::1]"`}, {`for=[2001:db8::1]`}, {`for=2001:db8::1`},
			{`for="192.0.2.7:80"`}, {`for="192.0.2.7:_port"`}, {`for = 192.0.2.7`},
			{`for=192.0.2.7 ; by=x`}, {`;;;for=192.0.2.7`}, {`for="[::ffff:192.0.2.7]";proto=https`},
			{`for="192.0.2.7,10.0.0.1"`}, {`for=10.0.0.1`, `for="`},
			{strings.Repeat(`for="x",`, 500) + `"`}, {strings.Repeat(`\`, 999)}, {"192.0.2.7"},
			{"\xff"},
		}, []string{
			"for=" + attacker, ` FOR="198.51.100.66:4711";proto=https;host="a, b"`,
			`by="[2001:db8::1]";for="\198.51.100.66"`, `for="[::ffff:198.51.100.66]:4711"`,
		}, `for=10.0.0.9;by="a\"b,"`},
	} {
		c := ClientAddress{TrustedProxies: behindProxies, Field: strings.ToLower(field)}
		for _, sent := range tc.sent {
			for _, added := range tc.added {
				last := len(sent) - 1
				oneLine := append(slices.Clone(sent[:last]), sent[last]+","+added)
				ownLine := append(slices.Clone(sent), added)
				for _, lines := range [][]string{oneLine, ownLine, append(ownLine, tc.more)} {
					requireCounted(t, c, field, lines, attacker)
				}
			}
		}
	}
}

// An empty entry is none, as RFC 9110 5.6.1 says.
func TestEmptyEntry(t *testing.T) {
	for field, client := range map[string]string{"X-Forwarded-For": victim, "Forwarded": "for=" + victim} {
		c := ClientAddress{TrustedProxies: behindProxies, Field: field}
		for _, lines := range [][]string{
			{client + ","}, {client + ", \t,,"}, {client, ""}, {client, " , "}, {"," + client}, {"", client},
		} {
			requireCounted(t, c, field, lines, victim)
		}
		for _, lines := range [][]string{{""}, {","}, {" ", ""}} {
			requireCounted(t, c, field, lines, proxy)
		}
	}
}

// If an entry is not an address, the one read before it counts.
func TestMalformedEntry(t *testing.T) {
	for _, said := range []string{
		"unknown", "_x", "192.0.2", "192.0.2.007", "192.0.2.7/32", "[192.0.2.7]", "[192.0.2.7]:80", "[::1", "::1]", "[]",
		"192.0.2.7:", "192.0.2.7:x", "192.0.2.7:65536", `"192.0.2.7"`, "for=192.0.2.7", "192.0.2.7;", "[192.0.2.7",
		"2001:db8::1::",
	} {
		c := ClientAddress{TrustedProxies: behindProxies}
		requireCounted(t, c, "X-Forwarded-For", []string{victim + "," + said}, proxy)
		requireCounted(t, c, "X-Forwarded-For", []string{victim, said, "10.0.0.9"}, "10.0.0.9")
	}
	for _, said := range []string{
		"for", "for=", `for=""`, "for=unknown", "for=_x", "by=192.0.2.7", "for=192.0.2.7;for=192.0.2.7", "for=2001:db8::1",
		`for="2001:db8::1"`, `for="::ffff:192.0.2.7"`, "for=192.0.2.7:80", `for="192.0.2.7`, `for=192.0.2.7"`,
		"for=192.0.2.7;", "for=192.0.2.7 ;by=x",
		"for =192.0.2.7", `for="192.0.2.7"x`, `for="192.0.2.7";by`, "192.0.2.7", ";for=192.0.2.7",
		`for="` + "\x01" + `192.0.2.7"`, `for="192.0.2.7\`,
	} {
		c := ClientAddress{TrustedProxies: behindProxies, Field: "Forwarded"}
		requireCounted(t, c, "Forwarded", []string{"for=192.0.2.9," + said}, proxy)
		requireCounted(t, c, "Forwarded", []string{said, `for="10.0.0.9"`}, "10.0.0.9")
	}
}

// requireCounted checks the id of a request from a trusted proxy, with lines of
// one field. From an unknown peer, the field must not count.
func requireCounted(t *testing.T, c ClientAddress, field string, lines []string, want string) {
	t.Helper()
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = proxy + ":4711"
	r.Header = http.Header{"X-Real-Ip": lines, "Client-Ip": lines, "X-Forwarded-For": lines, "Forwarded": lines,
		field: lines}
	key, err := c.ByIP(perAddress)(r)
	require.NoError(t, err)
	require.Equal(t, want, key.ID, "%s: %q", field, lines)
	require.Equal(t, want, c.Of(r).String())
	r.RemoteAddr = "203.0.113.5:4711" // not a trusted proxy
	key, err = c.ByIP(perAddress)(r)
	require.NoError(t, err)
	require.Equal(t, "203.0.113.5", key.ID)
}

func FuzzClientAddress(f *testing.F) {
	f.Add(`for="`, "192.0.2.7", true)
	f.Add("192.0.2.7", ",", false)
	f.Fuzz(func(t *testing.T, first, second string, forwarded bool) {
		c, added := ClientAddress{TrustedProxies: behindProxies}, attacker
		if forwarded {
			c.Field, added = "Forwarded", `for="198.51.100.66"`
		}
		requireCounted(t, c, c.withDefaults().Field, []string{first, second + "," + added}, attacker)
	})
}
