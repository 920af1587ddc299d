package replay

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/spell"
)

// clients names the client that a log has, in whatever field it is.
type clients struct {
	ipv6Bits int
	proxies  []netip.Prefix
	note     func(string)
	noted    bool
}

// id returns the id of the bucket that httplimit.ByIP finds for the address in a
// text: it has no port, and IPv6 is a network. Of a list it is the last address
// that is not a proxy's. Other text is an id as it is. It may use buffer.
func (c *clients) id(buffer, text []byte) []byte {
	var client netip.Addr
	rest := text
	for more := true; more; {
		comma := bytes.LastIndexByte(rest, ',')
		addr, ok := parseAddress(bytes.Trim(bytes.TrimPrefix(rest[comma+1:], []byte("%20")), " \t")) // CloudFront escapes spaces
		if !ok {
			break
		}
		client, rest = spell.Address(addr), rest[:max(0, comma)]
		more = comma >= 0 && slices.ContainsFunc(c.proxies, func(p netip.Prefix) bool { return p.Contains(client) })
	}
	if !client.IsValid() {
		return text
	}
	if len(rest) > 0 && c.proxies == nil && !c.noted {
		c.noted = true
		c.note(fmt.Sprintf("of a list of addresses, such as %s, the last one is the client: --proxies names those that are none",
			display.Visible(display.Shortened(string(text), 80))))
	}
	if client.Is4() {
		return client.AppendTo(buffer)
	}
	network, _ := client.Prefix(c.ipv6Bits) // the bits were checked
	return network.AppendTo(buffer)
}

// parseAddress reads an address as logs write it: with a port or without, IPv6 in
// brackets or bare, and after the / of Java.
func parseAddress(text []byte) (netip.Addr, bool) {
	text = bytes.TrimPrefix(text, []byte("/"))
	if addr, err := netip.ParseAddr(string(bytes.Trim(text, "[]"))); err == nil {
		return addr, true
	}
	at, err := netip.ParseAddrPort(string(text))
	return at.Addr(), err == nil
}

// sender returns the address after the last "from" of a message, or else the first
// one if it may be anywhere. A user name may contain "from" too, but sshd writes
// the address after the name.
func sender(message []byte, anywhere bool) (addr []byte) {
	if i := bytes.LastIndex(message, []byte("from ")); i == 0 || i > 0 && message[i-1] == ' ' {
		word, _, _ := bytes.Cut(message[i+len("from "):], []byte(" "))
		addr = firstAddress(word)
	}
	if addr == nil && anywhere {
		addr = firstAddress(message)
	}
	return addr
}

// firstAddress returns the first address in a text.
func firstAddress(text []byte) []byte {
	for word := range bytes.FieldsFuncSeq(text, func(c rune) bool { return strings.ContainsRune(" \t,;=()[]\"'<>|#@", c) }) {
		word = bytes.TrimSuffix(bytes.TrimSuffix(word, []byte(".")), []byte(":"))
		if addr, ok := parseAddress(word); ok && !addr.IsUnspecified() {
			return word
		}
	}
	return nil
}
