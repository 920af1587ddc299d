package statuspage

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/status"
)

//go:embed page.css
var pageCSS string

//go:embed page.html
var pageHTML string

var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"rate": rateText, "count": countText, "bytes": display.Size, "ms": durationText, "ago": waitText,
		"bars": newBars, "pct": percent, "limit": func(l status.LimitReport) string { return limitText(l.Default()) },
	}).Parse(pageHTML))
})

// pagePolicy lets the page load nothing, run nothing and be framed by no other.
var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(pageCSS))
	return "default-src 'none'; img-src data:; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

// view has the data of the template. Without Found the page shows the report.
type view struct {
	*status.Report
	Title   string
	CSS     template.CSS
	Refresh int64 // seconds; 0 means never
	HideIDs bool
	Found   *found
}

// writeHTML writes HTML: with ?id= the result of a search, and otherwise the
// report. Only the report reloads, unless there is ?refresh=0.
func (p *Page) writeHTML(w http.ResponseWriter, r *http.Request) {
	v := view{Report: p.collector.Report(), Title: p.opts.Title, CSS: template.CSS(pageCSS), HideIDs: p.opts.HideIDs}
	query, h := r.URL.Query(), w.Header()
	switch {
	case query.Has("id") && !p.opts.HideIDs:
		v.Found = p.search(query.Get("id"))
	case query.Get("refresh") != "0":
		v.Refresh = int64(math.Ceil(p.opts.Refresh.Seconds()))
		h.Set("Refresh", strconv.FormatInt(v.Refresh, 10))
	}
	var b bytes.Buffer
	if err := pageTemplate().Execute(&b, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer") // the address may have an id
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	w.Write(b.Bytes()) // the client may have disconnected
}

// bars is a chart: a column for each slot, with denied on top of allowed.
type bars struct {
	Allowed, Denied string // path data
	Top             string // the rate at the upper edge
	Width, Height   int
	Idle            bool // no decisions
}

func newBars(allowed, denied []float64) bars {
	const step, gap, height = 10, 3, 96
	top := 0.0
	for i := range allowed {
		top = max(top, allowed[i]+denied[i])
	}
	b := bars{Width: step * len(allowed), Height: height, Idle: top == 0}
	top = niceCeil(top)
	b.Top = rateText(top)
	var a, d strings.Builder
	for i := range allowed {
		x := step*i + gap/2
		lower := barHeight(allowed[i], top, height)
		upper := barHeight(denied[i], top, height)
		if lower > 0 {
			fmt.Fprintf(&a, "M%d %dv%.1fh%dv%.1fz", x, height, -lower, step-gap, lower)
		}
		if upper > 0 {
			fmt.Fprintf(&d, "M%d %.1fv%.1fh%dv%.1fz", x, height-lower, -upper, step-gap, upper)
		}
	}
	b.Allowed, b.Denied = a.String(), d.String()
	return b
}

// barHeight returns the height of a bar, which is visible unless the rate is 0.
func barHeight(rate, top, height float64) float64 {
	if rate <= 0 {
		return 0
	}
	return max(1.5, rate/top*(height-4))
}

// niceCeil returns the next of 0.1, 0.2, 0.5, 1, 2, 5, 10, …
func niceCeil(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(v, 0.1))))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*power {
			return m * power
		}
	}
	return 10 * power
}

// rateText formats decisions per second with few digits.
func rateText(v float64) string {
	switch {
	case v <= 0:
		return "0"
	case v < 0.1:
		return "<0.1"
	case v < 9.95:
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	}
	return countText(int64(math.Round(v)))
}

// countText formats a number with a space between groups of three digits.
func countText(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, c := range []byte(digits) {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteString("\u202f")
		}
		b.WriteByte(c)
	}
	return b.String()
}

// durationText formats a duration of seconds.
func durationText(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d <= 0:
		return "–"
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f\u202fµs", float64(d)/float64(time.Microsecond))
	case d < time.Second:
		return fmt.Sprintf("%.1f\u202fms", float64(d)/float64(time.Millisecond))
	default:
		return fmt.Sprintf("%.1f\u202fs", d.Seconds())
	}
}

// waitText formats the seconds until something happens, rounded up.
func waitText(s float64) string {
	switch {
	case s <= 0:
		return "now"
	case s >= time.Duration(math.MaxInt64).Seconds(): // stint.Blocked
		return "never"
	}
	return display.Duration(time.Duration(s * float64(time.Second)))
}

// limitText formats a limit as stint.ParseLimit reads it, with its queue, or says
// when its quota resets.
func limitText(l stint.Limit) string {
	switch {
	case l == stint.Unlimited:
		return "no limit"
	case l.FollowsCalendar():
		return countText(l.Count) + " " + display.Resets(l)
	case l.Queue > 0:
		return l.String() + ", queue " + countText(l.Queue)
	}
	return l.String()
}

// percent returns the percentage of a bucket's tokens that are spent.
func percent(b status.BucketReport) int { return int(math.Round(100 * b.Used())) }
