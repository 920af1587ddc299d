package httplimit

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/spell"
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

	// IPv4Bits and IPv6Bits are the sizes of the networks that count as one client:
	// 1 to 32, and 1 to 128. 0 means the defaults, 32 and 64. An IPv6 client may
	// choose any address in its network. Some providers give each subscriber a /56
	// or a /48.
	IPv4Bits, IPv6Bits int
}

// ByIP finds the bucket of the client's address. The id of an IPv4 client is
// like "192.0.2.1". The id of an IPv6 client is its network, like
// "2001:db8:0:1::/64", and so is that of an IPv4 client with fewer IPv4Bits. If the
// limit's IDFormat takes only addresses, it is "2001:db8:0:1::". A client behind NAT64
// has its IPv4 address, if that is in the well-known prefix 64:ff9b::/96. In a prefix of the network's own, all IPv4 clients
// are one. An override for the client must have the same id. ByIP returns
// rules.ErrNoID if RemoteAddr is not an address, and panics if IPv4Bits or IPv6Bits
// is out of range.
//
// A client on a Unix socket has the id "unix", whatever the IDFormat is, unless
// the socket is trusted and the field has the client's address. RemoteAddr is
// not read, because the client chooses it.
func (c ClientAddress) ByIP(name stint.Name) KeyFunc {
	c = c.withDefaults()
	lately := new(networks)
	return func(r *http.Request) (stint.Key, error) { return c.key(r, name, lately) }
}

// key returns the bucket of the client's address. lately may be nil.
func (c *ClientAddress) key(r *http.Request, name stint.Name, lately *networks) (stint.Key, error) {
	if len(c.TrustedProxies) == 0 && c.IPv4Bits == 32 {
		n := spell.LeadingIPv4(r.RemoteAddr)
		if n > 0 && (n == len(r.RemoteAddr) || isPort(r.RemoteAddr[n:])) && !isUnix(r.Context()) {
			return name.Key(r.RemoteAddr[:n]), nil
		}
	}
	addr, node, unix := c.of(r)
	switch {
	case addr.Is4() && c.IPv4Bits == 32:
		if n := spell.LeadingIPv4(node); n > 0 && (n == len(node) || node[n] == ':') {
			return name.Key(node[:n]), nil
		}
		return name.Key(addr.String()), nil
	case addr.IsValid():
		return c.networkKey(name, addr, lately), nil
	case unix:
		return name.Key(rules.Unix), nil
	}
	return stint.Key{}, rules.ErrNoID
}

// networks has the keys of networks, because the text of a network is not a part of the
// address.
type networks = recent[netip.Prefix, stint.Key]

// networkKey returns the key of an address's network.
func (c *ClientAddress) networkKey(name stint.Name, addr netip.Addr, lately *networks) stint.Key {
	bits := c.IPv6Bits
	if addr.Is4() {
		bits = c.IPv4Bits
	}
	prefix, _ := addr.Prefix(bits) // valid, because the bits are in range
	key := func(netip.Prefix) stint.Key { return name.Prefix(addr, c.IPv4Bits, c.IPv6Bits) }
	if lately == nil {
		return key(prefix)
	}
	bytes := prefix.Addr().As16()
	return lately.of(binary.BigEndian.Uint64(bytes[:8])^binary.BigEndian.Uint64(bytes[8:]), prefix, key)
}

// ID returns the id of the client that ByIP uses, without the rest of a Key: an IPv6
// client is its network. Use it in an id with more parts, such as an address and a
// user, in which the address comes last because it may contain colons:
//
//	id, err := clients.ID(r)
//	key := LoginsPerUserAndAddress.Key(user + ":" + id)
//
// The error is that of ByIP.
func (c ClientAddress) ID(r *http.Request) (string, error) {
	c = c.withDefaults()
	key, err := c.key(r, 0, nil)
	return key.ID, err
}

// Of returns the client's address. It has no zone, and an IPv6 address that stands for
// an IPv4 address becomes that one, as in stint.Name.IP. The result is not valid if RemoteAddr is not
// an address. For a request over a Unix socket RemoteAddr is not read: the
// result is not valid if the socket is not trusted, or if the field has no
// address. Of panics if IPv4Bits or IPv6Bits is out of range.
func (c ClientAddress) Of(r *http.Request) netip.Addr {
	c = c.withDefaults()
	addr, _, _ := c.of(r)
	return addr
}

func (c ClientAddress) withDefaults() ClientAddress {
	proxies := make([]netip.Prefix, 0, len(c.TrustedProxies))
	for _, p := range c.TrustedProxies {
		proxies = append(proxies, spell.Network(p))
	}
	c.TrustedProxies = proxies
	c.Field = http.CanonicalHeaderKey(cmp.Or(c.Field, "X-Forwarded-For"))
	c.IPv4Bits, c.IPv6Bits = cmp.Or(c.IPv4Bits, 32), cmp.Or(c.IPv6Bits, 64)
	if c.IPv4Bits < 1 || c.IPv4Bits > 32 || c.IPv6Bits < 1 || c.IPv6Bits > 128 {
		panic(fmt.Sprintf("httplimit: ClientAddress: IPv4Bits is %d, want 1 to 32; IPv6Bits is %d, want 1 to 128",
			c.IPv4Bits, c.IPv6Bits))
	}
	return c
}

// of returns the client's address, and where it was read: RemoteAddr, or an entry
// of the field. If the request came over a Unix socket that is not trusted, or whose
// field has no address, unix is true instead.
func (c *ClientAddress) of(r *http.Request) (addr netip.Addr, node string, unix bool) {
	if isUnix(r.Context()) {
		if !c.TrustUnix {
			return netip.Addr{}, "", true
		}
	} else if addr, _ = parseNode(r.RemoteAddr); !c.trusts(addr) {
		return addr, r.RemoteAddr, false
	}
	for entry := range fromRight(r.Header[c.Field], c.Field == "Forwarded") {
		if entry = strings.Trim(entry, " \t"); entry == "" { // RFC 9110, 5.6.1
			continue
		}
		said, ok := parseEntry(entry, c.Field == "Forwarded")
		if !ok {
			break
		}
		addr, node = said, entry
		if !c.trusts(addr) {
			break
		}
	}
	return addr, node, !addr.IsValid()
}

// isPort reports whether a text is a colon and the port of a peer. RemoteAddr has none
// if other middleware has written it.
func isPort(text string) bool {
	n := 0
	for i := 1; i < len(text); i++ {
		c := text[i]
		if n = 10*n + int(c-'0'); c < '0' || c > '9' || n > math.MaxUint16 {
			return false
		}
	}
	return len(text) > 1 && text[0] == ':'
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
