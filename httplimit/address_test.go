package httplimit

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
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

// Header fields change neither a direct client's bucket nor one behind a proxy.
func TestSpoofing(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	direct := limited(t, lim, Rule{Key: ByIP(perAddress)})
	for i, spelling := range []string{victim, "::1", "for=" + victim, "", ",", `"`, "unknown"} {
		res := get(t, direct, "X-Forwarded-For", spelling, "Forwarded", spelling, "X-Real-IP", spelling, "Client-IP", spelling)
		require.Equal(t, i >= 5, res.StatusCode == 429, spelling)
	}
	behind := limited(t, lim, Rule{Key: ClientAddress{TrustedProxies: behindProxies}.ByIP(perIP)})
	for i, spelling := range []string{victim, "::1", "for=" + victim, "", ",", `"`, "unknown"} {
		res := get(t, behind, "X-Forwarded-For", spelling, "X-Forwarded-For", attacker)
		require.Equal(t, i >= 5, res.StatusCode == 429, spelling)
	}
	require.EqualValues(t, 5, left(t, lim, perIP.Key(victim)))

	for range 6 { // an IDFormat of addresses: the id is the first one
		get(t, behind, "X-Forwarded-For", "2001:db8::1234")
	}
	require.EqualValues(t, 0, left(t, lim, perIP.Key("2001:db8::")))
}

// overUnix serves a handler on a Unix socket. The function that it returns sends
// a request from a socket with a name, or without one.
func overUnix(t *testing.T, h http.Handler) func(name string) error {
	l, err := net.Listen("unix", "s")
	require.NoError(t, err)
	srv := httptest.NewUnstartedServer(h)
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	return func(name string) error {
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				var from *net.UnixAddr
				if name != "" {
					from = &net.UnixAddr{Name: name, Net: "unix"}
				}
				return net.DialUnix("unix", from, &net.UnixAddr{Name: "s", Net: "unix"})
			},
		}}
		req, err := http.NewRequest("GET", "http://server/", nil)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", victim)
		res, err := client.Do(req)
		if err == nil {
			res.Body.Close()
		}
		return err
	}
}

func TestUnixSocket(t *testing.T) {
	t.Chdir(t.TempDir())
	var remote string
	var ids []string
	ask := overUnix(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		remote, ids = r.RemoteAddr, nil
		for _, c := range []ClientAddress{{}, {TrustedProxies: behindProxies}, {TrustUnix: true}} {
			key, err := c.ByIP(perAddress)(r)
			require.NoError(t, err)
			ids = append(ids, key.ID)
		}
		r.Header.Del("X-Forwarded-For")
		key, err := ClientAddress{TrustUnix: true}.ByIP(perAddress)(r)
		require.NoError(t, err)
		require.Equal(t, "unix", key.ID, "a proxy that says nothing")
	}))
	// The client chooses RemoteAddr: it may look like an address.
	for _, name := range []string{"", victim + ":80", victim, proxy + ":80", proxy} {
		if err := ask(name); name != "" && err != nil {
			t.Skip("a client's socket cannot have this name here:", err)
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, []string{"unix", "unix", victim}, ids, name)
		if name != "" {
			require.Equal(t, name, remote)
		}
	}
}

// The id of a Unix socket needs no IDFormat, and clients cannot send it.
func TestUnixID(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	for name, tc := range map[string]struct {
		key    KeyFunc
		header string
		over   net.Addr
		want   int
	}{
		"socket":                    {ByIP(perIP), "", &net.UnixAddr{}, 200},
		"trusted, says nothing":     {ClientAddress{TrustUnix: true}.ByIP(perIP), "", &net.UnixAddr{}, 200},
		"first of":                  {FirstOf(ByHeader(perIP, "X-Id"), ByIP(perIP)), "", &net.UnixAddr{}, 200},
		"written":                   {ByHeader(perIP, "X-Id"), "unix", &net.UnixAddr{}, 400},
		"written first":             {FirstOf(ByHeader(perIP, "X-Id"), ByIP(perIP)), "unix", &net.UnixAddr{}, 400},
		"otherwise written":         {ByHeader(perIP, "X-Id"), "UNIX", &net.UnixAddr{}, 400},
		"written, over the network": {ByHeader(perIP, "X-Id"), "unix", &net.TCPAddr{}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, lim.Reset(perIP.Key("unix")))
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = victim + ":80" // the name of the client's socket
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tc.over))
			if tc.header != "" {
				r.Header.Set("X-Id", tc.header)
			}
			w := httptest.NewRecorder()
			New(lim, nil, Rule{Key: tc.key})(http.HandlerFunc(status)).ServeHTTP(w, r)
			require.Equal(t, tc.want, w.Code)
			require.Equal(t, tc.want == 200, left(t, lim, perIP.Key("unix")) == 4)
			require.EqualValues(t, 5, left(t, lim, perIP.Key(victim)))
		})
	}
}

// A network that a client sends is not an id for stint.IPAddress.
func TestNetworkIsNoAddress(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	url := limited(t, lim, Rule{Key: ByHeader(perIP, "X-Id")})
	for _, id := range []string{"10.1.2.3/8", "10.0.0.0/8", "10.1.2.3/32", "2001:db8::1/64", "::ffff:10.0.0.0/104", "2001:db8::/64/64"} {
		require.Equal(t, 400, get(t, url, "X-Id", id).StatusCode, id)
	}
}

// An override for an IPv6 client has the id of its network.
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
