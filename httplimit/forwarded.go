package httplimit

import (
	"iter"
	"net/netip"
	"strings"
)

// fromRight yields the entries of a list in one or more lines, the last entry
// first. If quotes is set, commas within quotes do not separate entries.
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

// parseEntry returns the address of an entry. It is false if there is none.
func parseEntry(entry string, forwarded bool) (netip.Addr, bool) {
	entry = strings.Trim(entry, " \t")
	if forwarded {
		node, ok := forwardedFor(entry)
		if !ok || strings.Count(node, ":") > 1 && node[0] != '[' {
			return netip.Addr{}, false // RFC 7239 demands brackets around IPv6
		}
		entry = node
	}
	return parseNode(entry)
}

// parseNode reads an address: bare, in brackets if it is IPv6, or with a port,
// as some proxies write it.
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

// forwardedFor returns the "for" parameter of an element of a Forwarded field.
// It is false if the element is malformed or repeats a parameter.
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
