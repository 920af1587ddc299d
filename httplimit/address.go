package httplimit

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// ClientAddress finds the address of a client, directly connected or behind
// proxies. The zero ClientAddress trusts no proxy: the client is the peer of
// the connection, as in RemoteAddr, with or without a port.
//
// If the peer is a trusted proxy, the field that proxies write is read from its
// right end. The rightmost entry comes from the nearest proxy. The client is
// the first entry that is not a trusted proxy. Entries further left come from
// the client and are ignored. If an entry is not an address, the client is
// the entry read before it. An empty entry is ignored.
//
// Other middleware must not write a header field into RemoteAddr. ClientAddress
// would believe the value, even if the client sent the field.
type ClientAddress struct {
	// TrustedProxies are the networks of your proxies.
	TrustedProxies []netip.Prefix

	// TrustUnix says that the peer on a Unix socket is a trusted proxy.
	TrustUnix bool

	// Field is the field that your proxies write: "Forwarded" (RFC 7239), or
	// one with a list of addresses. The default is "X-Forwarded-For". No other
	// field is read.
	Field string

	// IPv6Bits is the size of the network that counts as one client: 1 to 128,
	// or 0 for the default of 64. A client may choose any address in its
	// network. Some providers give each subscriber a /56 or a /48.
	IPv6Bits int
}

// ByIP finds the bucket of the client's address. The id of an IPv4 client is
// like "192.0.2.1". The id of an IPv6 client is its network, like
// "2001:db8:0:1::/64", or "2001:db8:0:1::" if the limit's IDFormat takes only
// addresses. An override for the client must have the same id. ByIP returns
// rules.ErrNoID if RemoteAddr is not an address, and panics if IPv6Bits is out of
// range.
//
// A client on a Unix socket has the id "unix", whatever the IDFormat is, unless
// the socket is trusted and the field has the client's address. RemoteAddr is
// not read, because the client chooses it.
func (c ClientAddress) ByIP(name stint.Name) KeyFunc {
	c = c.withDefaults()
	return func(r *http.Request) (stint.Key, error) {
		addr, peer, unix := c.of(r)
		switch {
		case addr.Is4():
			if host, _, _ := strings.Cut(r.RemoteAddr, ":"); peer && strings.Contains(host, ".") {
				return name.Key(host), nil // netip reads an IPv4 address in no other spelling
			}
			return name.Key(addr.String()), nil
		case addr.IsValid():
			return name.Prefix(addr, 32, c.IPv6Bits), nil
		case unix:
			return name.Key(rules.Unix), nil
		}
		return stint.Key{}, rules.ErrNoID
	}
}

// Of returns the client's address. It has no zone, and an IPv4-mapped IPv6
// address becomes an IPv4 address. The result is not valid if RemoteAddr is not
// an address. For a request over a Unix socket RemoteAddr is not read: the
// result is not valid if the socket is not trusted, or if the field has no
// address. Of panics if IPv6Bits is out of range.
func (c ClientAddress) Of(r *http.Request) netip.Addr {
	c = c.withDefaults()
	addr, _, _ := c.of(r)
	return addr
}

func (c ClientAddress) withDefaults() ClientAddress {
	proxies := make([]netip.Prefix, 0, len(c.TrustedProxies))
	for _, p := range c.TrustedProxies {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		proxies = append(proxies, p.Masked())
	}
	c.TrustedProxies = proxies
	c.Field = http.CanonicalHeaderKey(cmp.Or(c.Field, "X-Forwarded-For"))
	c.IPv6Bits = cmp.Or(c.IPv6Bits, 64)
	if c.IPv6Bits < 1 || c.IPv6Bits > 128 {
		panic(fmt.Sprintf("httplimit: ClientAddress: IPv6Bits is %d, want 1 to 128", c.IPv6Bits))
	}
	return c
}

// of returns the client's address. peer is true if it is that of RemoteAddr. If the
// request came over a Unix socket that is not trusted, or whose field has no
// address, unix is true instead.
func (c *ClientAddress) of(r *http.Request) (addr netip.Addr, peer, unix bool) {
	if isUnix(r.Context()) {
		if !c.TrustUnix {
			return netip.Addr{}, false, true
		}
	} else if addr, peer = parseNode(r.RemoteAddr); !c.trusts(addr) {
		return addr, peer, false
	}
	for entry := range fromRight(r.Header[c.Field], c.Field == "Forwarded") {
		if entry = strings.Trim(entry, " \t"); entry == "" { // RFC 9110, 5.6.1
			continue
		}
		said, ok := parseEntry(entry, c.Field == "Forwarded")
		if !ok {
			break
		}
		addr, peer = said, false
		if !c.trusts(addr) {
			break
		}
	}
	return addr, peer, !addr.IsValid()
}

func (c *ClientAddress) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(c.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// isUnix reports whether a request came over a Unix socket. RemoteAddr cannot
// tell, because the name of the client's socket may look like an address.
func isUnix(ctx context.Context) bool {
	_, ok := ctx.Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return ok
}

func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }
