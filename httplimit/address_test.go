package httplimit

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/rules"
)

const (
	victim   = "192.0.2.7"
	attacker = "198.51.100.66"
	proxy    = "127.0.0.1"
)

var behindProxies = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	netip.MustParsePrefix("64:ff9b::172.16.0.0/108"),
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
		{ClientAddress{IPv6Bits: 128}, "[2001:db8:1:2:3::4]:1", "", "", "2001:db8:1:2:3::4/128"},
		{ClientAddress{IPv6Bits: 48}, "[2001:db8:1:2:3::4]:1", "", "", "2001:db8:1::/48"},
		{ClientAddress{IPv4Bits: 24}, "192.0.2.1:1", "", "", "192.0.2.0/24"},
		{ClientAddress{IPv4Bits: 24}, "[::ffff:192.0.2.1]:1", "", "", "192.0.2.0/24"},
		{ClientAddress{IPv4Bits: 24}, "[2001:db8:1:2:3::4]:1", "", "", "2001:db8:1:2::/64"},
		{ClientAddress{IPv4Bits: 32}, "192.0.2.1:1", "", "", "192.0.2.1"},
		{ClientAddress{TrustedProxies: behindProxies, IPv4Bits: 8}, "10.1.2.3:1", "X-Forwarded-For", victim, "192.0.0.0/8"},
		{ClientAddress{}, "[::ffff:192.0.2.1]:1", "", "", "192.0.2.1"},
		{ClientAddress{}, "[64:ff9b::cb00:7109]:1", "", "", "203.0.113.9"}, // NAT64
		{ClientAddress{}, "[64:ff9b::203.0.113.10]:1", "", "", "203.0.113.10"},
		{ClientAddress{}, "[64:ff9b:1::cb00:7109]:1", "", "", "64:ff9b:1::/64"}, // does not say where the address is
		{ClientAddress{}, "[64:ff9b::1:cb00:7109]:1", "", "", "64:ff9b::/64"},
		{ClientAddress{}, "[fe80::1%eth0]:1", "", "", "fe80::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", victim, victim},
		{trusting, "[::ffff:10.1.2.3]:1", "X-Forwarded-For", victim, victim},
		{trusting, "[64:ff9b::a01:203]:1", "X-Forwarded-For", "64:ff9b::cb00:7109, 64:ff9b::a01:204", "203.0.113.9"},
		{trusting, "[64:ff9b::ac1f:1]:1", "X-Forwarded-For", "64:ff9b::cb00:7109", "203.0.113.9"},
		{trusting, "[2001:db8:aaaa::1]:1", "X-Forwarded-For", victim, victim},
		{trusting, "[2001:db8:bbbb::1]:1", "X-Forwarded-For", victim, "2001:db8:bbbb::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", "[2001:db8::1]:443", "2001:db8::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", "2001:db8::1", "2001:db8::/64"},
		{trusting, "10.1.2.3:1", "X-Forwarded-For", "10.0.0.1,10.0.0.2", "10.0.0.1"}, // only proxies: the first of them
		{trusting, "10.1.2.3:1", "Forwarded", "for=" + victim, "10.1.2.3"},           // the field that was not chosen
		{ClientAddress{TrustedProxies: behindProxies, Field: "Forwarded"}, "10.1.2.3:1", "X-Forwarded-For", victim,
			"10.1.2.3"},
		{ClientAddress{TrustedProxies: behindProxies, Field: "x-real-ip"}, "10.1.2.3:1", "X-Real-Ip", victim, victim},
		{trusting, "10.1.2.3:1", "", "", "10.1.2.3"},
		{ClientAddress{}, "192.0.2.1", "X-Forwarded-For", victim, "192.0.2.1"}, // as middleware writes it
		{ClientAddress{}, "::ffff:192.0.2.1", "", "", "192.0.2.1"},
		{ClientAddress{}, "2001:db8:1:2:3::4", "", "", "2001:db8:1:2::/64"},
		{ClientAddress{}, "fe80::1%eth0", "", "", "fe80::/64"},
		{trusting, "192.0.2.1", "X-Forwarded-For", victim, "192.0.2.1"},
		{trusting, "10.1.2.3", "X-Forwarded-For", victim, victim},
		{ClientAddress{}, "::1:1", "", "", "::/64"}, // ":1" is part of the address
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tc.peer
		if tc.field != "" {
			r.Header.Set(tc.field, tc.value)
		}
		key, err := tc.c.ByIP(perAddress)(r)
		require.NoError(t, err)
		require.Equal(t, tc.want, key.ID, "%+v", tc)
	}
	for _, peer := range []string{
		"[2001:db8:1:2:3::4", "192.0.2.01", "192.0.2.1 ", "192.0.2.1, 192.0.2.2", "192.0.2.0/24", "192.0.2.1:",
		"192.0.2.1:http", "192.0.2.1:65536", "192.0.2.1:1:1", "192.0.2.256:1", "1:2:3:4:5:6:7:8:80", "@", "", "<nil>",
	} {
		_, err := trusting.ByIP(perAddress)(&http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {victim}}})
		require.ErrorIs(t, err, rules.ErrNoID, peer)
	}
}

// A client on a Unix socket has the id "unix", unless a trusted proxy names its
// address. RemoteAddr does not matter, because the client chooses it. The id
// need not fit the IDFormat, and other clients cannot send it.
func TestUnixSocket(t *testing.T) {
	byHeader := ByHeader(perIP, "X-Forwarded-For")
	trusting := ClientAddress{TrustUnix: true}.ByIP(perIP)
	for name, tc := range map[string]struct {
		key  KeyFunc
		sent string
		over net.Addr
		want string // "" is 400
	}{
		"not trusted": {ByIP(perIP), victim, &net.UnixAddr{}, "unix"},
		"proxies are trusted": {ClientAddress{TrustedProxies: behindProxies}.ByIP(perIP), attacker,
			&net.UnixAddr{}, "unix"},
		"trusted":                   {trusting, victim, &net.UnixAddr{}, victim},
		"trusted, says nothing":     {trusting, "", &net.UnixAddr{}, "unix"},
		"first of":                  {rules.FirstOf(ByHeader(perIP, "X-Id"), ByIP(perIP)), "", &net.UnixAddr{}, "unix"},
		"written, not unix":         {byHeader, "UNIX", &net.UnixAddr{}, ""},
		"written, over the network": {byHeader, "unix", &net.TCPAddr{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			r := httptest.NewRequest("GET", "/?status=200", nil)
			r.RemoteAddr = proxy + ":80" // the name of the client's socket
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, tc.over))
			if tc.sent != "" {
				r.Header.Set("X-Forwarded-For", tc.sent)
			}
			w := answerTo(Middleware(lim, nil, Rule{Key: tc.key})(http.HandlerFunc(status)), r)
			require.Equal(t, tc.want == "", w.Code == 400)
			require.Equal(t, tc.want == "unix", left(t, lim, perIP.Key("unix")) == 4)
			require.Equal(t, tc.want == victim, left(t, lim, perIP.Key(victim)) == 4)
			require.EqualValues(t, 5, left(t, lim, perIP.Key(proxy)))
		})
	}
	t.Run("net/http says so", func(t *testing.T) {
		t.Chdir(t.TempDir())
		l, err := net.Listen("unix", "s")
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.True(t, isUnix(r.Context()))
		})}
		go srv.Serve(l)
		defer srv.Close()
		dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", "s") }
		client := http.Client{Transport: &http.Transport{DialContext: dial}}
		res, err := client.Get("http://server/")
		require.NoError(t, err)
		require.Equal(t, 200, res.StatusCode)
	})
}

// ID is what ByIP has, for an id with more parts.
func TestClientID(t *testing.T) {
	for from, want := range map[string]string{"192.0.2.1:5": "192.0.2.1", "[2001:db8::1:2]:5": "2001:db8::/64"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = from
		id, err := ClientAddress{}.ID(r)
		require.NoError(t, err)
		require.Equal(t, want, id)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "nobody"
	require.ErrorIs(t, errorOf(ClientAddress{}.ID(r)), rules.ErrNoID)
}

// What RemoteAddr has after an IPv4 address is a port, or there is no address.
func TestPortOfPeer(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:1234": "192.0.2.1", "192.0.2.1": "192.0.2.1", "192.0.2.1:65535": "192.0.2.1",
		"192.0.2.1:65536": "", "192.0.2.1:x": "", "192.0.2.1:": "", "192.0.2.1:1:2": "", "192.0.2.01:80": "", "192.0.2.256:80": "", "192.0.2:80": "",
		"[::ffff:192.0.2.1]:80": "192.0.2.1",
	} {
		key, err := ByIP(perAddress)(&http.Request{RemoteAddr: remote})
		require.Equal(t, want, key.ID, remote)
		require.Equal(t, want == "", err != nil, remote)
	}
}

// What ByIP remembers of networks belongs to that network and no other.
func TestByIPNetworks(t *testing.T) {
	clients := ClientAddress{IPv4Bits: 24}
	byIP := clients.ByIP(perAddress)
	r := httptest.NewRequest("GET", "/", nil)
	for range 2 {
		for i := range 2000 {
			for _, addr := range []netip.Addr{
				netip.AddrFrom16([16]byte{0x20, 1, byte(i), byte(i >> 8), 15: byte(i)}), netip.AddrFrom4([4]byte{192, byte(i), byte(i >> 8), byte(i)}),
			} {
				r.RemoteAddr = netip.AddrPortFrom(addr, 80).String()
				key, err := byIP(r)
				require.NoError(t, err)
				require.Equal(t, perAddress.Prefix(addr, 24, 64), key)
				id, err := clients.ID(r)
				require.NoError(t, err)
				require.Equal(t, key.ID, id)
			}
		}
	}
}
