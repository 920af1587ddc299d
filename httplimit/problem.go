package httplimit

import (
	"encoding/json"
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

type problem struct {
	Type     string   `json:"type,omitempty"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

// deny answers a request that a rule denied.
func (m *middleware) deny(w http.ResponseWriter, r *http.Request, d stint.Decision) {
	w.Header().Set("Retry-After", strconv.FormatInt(max(1, seconds(d.RetryAfter)), 10))
	if m.opts.Denied != nil {
		m.opts.Denied(w, r, d)
		return
	}
	var violated []string
	for _, d := range Decisions(r) {
		if !d.Allowed && !d.Shadow {
			violated = append(violated, policyName(d.Label))
		}
	}
	answer(w, r, problem{
		Type:     QuotaExceeded,
		Title:    "Request cannot be satisfied as assigned quota has been exceeded",
		Status:   http.StatusTooManyRequests,
		Detail:   "Try again in " + inWords(d.RetryAfter) + ".",
		Violated: violated,
	})
}

// refuse answers a request that could not be decided on: because of what the client sent, or because the limiter failed.
func refuse(w http.ResponseWriter, r *http.Request, theirs bool) {
	if theirs {
		answer(w, r, problem{
			Title:  "Bad Request",
			Status: http.StatusBadRequest,
			Detail: "The request does not say whose it is in a way that it could be counted by.",
		})
		return
	}
	answer(w, r, problem{
		Title:  "Service Unavailable",
		Status: http.StatusServiceUnavailable,
		Detail: "The server cannot tell at present whether the request may pass.",
	})
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

// answer writes the problem, in the form that the client likes best.
func answer(w http.ResponseWriter, r *http.Request, p problem) {
	h := w.Header()
	for _, field := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		h.Del(field)
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Add("Vary", "Accept")
	title := http.StatusText(p.Status)
	var body string
	switch preferred(r.Header["Accept"]) {
	case "text/html":
		h.Set("Content-Type", "text/html; charset=utf-8")
		body = fmt.Sprintf(page, html.EscapeString(title), html.EscapeString(p.Detail))
	case "text/plain":
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body = title + ". " + p.Detail + "\n"
	default:
		h.Set("Content-Type", "application/problem+json")
		encoded, _ := json.Marshal(p) // strings and a number cannot fail
		body = string(encoded) + "\n"
	}
	w.WriteHeader(p.Status)
	w.Write([]byte(body)) // the client may have gone
}

// preferred returns which of JSON, HTML and plain text an Accept field asks for most: "" is JSON, the answer to those
// who do not mind.
func preferred(accept []string) string {
	best, text := 0.0, ""
	for _, entry := range strings.Split(strings.Join(accept, ","), ",") {
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
