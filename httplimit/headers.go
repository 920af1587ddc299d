package httplimit

import (
	"encoding/base64"
	"hash/maphash"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Headers selects the response fields that tell clients how much they have
// left. Every denial has Retry-After, whatever is selected. The fields never
// include Shadow rules, or buckets without a limit or with stint.Blocked.
type Headers uint8

const (
	// Standard writes RateLimit-Policy and RateLimit for every rule that
	// applies, as in draft-ietf-httpapi-ratelimit-headers-11. For example
	// "login";q=5;w=60 means a burst of 5 that takes 60 s to refill.
	// "login";r=3;t=12 means that 3 tokens are left, and no more within 12 s.
	//
	// Parameter t, like Reset in the other fields, is the time in seconds, rounded
	// up, until the next token returns or a hold ends. Until then the client can
	// use no more than is left. During a hold nothing is left. A hold that ends
	// before the tokens of a denied request are back is not shown.
	//
	// A bound on requests in flight has qu="concurrent-requests" instead of w. It
	// is shown if the request was denied because of it, or if the rule has no
	// other limit.
	Standard Headers = iota

	// XRateLimit writes X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset for the strictest rule. Reset is in seconds from now.
	XRateLimit

	// Draft06 writes RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset
	// for the strictest rule. The drafts of the standard had these three fields
	// until draft-ietf-httpapi-ratelimit-headers-06. Reset is in seconds from
	// now.
	Draft06

	// NoHeaders writes none of these fields.
	NoHeaders
)

// Names of fields in the form of http.Header, and of their parameters. If a
// later draft renames them, change only these.
const (
	policyField = "Ratelimit-Policy"
	stateField  = "Ratelimit"

	quotaParam  = ";q="
	windowParam = ";w="
	leftParam   = ";r="
	resetParam  = ";t="
	keyParam    = ";pk="

	concurrentUnit = `;qu="concurrent-requests"`
)

// writeFields sets the fields of the middleware's Headers, for the rules of all
// middleware with the same Headers that a request has passed.
func (m *middleware) writeFields(h http.Header, p *pass) {
	switch m.opts.Headers {
	case Standard:
		m.writeStandard(h, p)
	case XRateLimit:
		m.writeStrictest(h, p, &xRateLimitFields)
	case Draft06:
		m.writeStrictest(h, p, &draft06Fields)
	}
}

var (
	standardFields   = [...]string{policyField, stateField}
	xRateLimitFields = [...]string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}
	draft06Fields    = [...]string{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"}
)

// before returns the values that the fields had when the first pass with these
// Headers began: those of middleware around it that is not in its context. It
// returns nil if there were none.
func (m *middleware) before(h http.Header, p *pass, fields []string) (values []string) {
	first := p
	for p := p.Outer(); p != nil; p = p.Outer() {
		if p.Owner().(*middleware).opts.Headers == m.opts.Headers {
			first = p
		}
	}
	sw, kept := first.Data.(*statusWriter)
	if kept && sw.told {
		return sw.before
	}
	if len(h[fields[0]]) > 0 {
		for _, field := range fields {
			values = append(values, strings.Join(h[field], ", "))
		}
	}
	if kept {
		sw.told, sw.before = true, values
	}
	return values
}

// outermost returns the first pass that a request began.
func outermost(p *pass) *pass {
	for p.Outer() != nil {
		p = p.Outer()
	}
	return p
}

func (m *middleware) writeStandard(h http.Header, p *pass) {
	before := m.before(h, p, standardFields[:])
	if a, fixed := m.alone(p); fixed != nil && before == nil {
		left, window := a.state(fixed)
		h[policyField], h[stateField] = fixed.value, states.of(uint64(left<<20^window), fieldState{fixed, left, window}, fieldState.value)
		return
	}
	var room [2][128]byte
	policies, states := room[0][:0], room[1][:0]
	if before != nil {
		policies, states = append(policies, before[0]...), append(states, before[1]...)
	}
	for p := outermost(p); p != nil; p = p.Inner() {
		by := p.Owner().(*middleware)
		for d := range p.Each {
			a := by.shown(d)
			if !m.tells(by, a) {
				continue
			}
			policies, states = appendFields(policies, states, a, m.policyOf(a))
			if of := by.opts.PartitionKey; of != nil {
				pk := of(a.Key)
				policies = appendBytes(append(policies, keyParam...), pk)
				states = appendBytes(append(states, keyParam...), pk)
			}
		}
	}
	if len(states) > 0 {
		h[policyField], h[stateField] = valueOf(0, policies), valueOf(1, states)
	}
}

// alone returns the decision and the policy of a request whose fields show one rule
// of a fixed policy, and nil otherwise.
func (m *middleware) alone(p *pass) (a shown, fixed *policy) {
	if m.opts.PartitionKey != nil || p.Outer() != nil || p.Inner() != nil {
		return a, nil
	}
	for d := range p.Each {
		if one := m.shown(d); one.tells() {
			if a.Decision != nil {
				return a, nil
			}
			a = one
		}
	}
	if a.Decision == nil {
		return a, nil
	}
	return a, m.policyOf(a)
}

// tells reports whether this middleware writes a decision of another one into its
// fields.
func (m *middleware) tells(by *middleware, a shown) bool {
	return by.opts.Headers == m.opts.Headers && a.tells()
}

// policy is what does not change of the fields of a limit.
type policy struct {
	label    string
	limit    stint.Limit // follows no calendar
	interval time.Duration
	quoted   string   // the label
	value    []string // of RateLimit-Policy
}

// policyOf returns the policy of a decision, or nil if it is made each time: for an
// override, a quota that follows the calendar, or a bound on requests in flight.
func (m *middleware) policyOf(a shown) *policy {
	at := &m.policies[int(a.Key.Name)%len(m.policies)]
	p := at.Load()
	for i := 1; i < len(m.policies) && p != nil && p.label != a.Label; i++ { // the place of another limit
		at = &m.policies[(int(a.Key.Name)+i)%len(m.policies)]
		p = at.Load()
	}
	if p != nil && p.limit == a.Limit && p.label == a.Label && a.InFlight.Limit == 0 {
		return p
	}
	spec, _ := m.lim.Limits().Spec(a.Key.Name)
	if a.InFlight.Limit == 0 && !a.Limit.FollowsCalendar() && spec.Limit == a.Limit {
		text, _ := appendFields(nil, nil, a, nil)
		p = &policy{a.Label, a.Limit, a.Limit.Interval(), string(appendString(nil, a.Label)), []string{string(text)}}
		at.Store(p)
		return p
	}
	return nil
}

// fieldState is what RateLimit says of a rule with a fixed policy.
type fieldState struct {
	*policy
	left, window int64
}

var states recent[fieldState, []string]

// value returns the value of RateLimit.
func (s fieldState) value() []string {
	return []string{string(appendState([]byte(s.quoted), s.left, s.window))}
}

func appendState(b []byte, left, window int64) []byte {
	b = appendInt(append(b, leftParam...), left)
	return appendInt(append(b, resetParam...), window)
}

// appendFields appends a rule to RateLimit-Policy and RateLimit.
func appendFields(policies, states []byte, a shown, fixed *policy) ([]byte, []byte) {
	if len(states) > 0 {
		policies, states = append(policies, ", "...), append(states, ", "...)
	}
	if fixed != nil {
		policies, states = append(policies, fixed.value[0]...), append(states, fixed.quoted...)
	} else {
		before := len(policies)
		policies = appendString(policies, a.Label)
		states = append(states, policies[before:]...)
		policies = appendInt(append(policies, quotaParam...), a.quota())
		if a.concurrent() {
			policies = append(policies, concurrentUnit...)
		} else {
			policies = appendInt(append(policies, windowParam...), seconds(a.window()))
		}
	}
	left, window := a.state(fixed)
	return policies, appendState(states, left, window)
}

// RateLimit returns the values of RateLimit-Policy and RateLimit for decisions of
// a Limiter, as the Standard fields have them, for protocols other than HTTP.
// Both are "" if the decisions have no limit to report.
func RateLimit(lim stint.Decider, ds []rules.Decision) (policy, state string) {
	var room [2][128]byte
	policies, states := room[0][:0], room[1][:0]
	for i := range ds {
		if a := (shown{&ds[i], lim}); a.tells() {
			policies, states = appendFields(policies, states, a, nil)
		}
	}
	return string(policies), string(states)
}

// writeStrictest writes the rule that denied with the longest wait, or else
// the one with the fewest tokens left.
func (m *middleware) writeStrictest(h http.Header, p *pass, fields *[3]string) {
	before := m.before(h, p, fields[:])
	var strictest rules.Decision
	found, a := false, m.shown(&strictest)
	for p := outermost(p); p != nil; p = p.Inner() {
		by := p.Owner().(*middleware)
		for d := range p.Each {
			if other := by.shown(d); m.tells(by, other) && (!found || other.stricterThan(a)) {
				found, strictest = true, *d
			}
		}
	}
	left, window := int64(math.MaxInt64), int64(0)
	if found {
		left, window = a.state(nil)
	}
	if before != nil && (!found || a.Allowed) {
		if least, err := strconv.ParseInt(before[1], 10, 64); err == nil && least <= left {
			for i, field := range fields {
				h[field] = []string{before[i]}
			}
			return
		}
	}
	if found {
		var room [20]byte
		for i, n := range [...]int64{a.quota(), left, window} {
			h[fields[i]] = valueOf(i, strconv.AppendInt(room[:0], n, 10))
		}
	}
}

// latelySeed hashes the texts of fields that were sent lately.
var latelySeed = maphash.MakeSeed()

// lately has values of fields that were sent lately, by their hash. It has a table for
// the first field of a response, and so on: two values of one response that share a place
// would be made anew for each request.
var lately [3][1024]atomic.Pointer[[1]string]

// valueOf returns the value of the n-th field.
func valueOf(n int, b []byte) []string {
	at := &lately[n][maphash.Bytes(latelySeed, b)%uint64(len(lately[n]))]
	value := at.Load()
	if value == nil || value[0] != string(b) {
		value = &[1]string{string(b)}
		at.Store(value)
	}
	return value[:]
}

// recent has what was made lately, by what it was made of. Most is wanted again, and
// then takes no time and no allocation.
type recent[K comparable, V any] [1024]atomic.Pointer[made[K, V]]

type made[K comparable, V any] struct {
	of K
	as V
}

// of returns what is made of a key with that hash.
func (r *recent[K, V]) of(hash uint64, key K, make func(K) V) V {
	at := &r[hash*0x9E3779B97F4A7C15>>54] // 2⁶⁴ ÷ the golden ratio
	m := at.Load()
	if m == nil || m.of != key {
		m = &made[K, V]{key, make(key)}
		at.Store(m)
	}
	return m.as
}

// appendString appends a String of RFC 9651. Bytes that are not printable
// ASCII are percent-encoded, and so is the percent sign.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	copied := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c <= '~' && c != '%' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[copied:i]...)
		copied = i + 1
		if c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '%', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
	}
	return append(append(b, s[copied:]...), '"')
}

// appendInt appends an Integer of RFC 9651, which has at most 15 digits.
func appendInt(b []byte, n int64) []byte {
	const most = 999_999_999_999_999
	return strconv.AppendInt(b, max(0, min(n, most)), 10)
}

// appendBytes appends a Byte Sequence of RFC 9651.
func appendBytes(b, value []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(b, ':'), value), ':')
}
