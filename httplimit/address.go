package httplimit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/stint-go/stint"
)

// ClientAddress finds the address that a request is from. The zero ClientAddress believes nobody: it is the socket's peer, as
// RemoteAddr has it, with a port or without. Where other middleware writes into RemoteAddr what a header field says, from
// whomever it comes, all that is said here is in vain: leave such middleware out.
//
// If the peer is a trusted proxy, the field that the proxies write is read from its right end, which the nearest of them
// wrote, to the first address that is not a trusted proxy's. What stands further left was sent by that client, and
// says nothing. Where an entry is not an address, the one that was read before it is the answer: the last one that
// is certain.
type ClientAddress struct {
	// TrustedProxies are the networks that requests are believed about.
	TrustedProxies []netip.Prefix

	// TrustUnix says that what connects over a Unix socket is a proxy to be believed.
	TrustUnix bool

	// Field is the one that the proxies write: "Forwarded" (RFC 7239), or a list of addresses such as the default,
	// "X-Forwarded-For". No other one is looked at.
	Field string

	// IPv6Bits is the size of the network that counts as one client, which can choose addresses in it as it likes; 0
	// means 64. 56 and 48 are also given out to one subscriber.
	IPv6Bits int
}

// unixID is the id of everyone who connects over a Unix socket.
const unixID = "unix"

// ByIP finds the bucket of the client's address: "192.0.2.1", or, for IPv6, of its network: "2001:db8:0:1::/64" (as
// "2001:db8:0:1::" where the limit's IDFormat takes addresses only). Over a Unix socket that is not trusted the id is "unix",
// whatever the IDFormat; RemoteAddr is not looked at there, for clients choose it.
//
// An override for an IPv6 client is one for its network, and its id is written in the same way: one for an address inside the
// network is never found, unless IPv6Bits is 128.
func (c ClientAddress) ByIP(name stint.Name) KeyFunc {
	c = c.withDefaults()
	return func(r *http.Request) (stint.Key, error) {
		if id, ok := peerIPv4(r.RemoteAddr); ok && len(c.TrustedProxies) == 0 && !isUnix(r.Context()) {
			return name.Key(id), nil
		}
		addr, unix := c.of(r)
		switch {
		case addr.Is4():
			return name.IP(addr), nil
		case addr.IsValid():
			return name.Prefix(addr, 32, c.IPv6Bits), nil
		case unix:
			return name.Key(unixID), nil
		}
		return stint.Key{}, ErrNoID
	}
}

// peerIPv4 returns the address of "192.0.2.1:1234" as it stands there, where that is how netip would write it: to parse it, and to
// write it again, takes longer than the decision.
func peerIPv4(remote string) (id string, ok bool) {
	ends, most, n, digits := "...:", 255, 0, 0
	for i := range len(remote) {
		switch c := remote[i]; {
		case isDigit(c) && (n > 0 || digits == 0):
			n, digits = 10*n+int(c-'0'), digits+1
			if n > most {
				return "", false
			}
		case digits > 0 && ends != "" && c == ends[0]:
			n, digits, ends = 0, 0, ends[1:]
			if ends == "" {
				id, most = remote[:i], 65535
			}
		default:
			return "", false
		}
	}
	return id, ends == "" && digits > 0
}

// Of returns the client's address, without a zone and not mapped. It is not valid where the request came over a Unix socket
// that is not trusted.
func (c ClientAddress) Of(r *http.Request) netip.Addr {
	c = c.withDefaults()
	addr, _ := c.of(r)
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
	c.Field = http.CanonicalHeaderKey(c.Field)
	if c.Field == "" {
		c.Field = "X-Forwarded-For"
	}
	if c.IPv6Bits == 0 {
		c.IPv6Bits = 64
	}
	if c.IPv6Bits < 1 || c.IPv6Bits > 128 {
		panic(fmt.Sprintf("httplimit: ClientAddress: IPv6Bits is %d, want 1 to 128", c.IPv6Bits))
	}
	return c
}

// of returns the client's address, if it has one, and whether it came over a Unix socket instead.
func (c *ClientAddress) of(r *http.Request) (addr netip.Addr, unix bool) {
	if isUnix(r.Context()) {
		if !c.TrustUnix {
			return netip.Addr{}, true
		}
	} else if addr = peer(r.RemoteAddr); !c.trusts(addr) {
		return addr, false
	}
	for entry := range fromRight(r.Header[c.Field], c.Field == "Forwarded") {
		said, ok := parseEntry(entry, c.Field == "Forwarded")
		if !ok {
			break
		}
		addr = said
		if !c.trusts(addr) {
			break
		}
	}
	return addr, !addr.IsValid()
}

// peer returns the address of "192.0.2.1:1234", or of "192.0.2.1", which is what middleware writes there.
func peer(remote string) netip.Addr {
	if withPort, err := netip.ParseAddrPort(remote); err == nil {
		return plain(withPort.Addr())
	}
	addr, _ := netip.ParseAddr(remote)
	return plain(addr)
}

func (c *ClientAddress) trusts(addr netip.Addr) bool {
	for _, p := range c.TrustedProxies {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// isUnix reports whether the request came over a Unix socket. The peer of one has the name that it has given itself, if any:
// it may read like an address.
func isUnix(ctx context.Context) bool {
	_, ok := ctx.Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return ok
}

func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// fromRight yields the entries of a list that may be spread over several lines, the last one first. Commas within quotes
// do not separate entries.
func fromRight(lines []string, quotes bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := len(lines) - 1; i >= 0; i-- {
			line, end, quoted := lines[i], len(lines[i]), false
			for j := end - 1; j >= 0; j-- {
				switch {
				case line[j] == '"' && quotes && !escaped(line, j):
					quoted = !quoted
				case line[j] == ',' && !quoted:
					if !yield(line[j+1 : end]) {
						return
					}
					end = j
				}
			}
			if !yield(line[:end]) {
				return
			}
		}
	}
}

// escaped reports whether an odd number of backslashes stands before s[i].
func escaped(s string, i int) bool {
	before := strings.TrimRight(s[:i], `\`)
	return (i-len(before))%2 == 1
}

// parseEntry returns the address that an entry names.
func parseEntry(entry string, forwarded bool) (netip.Addr, bool) {
	entry = strings.Trim(entry, " \t")
	if forwarded {
		node, ok := forwardedFor(entry)
		if !ok || strings.Count(node, ":") > 1 && node[0] != '[' {
			return netip.Addr{}, false // RFC 7239 wants brackets around IPv6
		}
		entry = node
	}
	return parseNode(entry)
}

// parseNode reads an address: bare, or with a port, as some proxies write it; IPv6 also in brackets.
func parseNode(node string) (netip.Addr, bool) {
	if inner, ok := strings.CutPrefix(node, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			addr, err := netip.ParseAddr(inner)
			return plain(addr), err == nil && addr.Is6()
		}
	}
	if addr, err := netip.ParseAddr(node); err == nil {
		return plain(addr), true
	}
	withPort, err := netip.ParseAddrPort(node)
	return plain(withPort.Addr()), err == nil
}

// forwardedFor returns the one "for" parameter of an element of a Forwarded field, which is well-formed as a whole.
func forwardedFor(element string) (node string, ok bool) {
	seen := make(map[string]bool, 4)
	for rest := element; ; {
		name, after, found := strings.Cut(rest, "=")
		name = strings.ToLower(name)
		if !found || !isToken(name) || seen[name] {
			return "", false
		}
		seen[name] = true
		value, after, valid := forwardedValue(after)
		if !valid {
			return "", false
		}
		if name == "for" {
			node = value
		}
		if after == "" {
			return node, node != ""
		}
		if rest, found = strings.CutPrefix(after, ";"); !found {
			return "", false
		}
	}
}

// forwardedValue reads a token or a quoted string, and returns what follows it.
func forwardedValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexByte(s, ';')
		if end < 0 {
			end = len(s)
		}
		return s[:end], s[end:], isToken(s[:end])
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case c < ' ' && c != '\t' || c == 0x7f:
			return "", "", false
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return s != ""
}
