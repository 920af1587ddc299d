package httplimit

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

const (
	victim   = "192.0.2.7"
	attacker = "198.51.100.66"
	proxy    = "127.0.0.1"
)

var behindProxies = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	netip.MustParsePrefix("2001:db8:aaaa::/48"),
}

// What an attacker sends ahead of the address that the proxy adds, however it is spelled, counts against the attacker.
func TestHostileForwardedFor(t *testing.T) {
	long := strings.Repeat("192.0.2.7, ", 300)
	for _, sent := range [][]string{
		{""},
		{" "},
		{","},
		{",,,,"},
		{victim},
		{victim + ", " + victim},
		{victim, victim},
		{"127.0.0.1"},
		{"10.0.0.1, 10.0.0.2"},
		{"::1"},
		{"unknown"},
		{"_hidden"},
		{"localhost"},
		{"-"},
		{`"192.0.2.7"`},
		{`"192.0.2.7`},
		{`192.0.2.7"`},
		{`for=192.0.2.7`},
		{`\`},
		{"192.0.2.7;"},
		{"192.0.2.7:80"},
		{"192.0.2.7:99999"},
		{"[192.0.2.7]"},
		{"::ffff:192.0.2.7"},
		{"[::ffff:192.0.2.7]:80"},
		{"::ffff:c000:0207"},
		{"192.0.2.007"},
		{"192.0.2"},
		{"192.0.519"},
		{"0xc0000207"},
		{"3221225991"},
		{"0300.0.2.7"},
		{"192.0.2.7/32"},
		{"192.0.2.7%eth0"},
		{"fe80::1%192.0.2.7"},
		{"192。0。2。7"},
		{"١٩٢.0.2.7"},
		{"192.0.2.7 192.0.2.7"},
		{"192.0.2.7\t"},
		{"'; DROP TABLE buckets; --"},
		{"%31%39%32.0.2.7"},
		{long},
		{strings.Repeat(",", 4000)},
		{strings.Repeat("10.0.0.1,", 400)},
		{victim, "10.0.0.1"},
		{"\xff\xfe"},
	} {
		for _, added := range []string{attacker, " \t" + attacker + " ", attacker + ":4711", "::ffff:" + attacker} {
			oneLine := append([]string(nil), sent...)
			oneLine[len(oneLine)-1] += "," + added
			ownLine := append(append([]string(nil), sent...), added)
			for _, lines := range [][]string{oneLine, ownLine, append(ownLine, "10.0.0.9")} {
				requireCounted(t, ClientAddress{TrustedProxies: behindProxies}, "X-Forwarded-For", lines, attacker)
			}
		}
	}
}

// Likewise in a Forwarded field, where quotes might hide what the proxy adds.
func TestHostileForwarded(t *testing.T) {
	for _, sent := range [][]string{
		{""},
		{","},
		{"for=" + victim},
		{"for=" + victim + ", for=" + victim},
		{`for="`},
		{`for="192.0.2.7`},
		{`for="192.0.2.7\`},
		{`for="\"`},
		{`for=""`},
		{`for=192.0.2.7;for=192.0.2.7`},
		{`For=192.0.2.7;FOR="192.0.2.8"`},
		{`for`},
		{`for=`},
		{`=192.0.2.7`},
		{`by=192.0.2.7`},
		{`host="a,b";for=192.0.2.7`},
		{`for=unknown`},
		{`for=_x`},
		{`for="_x:80"`},
		{`for="[::1]"`},
		{`for=[2001:db8::1]`},
		{`for=2001:db8::1`},
		{`for="192.0.2.7:80"`},
		{`for="192.0.2.7:_port"`},
		{`for = 192.0.2.7`},
		{`for=192.0.2.7 ; by=x`},
		{`;;;for=192.0.2.7`},
		{`for="[::ffff:192.0.2.7]";proto=https`},
		{`for="192.0.2.7,10.0.0.1"`},
		{`for=10.0.0.1`, `for="`},
		{strings.Repeat(`for="x",`, 500) + `"`},
		{strings.Repeat(`\`, 999)},
		{"192.0.2.7"},
		{"\xff"},
	} {
		for _, added := range []string{
			"for=" + attacker,
			` FOR="198.51.100.66:4711";proto=https;host="a, b"`,
			`by="[2001:db8::1]";for="\198.51.100.66"`,
			`for="[::ffff:198.51.100.66]:4711"`,
		} {
			oneLine := append([]string(nil), sent...)
			oneLine[len(oneLine)-1] += "," + added
			ownLine := append(append([]string(nil), sent...), added)
			for _, lines := range [][]string{oneLine, ownLine, append(ownLine, `for=10.0.0.9;by="a\"b,"`)} {
				c := ClientAddress{TrustedProxies: behindProxies, Field: "forwarded"}
				requireCounted(t, c, "Forwarded", lines, attacker)
			}
		}
	}
}

// An entry that is not an address is followed by the last one that is certain.
func TestMalformedEntry(t *testing.T) {
	for _, said := range []string{
		"", " ", "unknown", "_x", "192.0.2", "192.0.2.007", "192.0.2.7/32", "[192.0.2.7]", "[192.0.2.7]:80", "[::1", "::1]", "[]",
		"192.0.2.7:", "192.0.2.7:x", "192.0.2.7:65536", `"192.0.2.7"`, "for=192.0.2.7", "192.0.2.7;", "[192.0.2.7", "2001:db8::1::",
	} {
		c := ClientAddress{TrustedProxies: behindProxies}
		requireCounted(t, c, "X-Forwarded-For", []string{victim + "," + said}, proxy)
		requireCounted(t, c, "X-Forwarded-For", []string{victim, said, "10.0.0.9"}, "10.0.0.9")
	}
	for _, said := range []string{
		"", "for", "for=", `for=""`, "for=unknown", "for=_x", "by=192.0.2.7", "for=192.0.2.7;for=192.0.2.7", "for=2001:db8::1",
		`for="2001:db8::1"`, `for="::ffff:192.0.2.7"`, "for=192.0.2.7:80", `for="192.0.2.7`, `for=192.0.2.7"`, "for=192.0.2.7;",
		"for=192.0.2.7 ;by=x", "for =192.0.2.7", `for="192.0.2.7"x`, `for="192.0.2.7";by`, "192.0.2.7", ";for=192.0.2.7",
		`for="` + "\x01" + `192.0.2.7"`, `for="192.0.2.7\`,
	} {
		c := ClientAddress{TrustedProxies: behindProxies, Field: "Forwarded"}
		requireCounted(t, c, "Forwarded", []string{"for=192.0.2.9," + said}, proxy)
		requireCounted(t, c, "Forwarded", []string{said, `for="10.0.0.9"`}, "10.0.0.9")
	}
}

// requireCounted says whose bucket a request over the loopback interface spends from, with the lines in one field.
func requireCounted(t *testing.T, c ClientAddress, field string, lines []string, want string) {
	t.Helper()
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = proxy + ":4711"
	r.Header[field] = lines
	key, err := c.ByIP(perAddress)(r)
	require.NoError(t, err)
	require.Equal(t, want, key.ID, "%s: %q", field, lines)
	require.Equal(t, want, c.Of(r).String())
	r.RemoteAddr = "203.0.113.5:4711" // is nobody's proxy
	key, err = c.ByIP(perAddress)(r)
	require.NoError(t, err)
	require.Equal(t, "203.0.113.5", key.ID)
	delete(r.Header, field)
}

func TestClientAddress(t *testing.T) {
	trusting := ClientAddress{TrustedProxies: behindProxies}
	for _, tc := range []struct {
		c            ClientAddress
		peer         string
		field, value string
		want         string
	}{
		{ClientAddress{}, "192.0.2.1:1", "X-Forwarded-For", victim, "192.0.2.1"},
		{ClientAddress{}, "[2001:db8:1:2:3::4]:1", "", "", "2001:db8:1:2::/64"},
		{ClientAddress{IPv6Bits: 56}, "[2001:db8:1:2ff:3::4]:1", "", "", "2001:db8:1:200::/56"},
		{ClientAddress{IPv6Bits: 48}, "[2001:db8:1:2:3::4]:1", "", "", "2001:db8:1::/48"},
		{ClientAddress{}, "[::ffff:192.0.2.1]:1", "", "", "192.0.2.1"},
		{ClientAddress{}, "[fe80::1%eth0]:1", "", "", "fe80::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", victim, victim},
		{trusting, "[::ffff:10.1.2.3]:1", "X-Forwarded-For", victim, victim},
		{trusting, "[2001:db8:aaaa::1]:1", "X-Forwarded-For", victim, victim},
		{trusting, "[2001:db8:bbbb::1]:1", "X-Forwarded-For", victim, "2001:db8:bbbb::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", "[2001:db8::1]:443", "2001:db8::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", "2001:db8::1", "2001:db8::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", "10.0.0.1,10.0.0.2", "10.0.0.1"}, // none but proxies: the first of them
		{trusting, "10.1.2.3:1", "Forwarded", "for=" + victim, "10.1.2.3"},           // the field that was not chosen
		{ClientAddress{TrustedProxies: behindProxies, Field: "Forwarded"}, "10.1.2.3:1", "X-Forwarded-For", victim, "10.1.2.3"},
		{ClientAddress{TrustedProxies: behindProxies, Field: "x-real-ip"}, "10.1.2.3:1", "X-Real-Ip", victim, victim},
		{trusting, "10.1.2.3:1", "", "", "10.1.2.3"},
		{ClientAddress{}, "192.0.2.1", "X-Forwarded-For", victim, "192.0.2.1"}, // as middleware writes it
		{ClientAddress{}, "::ffff:192.0.2.1", "", "", "192.0.2.1"},
		{ClientAddress{}, "2001:db8:1:2:3::4", "", "", "2001:db8:1:2::/64"},
		{ClientAddress{}, "fe80::1%eth0", "", "", "fe80::/64"},
		{trusting, "192.0.2.1", "X-Forwarded-For", victim, "192.0.2.1"},
		{trusting, "10.1.2.3", "X-Forwarded-For", victim, victim},
		{ClientAddress{}, "[2001:db8:1:2:3::4]", "", "", ""},
		{ClientAddress{}, "192.0.2.01", "", "", ""},
		{ClientAddress{}, "192.0.2.1 ", "", "", ""},
		{ClientAddress{}, "192.0.2.1, 192.0.2.2", "", "", ""},
		{ClientAddress{}, "192.0.2.0/24", "", "", ""},
		{ClientAddress{}, "192.0.2.1:", "", "", ""},
		{ClientAddress{}, "192.0.2.1:http", "", "", ""},
		{ClientAddress{}, "192.0.2.1:65536", "", "", ""},
		{ClientAddress{}, "192.0.2.1:1:1", "", "", ""},
		{ClientAddress{}, "192.0.2.256:1", "", "", ""},
		{ClientAddress{}, "::1:1", "", "", "::/64"}, // an address that ends so
		{ClientAddress{}, "1:2:3:4:5:6:7:8:80", "", "", ""},
		{trusting, "@", "X-Forwarded-For", victim, ""},
		{trusting, "", "X-Forwarded-For", victim, ""},
		{trusting, "<nil>", "X-Forwarded-For", victim, ""},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tc.peer
		if tc.field != "" {
			r.Header.Set(tc.field, tc.value)
		}
		key, err := tc.c.ByIP(perAddress)(r)
		if tc.want == "" {
			require.ErrorIs(t, err, ErrNoID, "%+v", tc)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tc.want, key.ID, "%+v", tc)
	}
}

// Nobody gets at another's bucket over the network, and nobody gets another one.
func TestSpoofing(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	direct := serve(t, New(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status)))
	for i, spelling := range []string{victim, "::1", "for=" + victim, "", ",", `"`, "unknown"} {
		res := get(t, direct.URL, "X-Forwarded-For", spelling, "Forwarded", spelling, "X-Real-IP", spelling, "Client-IP", spelling)
		require.Equal(t, i >= 5, res.StatusCode == 429, spelling)
	}
	behind := serve(t, New(lim, nil, Rule{Key: ClientAddress{TrustedProxies: behindProxies}.ByIP(perIP)})(http.HandlerFunc(status)))
	for i, spelling := range []string{victim, "::1", "for=" + victim, "", ",", `"`, "unknown"} {
		res := get(t, behind.URL, "X-Forwarded-For", spelling, "X-Forwarded-For", attacker)
		require.Equal(t, i >= 5, res.StatusCode == 429, spelling)
	}
	require.EqualValues(t, 5, left(t, lim, perIP.Key(victim)))

	for range 6 { // where ids are addresses, networks are written as their first
		get(t, behind.URL, "X-Forwarded-For", "2001:db8::1234")
	}
	require.EqualValues(t, 0, left(t, lim, perIP.Key("2001:db8::")))
}

func TestUnixSocket(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	for _, tc := range []struct {
		c    ClientAddress
		want string
	}{
		{ClientAddress{TrustedProxies: behindProxies}, "unix"},
		{ClientAddress{TrustUnix: true}, victim},
	} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		srv := httptest.NewUnstartedServer(New(lim, nil, Rule{Key: tc.c.ByIP(perAddress)})(http.HandlerFunc(status)))
		srv.Listener.Close()
		srv.Listener = l
		srv.Start()
		defer srv.Close()
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) },
		}}
		req, err := http.NewRequest("GET", "http://server/", nil)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", victim)
		res, err := client.Do(req)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, 200, res.StatusCode)
		require.EqualValues(t, 4, left(t, lim, perAddress.Key(tc.want)))
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "@"
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{}))
	key, err := ClientAddress{TrustUnix: true}.ByIP(perAddress)(r)
	require.NoError(t, err)
	require.Equal(t, stint.Key{Name: perAddress, ID: "unix"}, key, "a proxy that says nothing")
}

// The key of a Unix socket is of no IDFormat, and nobody reaches it by what he writes.
func TestUnixSocketWhereIDsAreAddresses(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	none := func(r *http.Request) (stint.Key, error) {
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return stint.Key{}, cmp.Or(err, ErrNoID)
	}
	for name, tc := range map[string]struct {
		key    KeyFunc
		header string
		over   net.Addr
		want   int
	}{
		"socket":                    {ByIP(perIP), "", &net.UnixAddr{}, 200},
		"trusted, says nothing":     {ClientAddress{TrustUnix: true}.ByIP(perIP), "", &net.UnixAddr{}, 200},
		"first of":                  {FirstOf(none, ByHeader(perIP, "X-Id"), ByIP(perIP)), "", &net.UnixAddr{}, 200},
		"written":                   {ByHeader(perIP, "X-Id"), "unix", &net.UnixAddr{}, 400},
		"written first":             {FirstOf(ByHeader(perIP, "X-Id"), ByIP(perIP)), "unix", &net.UnixAddr{}, 400},
		"otherwise written":         {ByHeader(perIP, "X-Id"), "UNIX", &net.UnixAddr{}, 400},
		"written, over the network": {ByHeader(perIP, "X-Id"), "unix", &net.TCPAddr{}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, lim.Reset(perIP.Key("unix")))
			r := httptest.NewRequest("POST", "/", strings.NewReader("other=x"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.RemoteAddr = victim + ":80" // as a client has called its socket
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tc.over))
			if tc.header != "" {
				r.Header.Set("X-Id", tc.header)
			}
			w := httptest.NewRecorder()
			New(lim, nil, Rule{Key: tc.key})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.Equal(t, "x", r.FormValue("other"))
			})).ServeHTTP(w, r)
			require.Equal(t, tc.want, w.Code)
			spent := int64(0)
			if tc.want == 200 {
				spent = 1
			}
			require.Equal(t, 5-spent, left(t, lim, perIP.Key("unix")))
			require.EqualValues(t, 5, left(t, lim, perIP.Key(victim)))
		})
	}
}

// Over a Unix socket it is the client who chooses what RemoteAddr says.
func TestUnixSocketNamedLikeAnAddress(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := net.Listen("unix", "s")
	require.NoError(t, err)
	var remote string
	var keys []stint.Key
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		remote = r.RemoteAddr
		for _, c := range []ClientAddress{{}, {TrustedProxies: behindProxies}} {
			key, err := c.ByIP(perAddress)(r)
			require.NoError(t, err)
			keys = append(keys, key)
		}
	}))
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	for _, name := range []string{victim + ":80", victim, proxy + ":80", proxy} {
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return net.DialUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}, &net.UnixAddr{Name: "s", Net: "unix"})
			},
		}}
		req, err := http.NewRequest("GET", "http://server/", nil)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", victim)
		res, err := client.Do(req)
		if err != nil {
			t.Skip("a client's socket cannot have this name here:", err)
		}
		res.Body.Close()
		require.Equal(t, name, remote)
	}
	for _, key := range keys {
		require.Equal(t, perAddress.Key("unix"), key)
	}
}

// An id that a client writes as a network is no address; ByIP's is.
func TestNetworkIsNoAddress(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, New(lim, nil, Rule{Key: ByHeader(perIP, "X-Id")})(http.HandlerFunc(status)))
	for _, id := range []string{"10.1.2.3/8", "10.0.0.0/8", "10.1.2.3/32", "2001:db8::1/64", "::ffff:10.0.0.0/104", "2001:db8::/64/64"} {
		require.Equal(t, 400, get(t, srv.URL, "X-Id", id).StatusCode, id)
	}
}

// An override for an IPv6 client is found where it is written as the network's id, in the spelling of the IDFormat.
func TestOverrideForIPv6(t *testing.T) {
	for _, tc := range []struct {
		format stint.IDFormat
		bits   int
		id     string
		found  bool
	}{
		{stint.IPAddress, 0, "2001:db8:0:1::", true},
		{stint.IPAddress, 0, "2001:DB8:0:1:0:0:0:0", true},
		{stint.IPAddress, 0, "2001:db8:0:1::7", false},
		{stint.IPAddress, 128, "2001:db8:0:1::7", true},
		{nil, 0, "2001:db8:0:1::/64", true},
		{nil, 0, "2001:DB8:0:1::/64", false},
		{nil, 0, "2001:db8:0:1::", false},
		{nil, 0, "2001:db8:0:1::7", false},
		{nil, 128, "2001:db8:0:1::7/128", true},
	} {
		limits, err := stint.NewLimits(
			stint.Names{perIP: {Label: "ip", ID: tc.format}},
			map[stint.Name]stint.Limit{perIP: stint.PerMinute(5)},
			map[stint.Name][]stint.Override{perIP: {{IDs: []stint.OverrideID{{ID: tc.id}}, Limit: stint.PerMinute(600)}}})
		require.NoError(t, err)
		lim, err := stint.New(stint.NewMemStore(), limits, nil)
		require.NoError(t, err)
		var burst int64
		h := New(lim, nil, Rule{Key: ClientAddress{IPv6Bits: tc.bits}.ByIP(perIP)})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			burst = Decisions(r)[0].Limit.Burst
		}))
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "[2001:db8:0:1::7]:4711"
		h.ServeHTTP(httptest.NewRecorder(), r)
		require.NoError(t, lim.Close())
		require.Equal(t, tc.found, burst == 600, "%+v: %d", tc, burst)
	}
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
