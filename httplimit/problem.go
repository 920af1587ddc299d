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
	badRequest = newProblem(http.StatusBadRequest,
		"The request has no valid id, such as a key or an address. Its limit needs one.")
	neverAdmitted = newProblem(http.StatusBadRequest,
		"The cost of the request is negative, or more than its limit ever admits.")
	unavailable = newProblem(http.StatusServiceUnavailable,
		"The server cannot check the limit of the request at present.")
)

func newProblem(status int, detail string) problem {
	json := fmt.Appendf(nil, `{"title":"%s","status":%d,"detail":"%s"}`+"\n", http.StatusText(status), status, detail)
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
	h := w.Header()
	if m.opts.Denied == nil {
		forgetContent(h)
	}
	m.writeFields(h, p)
	says := toldOf(p, d.RetryAfter)
	if says.retryAfter != nil {
		h["Retry-After"] = says.retryAfter
	}
	if m.opts.Denied != nil {
		m.opts.Denied(w, r, d)
		return
	}
	answer(w, h, r, http.StatusTooManyRequests, says.detail, says.json)
}

// denial is what a denied request is told: the answer depends on nothing else.
type denial struct {
	wait    int64 // in seconds, or never
	noPlace bool
	n       int       // how many limits denied
	labels  [2]string // theirs
}

const never = math.MaxInt64 // of stint.Blocked

// denials has answers to denials by one limit or two.
var denials recent[denial, *told]

// told is an answer. Nobody changes it.
type told struct {
	retryAfter   []string // nil: never
	detail, json []byte
}

// toldOf returns the answer to a denied request.
func toldOf(p *pass, wait time.Duration) *told {
	var room [4]string
	of, labels := denial{wait: never}, room[:0]
	if wait != math.MaxInt64 {
		of.wait = max(1, seconds(wait))
	}
	for d := range p.Each {
		if !d.Allowed && !d.Shadow {
			of.noPlace = of.noPlace || d.InFlight.Denied && !d.InFlight.Shadow
			labels = append(labels, d.Label)
		}
	}
	if of.n = copy(of.labels[:], labels); of.n < len(labels) {
		return of.told(labels...)
	}
	return denials.of(uint64(of.wait), of, func(of denial) *told { return of.told(of.labels[:of.n]...) })
}

// told returns the answer if limits with these labels denied. A String of RFC 9651 is
// also a JSON string.
func (of denial) told(labels ...string) *told {
	says := new(told)
	if of.wait != never {
		says.retryAfter = []string{strconv.FormatInt(of.wait, 10)}
	}
	const start = `{"type":"` + QuotaExceeded + `","title":"Request cannot be satisfied as assigned quota has been exceeded",` +
		`"status":429,"detail":"`
	b := []byte(start)
	switch {
	case of.noPlace:
		b = append(b, "Too many requests at the same time. Try again when one of them has ended."...)
	case of.wait == never:
		b = append(b, "The limit blocks the request."...)
	default:
		b = append(appendWords(append(b, "Try again in "...), of.wait), '.')
	}
	detail := len(b)
	b = append(b, `","violated-policies":[`...)
	for i, label := range labels {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, label)
	}
	says.json = append(b, "]}\n"...)
	says.detail = says.json[len(start):detail]
	return says
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
	if len(h) == 0 {
		return
	}
	for _, field := range [...]string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		delete(h, field)
	}
}

func (p *problem) answer(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	forgetContent(h)
	answer(w, h, r, p.status, []byte(p.detail), p.json)
}

// answer writes a problem as JSON, HTML or text, as the client prefers. h is w.Header().
func answer(w http.ResponseWriter, h http.Header, r *http.Request, status int, detail, json []byte) {
	title, kind, body := http.StatusText(status), problemType, json
	switch preferred(r.Header["Accept"]) {
	case "text/html":
		kind = []string{"text/html; charset=utf-8"}
		body = fmt.Appendf(nil, problemHTML, html.EscapeString(title), html.EscapeString(string(detail)))
	case "text/plain", "text/*":
		kind = []string{"text/plain; charset=utf-8"}
		body = []byte(title + ". " + string(detail) + "\n")
	}
	h["Cache-Control"], h["Content-Type"] = noStore, kind
	w.WriteHeader(status)
	w.Write(body) // the client may have disconnected
}

// preferred returns what an Accept field prefers: "text/html", "text/plain",
// "text/*", or "" for JSON, which clients without a preference get.
func preferred(accept []string) string {
	if len(accept) == 0 || len(accept) == 1 && accept[0] == "*/*" {
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

// appendWords appends seconds for people, rounded up: "1 second", "5 minutes".
func appendWords(b []byte, n int64) []byte {
	for _, unit := range [...]struct {
		seconds int64
		name    string
	}{{86400, " days"}, {3600, " hours"}, {60, " minutes"}, {1, " seconds"}} {
		if n >= 2*unit.seconds {
			return append(strconv.AppendInt(b, (n-1)/unit.seconds+1, 10), unit.name...)
		}
	}
	return append(b, "1 second"...)
}
