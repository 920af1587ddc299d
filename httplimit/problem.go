package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// QuotaExceeded is the type of the problem (RFC 9457) that answers a denied
// request. Its member "violated-policies" has the labels of the limits that
// denied.
const QuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// problem is the answer to a request that does not pass.
type problem struct {
	status int
	detail string
	json   []byte
}

var (
	badRequest = newProblem(http.StatusBadRequest, `"title":"Bad Request"`,
		"The request has no valid id, such as a key or an address. Its limit needs one.", "")
	neverAdmitted = newProblem(http.StatusBadRequest, `"title":"Bad Request"`,
		"The cost of the request is negative, or more than its limit ever admits.", "")
	unavailable = newProblem(http.StatusServiceUnavailable, `"title":"Service Unavailable"`,
		"The server cannot check the limit of the request at present.", "")
)

// newProblem returns a problem. first and last are the members of its JSON
// before and after status and detail.
func newProblem(status int, first, detail, last string) problem {
	json := fmt.Appendf(nil, `{%s,"status":%d,"detail":"%s"%s}`+"\n", first, status, detail, last)
	return problem{status, detail, json}
}

func problemOf(err error) *problem {
	switch {
	case errors.Is(err, rules.ErrNoID), errors.Is(err, stint.ErrInvalidID):
		return &badRequest
	case errors.Is(err, stint.ErrCostOverBurst), errors.Is(err, stint.ErrNegativeCost):
		return &neverAdmitted
	}
	return &unavailable
}

// deny answers a request that a rule has denied, with the fields of its limits.
func (m *middleware) deny(w http.ResponseWriter, r *http.Request, p *pass, d stint.Decision) {
	if m.opts.Denied == nil {
		forgetContent(w.Header())
	}
	m.writeFields(w, p)
	after := max(1, seconds(d.RetryAfter))
	if d.RetryAfter == math.MaxInt64 { // stint.Blocked
		after = 0
	}
	last := m.denial.Load()
	var room [128]byte
	labels, noPlace := appendViolated(room[:0], p)
	if last == nil || last.after != after || last.noPlace != noPlace || last.labels != string(labels) {
		last = &denial{after: after, noPlace: noPlace, labels: string(labels)}
		detail := "The limit blocks the request."
		if after > 0 {
			last.field = []string{strconv.FormatInt(after, 10)}
			detail = "Try again in " + inWords(d.RetryAfter) + "."
		}
		if noPlace {
			detail = "Too many requests at the same time. Try again when one of them has ended."
		}
		last.problem = newProblem(http.StatusTooManyRequests,
			`"type":"`+QuotaExceeded+`","title":"Request cannot be satisfied as assigned quota has been exceeded"`,
			detail, `,"violated-policies":[`+last.labels+`]`)
		m.denial.Store(last)
	}
	if after > 0 {
		w.Header()["Retry-After"] = last.field
	}
	if m.opts.Denied == nil {
		last.answer(w, r)
		return
	}
	m.opts.Denied(w, r, d)
}

// denial is the last answer to a denied request. In a flood, most are the same.
type denial struct {
	problem
	after   int64    // seconds; 0 means never
	noPlace bool     // too many requests are in flight
	field   []string // Retry-After
	labels  string   // of the limits that denied
}

// appendViolated appends the labels of the limits that denied, as a JSON list.
// A String of RFC 9651 is also a JSON string. noPlace reports whether a limit
// denied because too many requests are in flight.
func appendViolated(b []byte, p *pass) (labels []byte, noPlace bool) {
	for d := range p.Each {
		if !d.Allowed && !d.Shadow {
			if len(b) > 0 {
				b = append(b, ',')
			}
			b = appendString(b, d.Label)
			noPlace = noPlace || d.InFlight.Denied && !d.InFlight.Shadow
		}
	}
	return b, noPlace
}

const problemHTML = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%[1]s</title>
</head>
<body>
<h1>%[1]s</h1>
<p>%[2]s</p>
</body>
</html>
`

// Values of fields that all answers share.
var noStore, problemType = []string{"no-store"}, []string{"application/problem+json"}

// forgetContent removes what other middleware has said about the response of the
// handler. It comes before other fields, because it costs nothing if there are
// none.
func forgetContent(h http.Header) {
	for _, field := range [...]string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		delete(h, field)
	}
}

// answer writes a problem as JSON, HTML or text, as the client prefers.
func (p *problem) answer(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	title, kind, body := http.StatusText(p.status), problemType, p.json
	switch preferred(r.Header["Accept"]) {
	case "text/html":
		kind = []string{"text/html; charset=utf-8"}
		body = fmt.Appendf(nil, problemHTML, html.EscapeString(title), html.EscapeString(p.detail))
	case "text/plain", "text/*":
		kind = []string{"text/plain; charset=utf-8"}
		body = []byte(title + ". " + p.detail + "\n")
	}
	h["Cache-Control"], h["Content-Type"] = noStore, kind
	w.WriteHeader(p.status)
	w.Write(body) // the client may have disconnected
}

// preferred returns what an Accept field prefers: "text/html", "text/plain",
// "text/*", or "" for JSON, which clients without a preference get.
func preferred(accept []string) string {
	if len(accept) == 0 {
		return ""
	}
	best, text := 0.0, ""
	for entry := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(entry)
		q, malformed := strconv.ParseFloat(cmp.Or(params["q"], "1"), 64)
		if err != nil || malformed != nil || q > 1 {
			continue
		}
		json := false
		switch kind {
		case "text/html", "text/plain", "text/*":
		case "application/problem+json", "application/json", "application/*":
			kind, json = "", true
		case "*/*":
			kind = ""
		default:
			continue
		}
		if q > best || json && q == best && q > 0 {
			best, text = q, kind
		}
	}
	return text
}

// inWords formats a duration for people, rounded up: "1 second", "5 minutes".
func inWords(d time.Duration) string {
	n := max(1, seconds(d))
	for _, unit := range []struct {
		seconds int64
		name    string
	}{{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}} {
		if n >= 2*unit.seconds {
			return fmt.Sprintf("%d %ss", (n-1)/unit.seconds+1, unit.name)
		}
	}
	return "1 second"
}
