package httplimit

import (
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// QuotaExceeded is the type of the problem (RFC 9457) that a denied request is answered with. Its member
// "violated-policies" names the limits that denied.
const QuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// refusal is what a request is answered with that does not pass: a problem (RFC 9457), or its like as text.
type refusal struct {
	status int
	detail string
	json   []byte
}

var (
	badRequest = newRefusal(http.StatusBadRequest, `"title":"Bad Request"`,
		"The request does not say whose it is in a way that it could be counted by.", "")
	neverAdmitted = newRefusal(http.StatusBadRequest, `"title":"Bad Request"`,
		"The request costs more than its limit ever admits, or less than nothing.", "")
	unavailable = newRefusal(http.StatusServiceUnavailable, `"title":"Service Unavailable"`,
		"The server cannot tell at present whether the request may pass.", "")
)

// newRefusal returns a refusal of these members, in JSON, around its status and its detail.
func newRefusal(status int, first, detail, last string) refusal {
	return refusal{status, detail, fmt.Appendf(nil, "{%s,\"status\":%d,\"detail\":\"%s\"%s}\n", first, status, detail, last)}
}

// denial is the last answer to a request that was denied: in a flood, most are the same.
type denial struct {
	refusal
	after int64    // seconds
	field []string // that says so
	names string   // of the limits that denied
}

// deny answers a request that a rule denied.
func (m *middleware) deny(w http.ResponseWriter, r *http.Request, c *carried, d stint.Decision) {
	after := max(1, seconds(d.RetryAfter))
	if m.opts.Denied != nil {
		w.Header()["Retry-After"] = []string{strconv.FormatInt(after, 10)}
		carrying := c.on(r)
		defer keepFiles(r, carrying)
		m.opts.Denied(w, carrying, d)
		return
	}
	var room [128]byte
	names := c.appendViolated(room[:0])
	last := m.denial.Load()
	if last == nil || last.after != after || last.names != string(names) {
		last = &denial{after: after, field: []string{strconv.FormatInt(after, 10)}, names: string(names)}
		last.refusal = newRefusal(http.StatusTooManyRequests,
			`"type":"`+QuotaExceeded+`","title":"Request cannot be satisfied as assigned quota has been exceeded"`,
			"Try again in "+inWords(d.RetryAfter)+".", `,"violated-policies":[`+last.names+`]`)
		m.denial.Store(last)
	}
	w.Header()["Retry-After"] = last.field
	answer(w, r, &last.refusal)
	m.free(c)
}

// appendViolated appends the names of the limits that denied, as the header has them: a String of RFC 9651 is one of JSON too.
func (c *carried) appendViolated(b []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.applied {
		if a := &c.applied[i]; !a.Allowed && !a.Shadow {
			if len(b) > 0 {
				b = append(b, ',')
			}
			b = appendString(b, a.Label)
		}
	}
	return b
}

const page = `<!doctype html>
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

// Fields of answers, made once: a flood is many of them.
var (
	noStore = []string{"no-store"}
	asJSON  = []string{"application/problem+json"}
	asHTML  = []string{"text/html; charset=utf-8"}
	asText  = []string{"text/plain; charset=utf-8"}
)

// answer writes the problem, in the form that the client likes best.
func answer(w http.ResponseWriter, r *http.Request, p *refusal) {
	h := w.Header()
	for _, field := range [...]string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		delete(h, field)
	}
	h["Cache-Control"], h["Content-Type"] = noStore, asJSON
	var body []byte
	switch title := http.StatusText(p.status); preferred(r.Header["Accept"]) {
	case "text/html":
		h["Content-Type"] = asHTML
		body = fmt.Appendf(nil, page, html.EscapeString(title), html.EscapeString(p.detail))
	case "text/plain":
		h["Content-Type"] = asText
		body = []byte(title + ". " + p.detail + "\n")
	default:
		body = p.json
	}
	w.WriteHeader(p.status)
	w.Write(body) // the client may have gone
}

// preferred returns which of JSON, HTML and plain text an Accept field asks for most: "" is JSON, the answer to those
// who do not mind.
func preferred(accept []string) string {
	if len(accept) == 0 {
		return ""
	}
	best, text := 0.0, ""
	for entry := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, _ := strings.Cut(entry, ";")
		kind = strings.ToLower(strings.TrimSpace(kind))
		switch kind {
		case "application/problem+json", "application/json", "application/*", "*/*", "text/html", "text/plain":
		case "text/*":
			kind = "text/plain"
		default:
			continue
		}
		q := quality(params)
		isText := strings.HasPrefix(kind, "text/")
		if q > best || q == best && q > 0 && !isText && kind != "*/*" {
			best, text = q, ""
			if isText {
				text = kind
			}
		}
	}
	return text
}

// quality returns the weight that the parameters of an Accept entry give it.
func quality(params string) float64 {
	for _, param := range strings.Split(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if strings.EqualFold(name, "q") {
			q, err := strconv.ParseFloat(value, 64)
			if err != nil || !(q >= 0 && q <= 1) {
				return 0
			}
			return q
		}
	}
	return 1
}

// inWords says a duration as people do, rounded up: "1 second", "5 minutes".
func inWords(d time.Duration) string {
	n := max(1, seconds(d))
	for _, unit := range []struct {
		seconds int64
		name    string
	}{{86400, "day"}, {3600, "hour"}, {60, "minute"}} {
		if n >= 2*unit.seconds {
			n = (n-1)/unit.seconds + 1
			return fmt.Sprintf("%d %ss", n, unit.name)
		}
	}
	if n == 1 {
		return "1 second"
	}
	return fmt.Sprintf("%d seconds", n)
}
