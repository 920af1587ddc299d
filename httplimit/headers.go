package httplimit

import (
	"encoding/base64"
	"net/http"
	"strconv"

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
func (m *middleware) writeFields(w http.ResponseWriter, p *pass) {
	switch m.opts.Headers { // not with NoHeaders, because w.Header() costs net/http a copy
	case Standard:
		m.writeStandard(w.Header(), p)
	case XRateLimit:
		m.writeStrictest(w.Header(), p, "X-Ratelimit-")
	case Draft06:
		m.writeStrictest(w.Header(), p, "Ratelimit-")
	}
}

func (m *middleware) writeStandard(h http.Header, p *pass) {
	var room [2][128]byte
	policies, states, denied := room[0][:0], room[1][:0], false
	for p := p.Outermost(); p != nil; p = p.Inner() {
		by := p.Owner().(*middleware)
		for d := range p.Each {
			a := by.shown(d)
			if !m.tells(by, a) {
				continue
			}
			denied = denied || !a.Allowed
			policies, states = appendFields(policies, states, a)
			if of := by.opts.PartitionKey; of != nil {
				pk := of(a.Key)
				policies = appendBytes(append(policies, keyParam...), pk)
				states = appendBytes(append(states, keyParam...), pk)
			}
		}
	}
	if len(states) == 0 {
		return
	}
	h[policyField], h[stateField] = m.values(policies, states, denied)
}

// values returns the values of the fields. Most responses have the policy of the
// last denial, and many denials its state too: they share its strings.
func (m *middleware) values(policies, states []byte, denied bool) (policy, state []string) {
	last := m.fields.Load()
	fields := last
	switch {
	case last == nil || last[0] != string(policies):
		both := string(append(policies, states...))
		fields = &[2]string{both[:len(policies)], both[len(policies):]}
	case last[1] != string(states):
		fields = &[2]string{last[0], string(states)}
	}
	if fields != last && (denied || last == nil) {
		m.fields.Store(fields)
	}
	return fields[:1:1], fields[1:]
}

// tells reports whether this middleware writes a decision of another one into its
// fields.
func (m *middleware) tells(by *middleware, a shown) bool {
	return by.opts.Headers == m.opts.Headers && a.tells()
}

// appendFields appends a rule to RateLimit-Policy and RateLimit.
func appendFields(policies, states []byte, a shown) ([]byte, []byte) {
	if len(states) > 0 {
		policies, states = append(policies, ", "...), append(states, ", "...)
	}
	before := len(policies)
	policies = appendString(policies, a.Label)
	states = append(states, policies[before:]...)
	policies = appendInt(append(policies, quotaParam...), a.quota())
	if a.concurrent() {
		policies = append(policies, concurrentUnit...)
	} else {
		policies = appendInt(append(policies, windowParam...), seconds(a.window()))
	}
	left, window := a.state()
	states = appendInt(append(states, leftParam...), left)
	states = appendInt(append(states, resetParam...), window)
	return policies, states
}

// RateLimit returns the values of RateLimit-Policy and RateLimit for decisions of
// a Limiter, as the Standard fields have them, for protocols other than HTTP.
// Both are "" if the decisions have no limit to report.
func RateLimit(lim stint.Decider, ds []rules.Decision) (policy, state string) {
	var room [2][128]byte
	policies, states := room[0][:0], room[1][:0]
	for i := range ds {
		if a := (shown{&ds[i], lim}); a.tells() {
			policies, states = appendFields(policies, states, a)
		}
	}
	return string(policies), string(states)
}

// writeStrictest writes the rule that denied with the longest wait, or else
// the one with the fewest tokens left.
func (m *middleware) writeStrictest(h http.Header, p *pass, prefix string) {
	var strictest rules.Decision
	found, a := false, m.shown(&strictest)
	for p := p.Outermost(); p != nil; p = p.Inner() {
		by := p.Owner().(*middleware)
		for d := range p.Each {
			if other := by.shown(d); m.tells(by, other) && (!found || other.stricterThan(a)) {
				found, strictest = true, *d
			}
		}
	}
	if !found {
		return
	}
	left, window := a.state()
	h[prefix+"Limit"] = []string{strconv.FormatInt(a.quota(), 10)}
	h[prefix+"Remaining"] = []string{strconv.FormatInt(left, 10)}
	h[prefix+"Reset"] = []string{strconv.FormatInt(window, 10)}
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
