package httplimit

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// askedToWait returns how long a response asks the client to stay away, or 0.
func askedToWait(res *http.Response, now time.Time) (wait time.Duration) {
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		for _, value := range res.Header["Retry-After"] {
			wait = max(wait, retryAfter(value, res.Header.Get("Date"), now))
		}
	}
	return max(wait, nothingLeft(res.Header["Ratelimit"]))
}

// longest stands for every longer time.
const longest = 100 * 365 * 24 * time.Hour

func ofSeconds(n int64) time.Duration {
	return time.Duration(max(0, min(n, int64(longest/time.Second)))) * time.Second
}

// retryAfter reads a Retry-After field: seconds, or a date. A date is compared
// to the server's own clock, if the response has a Date.
func retryAfter(value, date string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value != "" && strings.Trim(value, "0123456789") == "" {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil { // too large for an int64
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

// nothingLeft returns how long a RateLimit field says that nothing is left, as
// in draft-ietf-httpapi-ratelimit-headers-11. A malformed field is ignored, as
// RFC 9651 demands.
func nothingLeft(lines []string) (wait time.Duration) {
	rest := strings.TrimLeft(strings.Join(lines, ","), " ")
	for more := ""; rest != "" || more != ""; {
		item := listItem().FindStringSubmatch(rest)
		if item == nil {
			return 0
		}
		params := map[string]int64{leftParam: -1, resetParam: -1}
		for _, p := range parameter().FindAllStringSubmatch(item[1], -1) {
			n, err := strconv.ParseInt(p[2], 10, 64)
			if err != nil {
				n = -1 // of another type, which says nothing
			}
			params[";"+p[1]+"="] = n
		}
		if left, reset := params[leftParam], params[resetParam]; left == 0 && reset > 0 {
			wait = max(wait, ofSeconds(reset))
		}
		rest, more = rest[len(item[0]):], item[len(item)-1]
	}
	return wait
}

// bareItem matches a value of RFC 9651: a String or Display String, a Byte
// Sequence, a Boolean, a Decimal, an Integer or Date, or a Token.
const bareItem = `(?:%?"(?:[ !#-\[\]-~]|\\["\\])*"|:[A-Za-z0-9+/=]*:|\?[01]|` +
	`-?\d{1,12}\.\d{1,3}|@?-?\d{1,15}|[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_|~\x60-]*)`

// parameter matches a name and an optional value. listItem matches an item with
// its parameters and the comma after it.
var (
	parameter = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`; *([a-z*][a-z0-9_.*-]*)(?:=(` + bareItem + `))?`)
	})
	listItem = sync.OnceValue(func() *regexp.Regexp {
		params := `((?:` + parameter().String() + `)*)`
		return regexp.MustCompile(`^` + bareItem + params + `[ \t]*(?:$|(,)[ \t]*)`)
	})
)
