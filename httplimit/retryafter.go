package httplimit

import (
	"errors"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// askedToWait returns how long a response asks the client to stay away, or 0.
// It also reports whether the response is a refusal because of a rate limit.
func askedToWait(res *http.Response, now time.Time) (wait time.Duration, refused bool) {
	tooMany := res.StatusCode == http.StatusTooManyRequests
	now = serverTime(res.Header.Get("Date"), now)
	wait, empty := nothingLeft(res.Header[stateField])
	noCount := time.Duration(0) // a Reset without a Remaining
	for _, prefix := range [...]string{"X-Ratelimit-", "Ratelimit-", "X-Rate-Limit-"} {
		reset := until(res.Header.Get(prefix+"Reset"), now)
		switch left, err := strconv.ParseFloat(strings.TrimSpace(res.Header.Get(prefix+"Remaining")), 64); {
		case err != nil:
			noCount = max(noCount, reset)
		case left < 1:
			wait, empty = max(wait, reset), true
		}
	}
	after, given := res.Header["Retry-After"]
	refused = tooMany || res.StatusCode == http.StatusForbidden && (empty || given)
	if refused || res.StatusCode == http.StatusServiceUnavailable {
		wait = max(wait, untilLast(after, now))
	}
	if tooMany && wait == 0 {
		wait = noCount
	}
	return wait, refused
}

// longest replaces every longer time.
const longest = 100 * 365 * 24 * time.Hour

func ofSeconds(n float64) time.Duration {
	return time.Duration(min(n, longest.Seconds()) * float64(time.Second))
}

// serverTime returns the time by the server's clock. The Date of the response
// has it without the fraction of a second. If the client's clock shows that
// second or the next one, serverTime returns the client's time, which is more
// exact.
func serverTime(date string, now time.Time) time.Time {
	theirs, err := http.ParseTime(date)
	if err != nil || !now.Before(theirs) && now.Before(theirs.Add(2*time.Second)) {
		return now
	}
	return theirs
}

// until reads a Retry-After or Reset field: seconds, perhaps with a fraction, a
// date, or a Unix time in seconds or milliseconds. A number that is too large
// for seconds is a Unix time. It returns 0 for a time that is over, and for a
// value that it cannot read.
func until(value string, now time.Time) time.Duration {
	const epoch, epochMilli = 1e8, 1e11 // Unix times in 1973
	value = strings.TrimSpace(value)
	var at time.Time
	switch n, ok := decimal(value); {
	case !ok:
		var err error
		if at, err = http.ParseTime(value); err != nil {
			return 0
		}
	case n < epoch:
		return ofSeconds(n)
	case n < epochMilli:
		whole, fraction := math.Modf(n)
		at = time.Unix(int64(whole), int64(fraction*1e9))
	default:
		at = time.UnixMilli(int64(min(n, 1e15)))
	}
	return max(0, at.Sub(now))
}

// untilLast returns the longest time that lines of Retry-After ask for. A proxy may
// join several to a list. A date has a comma of its own.
func untilLast(lines []string, now time.Time) (wait time.Duration) {
	for _, line := range lines {
		before := ""
		for part := range strings.SplitSeq(line, ",") {
			wait = max(wait, until(part, now), until(before+","+part, now))
			before = part
		}
	}
	return wait
}

// decimal reads a number of digits with at most one point.
func decimal(s string) (n float64, ok bool) {
	if strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil || errors.Is(err, strconv.ErrRange)
}

// unpadded is a byte sequence in base64 without the padding. Text that looks like
// one inside a string is part of a string with "=", too.
var unpadded = regexp.MustCompile(`=:(?:[0-9A-Za-z+/]{4})*[0-9A-Za-z+/]{2,3}:`)

// pad adds the padding, which RFC 9651 asks for but lets parsers do without.
func pad(sequence string) string {
	digits := len(sequence) - len("=::")
	return strings.TrimSuffix(sequence, ":") + "=="[:4-digits%4] + ":"
}

// nothingLeft reports whether a RateLimit field has a policy with nothing left,
// and for how long, as in draft-ietf-httpapi-ratelimit-headers-11. It ignores a
// malformed field, as RFC 9651 demands.
func nothingLeft(lines []string) (wait time.Duration, empty bool) {
	field := unpadded.ReplaceAllStringFunc(strings.Join(lines, ","), pad)
	policies, err := httpsfv.UnmarshalList([]string{field})
	if err != nil {
		return 0, false
	}
	for _, policy := range policies {
		item, ok := policy.(httpsfv.Item)
		if !ok {
			continue
		}
		left, _ := item.Params.Get(strings.Trim(leftParam, ";="))
		if left, ok := left.(int64); ok && left == 0 {
			reset, _ := item.Params.Get(strings.Trim(resetParam, ";="))
			seconds, _ := reset.(int64) // 0 if it is of another type
			wait, empty = max(wait, ofSeconds(float64(seconds))), true
		}
	}
	return wait, empty
}
