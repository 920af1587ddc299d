package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// askedToWait returns for how long a response asks the client to stay away: 0 where it does not.
func askedToWait(res *http.Response, now time.Time) (wait time.Duration) {
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		for _, value := range res.Header["Retry-After"] {
			wait = max(wait, retryAfter(value, res.Header.Get("Date"), now))
		}
	}
	return max(wait, nothingLeft(res.Header["Ratelimit"]))
}

// longest is what a time that is too long to count is taken for.
const longest = 100 * 365 * 24 * time.Hour

func ofSeconds(n int64) time.Duration {
	return time.Duration(max(0, min(n, int64(longest/time.Second)))) * time.Second
}

// retryAfter reads a Retry-After field: seconds, or a date, which is compared to the server's own clock where it tells
// the time.
func retryAfter(value, date string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value != "" && allBytes(value, isDigit) {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil { // more than fit
			return longest
		}
		return ofSeconds(n)
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if theirs, err := http.ParseTime(date); err == nil {
		now = theirs
	}
	return max(0, until.Sub(now))
}

// nothingLeft returns the longest time for which a RateLimit field (draft-ietf-httpapi-ratelimit-headers-11) says that
// nothing is left. A field that is not well-formed says nothing, as RFC 9651 wants it.
func nothingLeft(lines []string) (wait time.Duration) {
	p := fieldParser{strings.Join(lines, ",")}
	p.space(" ")
	for p.rest != "" {
		left, reset, ok := p.policy()
		if !ok {
			return 0
		}
		if left == 0 && reset > 0 {
			wait = max(wait, ofSeconds(reset))
		}
		p.space(" \t")
		if p.rest == "" {
			return wait
		}
		if !p.skip(',') {
			return 0
		}
		p.space(" \t")
		if p.rest == "" {
			return 0 // RFC 9651: no comma at the end
		}
	}
	return wait
}

// fieldParser reads a List of RFC 9651.
type fieldParser struct{ rest string }

func (p *fieldParser) space(set string) { p.rest = strings.TrimLeft(p.rest, set) }

func (p *fieldParser) skip(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// policy reads an item, which has a String or a Token for its name, and its parameters r and t: -1 where they are missing, or not
// of the type they should be.
func (p *fieldParser) policy() (left, reset int64, ok bool) {
	left, reset = -1, -1
	if _, ok := p.bareItem(); !ok {
		return 0, 0, false
	}
	for p.skip(';') {
		p.space(" ")
		name := p.take(isKeyByte)
		if name == "" || !isKeyStart(name[0]) {
			return 0, 0, false
		}
		value := int64(-1)
		if p.skip('=') {
			if value, ok = p.bareItem(); !ok {
				return 0, 0, false
			}
		}
		switch name {
		case leftParam[1:2]:
			left = value
		case resetParam[1:2]:
			reset = value
		}
	}
	return left, reset, true
}

// bareItem reads one, and returns its value where it is an Integer that is not negative; otherwise -1.
func (p *fieldParser) bareItem() (n int64, ok bool) {
	if p.rest == "" {
		return 0, false
	}
	switch c := p.rest[0]; {
	case c == '"':
		return -1, p.quoted()
	case c == ':':
		end := strings.IndexByte(p.rest[1:], ':')
		if end < 0 || !allBytes(p.rest[1:1+end], isBase64Byte) {
			return 0, false
		}
		p.rest = p.rest[end+2:]
		return -1, true
	case c == '?':
		p.rest = p.rest[1:]
		return -1, p.skip('0') || p.skip('1')
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	case c == '@': // a Date
		p.rest = p.rest[1:]
		date := p.rest
		_, ok := p.number()
		return -1, ok && !strings.Contains(date[:len(date)-len(p.rest)], ".")
	case c == '%': // a Display String; what is wrong with its UTF-8 is not looked for
		p.rest = p.rest[1:]
		return -1, strings.HasPrefix(p.rest, `"`) && p.quoted()
	case c == '*' || isAlpha(c):
		p.take(isTokenByte)
		return -1, true
	}
	return 0, false
}

// quoted reads a String.
func (p *fieldParser) quoted() bool {
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return true
		case c == '\\':
			i++
			if i == len(p.rest) || p.rest[i] != '"' && p.rest[i] != '\\' {
				return false
			}
		case c < ' ' || c > '~':
			return false
		}
	}
	return false
}

// number reads an Integer or a Decimal.
func (p *fieldParser) number() (n int64, ok bool) {
	negative := p.skip('-')
	whole := p.take(isDigit)
	if whole == "" || len(whole) > 15 {
		return 0, false
	}
	if p.skip('.') {
		fraction := p.take(isDigit)
		return -1, fraction != "" && len(fraction) <= 3 && len(whole) <= 12
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if negative && n > 0 {
		n = -1
	}
	return n, err == nil
}

// take reads as many bytes as are of a kind.
func (p *fieldParser) take(kind func(byte) bool) string {
	n := 0
	for n < len(p.rest) && kind(p.rest[n]) {
		n++
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

func allBytes(s string, kind func(byte) bool) bool {
	p := fieldParser{s}
	p.take(kind)
	return p.rest == ""
}

func isDigit(c byte) bool    { return '0' <= c && c <= '9' }
func isLower(c byte) bool    { return 'a' <= c && c <= 'z' }
func isAlpha(c byte) bool    { return isLower(c | 0x20) }
func isKeyStart(c byte) bool { return isLower(c) || c == '*' }
func isKeyByte(c byte) bool  { return isKeyStart(c) || isDigit(c) || strings.IndexByte("_-.", c) >= 0 }

func isTokenByte(c byte) bool {
	return isAlpha(c) || isDigit(c) || strings.IndexByte(":/!#$%&'*+-.^_`|~", c) >= 0
}

func isBase64Byte(c byte) bool { return isAlpha(c) || isDigit(c) || strings.IndexByte("+/=", c) >= 0 }
