package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// dialects are the fields that tell a client how much it has left of a quota: * is
// Limit, Remaining or Reset.
var dialects = fields(
	"X-Ratelimit-*", // GitHub, GitLab, Reddit, Discord, Jira
	"X-Rate-Limit-*",
	"Ratelimit-*",            // draft-ietf-httpapi-ratelimit-headers-06
	"X-Ratelimit-*-Requests", // OpenAI, Azure, Groq, and others with their API
	"X-Ratelimit-*-Tokens",
	"X-Ratelimit-*-Requests-Day", // Cerebras
	"X-Ratelimit-*-Tokens-Minute",
	"Anthropic-Ratelimit-Requests-*",
	"Anthropic-Ratelimit-Tokens-*",
	"Anthropic-Ratelimit-Input-Tokens-*",
	"Anthropic-Ratelimit-Output-Tokens-*",
)

// retryFields tell a client how long to stay away, in this unit if it is a number.
var retryFields = [...]struct {
	name string
	unit time.Duration
}{
	{"Retry-After", time.Second},
	{"Retry-After-Ms", time.Millisecond},      // OpenAI, Azure
	{"X-Ms-Retry-After-Ms", time.Millisecond}, // Azure
}

type dialect struct{ limit, remaining, reset string }

func fields(patterns ...string) (all []dialect) {
	for _, p := range patterns {
		named := func(part string) string { return strings.Replace(p, "*", part, 1) }
		all = append(all, dialect{named("Limit"), named("Remaining"), named("Reset")})
	}
	return all
}

// asked is what a response asks the client for.
type asked struct {
	now     time.Time // by the server's clock
	ok      bool      // the status is below 400
	wait    time.Duration
	empty   bool          // a quota has nothing left
	noCount time.Duration // the longest Reset without a Remaining
}

// askedToWait returns how long a response to a request with this method asks the
// client to stay away, or 0. It also reports whether the response is a refusal
// because of a rate limit, and how the response contradicts itself.
func askedToWait(method string, res *http.Response, now time.Time) (
	wait time.Duration, refused bool, contradiction error,
) {
	h, status := res.Header, res.StatusCode
	a := asked{now: serverTime(h.Get("Date"), now), ok: status < 400}
	a.policies(h[stateField])
	for _, d := range dialects {
		a.quota(h.Get(d.limit), h.Get(d.remaining), h.Get(d.reset))
	}
	given, after := false, time.Duration(0)
	for _, f := range retryFields {
		given = given || len(h[f.name]) > 0
		if !a.ok || status >= 300 && isIdempotent(method) {
			after = max(after, untilLast(h[f.name], a.now, f.unit))
		}
	}
	tooMany := status == http.StatusTooManyRequests
	refused = tooMany || status == http.StatusForbidden && (a.empty || given)
	if reset := cmp.Or(a.wait, a.noCount); isThousandTimes(after, reset) || isThousandTimes(reset, after) {
		a.wait = min(after, reset)
		contradiction = fmt.Errorf("httplimit: Retry-After is %v and Reset %v, so one of them may be in milliseconds: "+
			"obeying the shorter", after, reset)
	} else if a.wait = max(a.wait, after); tooMany && a.wait == 0 {
		a.wait = a.noCount
	}
	return a.wait, refused, contradiction
}

// isThousandTimes reports whether a time is a thousand times another one, which was
// rounded up to a second, or longer.
func isThousandTimes(long, short time.Duration) bool {
	return short > 0 && long >= max(1000*time.Second, 1000*(short-time.Second))
}

// quota takes what a response says of one quota. Less than nothing, or nothing of
// nothing, means that there is no limit, unless the response is an error.
func (a *asked) quota(limit, remaining, reset string) {
	wait := until(reset, a.now, time.Second)
	switch left, err := strconv.ParseFloat(strings.TrimSpace(remaining), 64); {
	case err != nil:
		a.noCount = max(a.noCount, wait)
	case a.ok && (left < 0 || strings.TrimSpace(limit) == "0"):
	case left < 1:
		a.wait, a.empty = max(a.wait, wait), true
	}
}

// isIdempotent reports whether a method is idempotent by RFC 9110. A redirect after
// another one may say when a result is ready, as 202 does.
func isIdempotent(method string) bool {
	switch method {
	case "", "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
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

// until reads a time: a number, perhaps with a fraction, of a unit; a duration such
// as 7m12s; a date; or a Unix time in seconds or milliseconds, which is a number that
// is too large for the unit. It returns 0 for a time that is over, and for a value
// that it cannot read.
func until(value string, now time.Time, unit time.Duration) time.Duration {
	const epoch, epochMilli = 1e8, 1e11 // Unix times in 1973
	value = strings.TrimSpace(value)
	var at time.Time
	switch n, ok := decimal(value); {
	case !ok:
		if d, err := time.ParseDuration(value); err == nil {
			return max(0, min(d, longest))
		}
		at = date(value)
	case n*unit.Seconds() < epoch:
		return ofSeconds(n * unit.Seconds())
	case n < epochMilli:
		whole, fraction := math.Modf(n)
		at = time.Unix(int64(whole), int64(fraction*1e9))
	default:
		at = time.UnixMilli(int64(min(n, 1e15)))
	}
	return max(0, at.Sub(now))
}

// date reads a date of RFC 9110 or RFC 3339, which may lack the seconds. It returns
// the zero time for another text.
func date(value string) time.Time {
	at, err := http.ParseTime(value)
	for _, layout := range [...]string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if err != nil {
			at, err = time.Parse(layout, value)
		}
	}
	return at
}

// untilLast returns the longest time that lines of Retry-After ask for. A proxy may
// join several to a list. A date has a comma of its own.
func untilLast(lines []string, now time.Time, unit time.Duration) (wait time.Duration) {
	for _, line := range lines {
		before := ""
		for part := range strings.SplitSeq(line, ",") {
			wait = max(wait, until(part, now, unit), until(before+","+part, now, unit))
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

// policies takes what a RateLimit field says: a list of policies, as in
// draft-ietf-httpapi-ratelimit-headers-11, or the one quota of draft 07. It ignores a
// malformed field, as RFC 9651 demands.
func (a *asked) policies(lines []string) {
	field := []string{unpadded.ReplaceAllStringFunc(strings.Join(lines, ","), pad)}
	policies, err := httpsfv.UnmarshalList(field)
	if err != nil {
		if quota, err := httpsfv.UnmarshalDictionary(field); err == nil {
			a.quota(integer(quota, "limit"), integer(quota, "remaining"), integer(quota, "reset"))
		}
		return
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
			a.wait, a.empty = max(a.wait, ofSeconds(float64(seconds))), true
		}
	}
}

// integer returns a member of a dictionary that is an integer, or "".
func integer(of *httpsfv.Dictionary, name string) string {
	member, _ := of.Get(name)
	item, _ := member.(httpsfv.Item)
	if n, ok := item.Value.(int64); ok {
		return strconv.FormatInt(n, 10)
	}
	return ""
}
