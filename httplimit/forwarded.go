package httplimit

import (
	"iter"
	"net/netip"
	"regexp"
	"strings"
	"sync"

	"github.com/stint-go/stint/internal/spell"
)

// fromRight yields the entries of a list, which may have several lines. The
// last entry comes first. If quotes is set, commas within quotes do not
// separate entries.
func fromRight(lines []string, quotes bool) iter.Seq[string] {
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

// parseEntry returns the address of an entry, and whether it has one.
func parseEntry(entry string, forwarded bool) (netip.Addr, bool) {
	if forwarded {
		node, ok := forwardedFor(entry)
		if !ok || strings.Count(node, ":") > 1 && node[0] != '[' {
			return netip.Addr{}, false // RFC 7239 demands brackets around IPv6
		}
		entry = node
	}
	return parseNode(entry)
}

// parseNode reads an address: bare, in brackets if it is IPv6, or with a port.
// RemoteAddr has a port, unless other middleware has written it.
func parseNode(node string) (netip.Addr, bool) {
	if inner, ok := strings.CutPrefix(node, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			addr, err := netip.ParseAddr(inner)
			return spell.Address(addr), err == nil && addr.Is6()
		}
	}
	if strings.HasPrefix(node, "[") || strings.Count(node, ":") == 1 { // not a bare IPv6 address
		if withPort, err := netip.ParseAddrPort(node); err == nil {
			return spell.Address(withPort.Addr()), true
		}
	}
	addr, err := netip.ParseAddr(node)
	return spell.Address(addr), err == nil
}

// token is a token of RFC 9110. A forwardedPair is a parameter of a Forwarded
// field and the separator after it. Its value is a token or a quoted string.
const token = "[!#$%&'*+.^_`|~0-9A-Za-z-]+"

var (
	forwardedPair = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(` + token + `)=(?:(` + token + `)|"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\(?s:.))*)")(;|$)`)
	})
	quotedPair = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\\(?s:(.))`) })
)

// forwardedFor returns the "for" parameter of an element of a Forwarded field.
// ok is false if the element is malformed or repeats a parameter.
func forwardedFor(element string) (node string, ok bool) {
	seen := make(map[string]bool, 4)
	for more := ";"; more != ""; {
		pair := forwardedPair().FindStringSubmatch(element)
		if pair == nil {
			return "", false
		}
		name := strings.ToLower(pair[1])
		if seen[name] {
			return "", false
		}
		seen[name] = true
		if name == "for" {
			node = pair[2] + quotedPair().ReplaceAllString(pair[3], "$1")
		}
		element, more = element[len(pair[0]):], pair[4]
	}
	return node, node != ""
}
