package httplimit

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// Headers is how responses tell clients what they have left. Retry-After comes with a denial whatever it is.
type Headers uint8

const (
	// Standard is RateLimit-Policy and RateLimit, of every rule that applied, as in
	// draft-ietf-httpapi-ratelimit-headers-11: "login";q=5;w=60 and "login";r=3;t=12.
	Standard Headers = iota

	// XRateLimit is X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, in seconds from now, of the
	// strictest rule.
	XRateLimit

	// ThreeFields is RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, as drafts up to 06 had it, of the
	// strictest rule.
	ThreeFields

	// NoHeaders is none of them.
	NoHeaders
)

// headerFormat writes the decisions on a request into the header of its response. What a later draft calls by other names
// is called so here, and nowhere else.
type headerFormat struct {
	dialect      Headers
	partitionKey func(stint.Key) []byte
	policy       atomic.Pointer[policy]
	denied       atomic.Pointer[[1]string] // the last RateLimit of a denial: in a flood, most are the same
}

// policy is the last RateLimit-Policy that was of one limit: most are the same.
type policy struct {
	label string
	limit stint.Limit
	field []string
}

func newHeaderFormat(opts Options) *headerFormat {
	return &headerFormat{dialect: opts.Headers, partitionKey: opts.PartitionKey}
}

const (
	policyField = "Ratelimit-Policy" // as http.Header has them
	stateField  = "Ratelimit"
	quotaParam  = ";q="
	windowParam = ";w="
	leftParam   = ";r="
	resetParam  = ";t="
	keyParam    = ";pk="
)

// write sets the fields of its dialect, of the rules of all middleware that has the same one. In the shadow, and where no limit
// is configured, there is nothing to tell.
func (f *headerFormat) write(w http.ResponseWriter, c *carried) {
	switch f.dialect { // net/http copies a header that was asked for
	case Standard:
		f.writeStandard(w.Header(), c)
	case XRateLimit:
		f.writeStrictest(w.Header(), c.applied, "X-Ratelimit-")
	case ThreeFields:
		f.writeStrictest(w.Header(), c.applied, "Ratelimit-")
	}
}

func (f *headerFormat) writeStandard(h http.Header, c *carried) {
	var room [128]byte
	states, first, count, allowed := room[:0], (*applied)(nil), 0, true
	for i := range c.applied {
		a := &c.applied[i]
		if !f.tells(a) {
			continue
		}
		if count++; count > 1 {
			states = append(states, ", "...)
		} else {
			first = a
		}
		allowed = allowed && a.Allowed
		states = appendString(states, a.Label)
		left, reset := a.state()
		states = appendInt(append(states, leftParam...), left)
		if reset > 0 {
			states = appendInt(append(states, resetParam...), reset)
		}
		states = appendPartition(states, a)
	}
	if count == 0 {
		return
	}
	state := f.denied.Load()
	if allowed || state == nil || state[0] != string(states) {
		if state = &c.state; !allowed || state[0] != "" { // a header that has it may not be written yet
			state = new([1]string)
		}
		state[0] = string(states)
		if !allowed {
			f.denied.Store(state)
		}
	}
	h[stateField] = state[:]
	if count > 1 || first.by.format.partitionKey != nil {
		h[policyField] = []string{f.policies(c.applied)}
		return
	}
	last := f.policy.Load()
	if last == nil || last.label != first.Label || last.limit != first.Limit {
		last = &policy{first.Label, first.Limit, []string{f.policies(c.applied)}}
		f.policy.Store(last)
	}
	h[policyField] = last.field
}

func (f *headerFormat) policies(as []applied) string {
	var b []byte
	for i := range as {
		a := &as[i]
		if !f.tells(a) {
			continue
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = appendString(b, a.Label)
		b = appendInt(append(b, quotaParam...), a.Limit.Burst)
		b = appendInt(append(b, windowParam...), seconds(a.Limit.Tolerance()))
		b = appendPartition(b, a)
	}
	return string(b)
}

func appendPartition(b []byte, a *applied) []byte {
	if of := a.by.format.partitionKey; of != nil {
		return appendBytes(b, of(a.Key))
	}
	return b
}

// writeStrictest tells of the rule that denied, or else of the one that leaves the fewest requests.
func (f *headerFormat) writeStrictest(h http.Header, as []applied, prefix string) {
	var strictest *applied
	for i := range as {
		if a := &as[i]; f.tells(a) && (strictest == nil || a.stricterThan(strictest)) {
			strictest = a
		}
	}
	if strictest == nil {
		return
	}
	left, reset := strictest.state()
	h[prefix+"Limit"] = []string{strconv.FormatInt(strictest.Limit.Burst, 10)}
	h[prefix+"Remaining"] = []string{strconv.FormatInt(left, 10)}
	h[prefix+"Reset"] = []string{strconv.FormatInt(reset, 10)}
}

// tells reports whether clients are told of the rule in these fields.
func (f *headerFormat) tells(a *applied) bool {
	return !a.Shadow && a.Limit.Count > 0 && a.by.format.dialect == f.dialect
}

func (a *applied) stricterThan(b *applied) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if !a.Allowed {
		return a.RetryAfter > b.RetryAfter
	}
	left, _ := a.state()
	least, _ := b.state()
	return left < least
}

// state returns how many tokens are left, and for how many seconds no more than that: where none are, until the next one;
// else until all are back.
func (a *applied) state() (left, reset int64) {
	left, full := a.Remaining, a.ResetAfter
	switch {
	case !a.Allowed:
		if a.Cost > 0 && left >= a.Cost { // it is held: none of them can be had
			left = 0
		}
		return left, max(1, seconds(a.RetryAfter))
	case a.locked > 0:
		return 0, max(1, seconds(a.locked))
	case left == 0:
		return 0, max(1, seconds(full-a.Limit.Tolerance()+a.Limit.Interval()))
	}
	return left, seconds(full)
}

// seconds returns d in seconds, rounded up, and at least 0.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}

// appendString appends a String of RFC 9651. What is not printable ASCII is percent-encoded, and so is the percent sign.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~' || c == '%':
			b = append(b, '%', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// appendInt appends an Integer of RFC 9651, which has at most 15 digits.
func appendInt(b []byte, n int64) []byte {
	const most = 999_999_999_999_999
	return strconv.AppendInt(b, max(0, min(n, most)), 10)
}

// appendBytes appends a partition key: a Byte Sequence of RFC 9651.
func appendBytes(b, value []byte) []byte {
	b = append(append(b, keyParam...), ':')
	b = base64.StdEncoding.AppendEncode(b, value)
	return append(b, ':')
}
