package httplimit

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
	"time"
)

//go:embed status.css
var statusCSS string

//go:embed status.html
var statusHTML string

var statusTemplate = template.Must(template.New("status").Funcs(template.FuncMap{
	"rate": rateText, "count": countText, "bytes": bytesText, "ms": durationText, "ago": waitText, "bars": newBars, "pct": percent, "limit": limitText,
}).Parse(statusHTML))

// statusPolicy lets the page load nothing, run nothing and be framed by nobody.
var statusPolicy = func() string {
	sum := sha256.Sum256([]byte(statusCSS))
	return "default-src 'none'; img-src data:; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

type view struct {
	*report
	Title      string
	CSS        template.CSS
	Refresh    int64 // seconds; 0 where the page stands still
	AllowReset bool
	HasFile    bool
}

// writePage writes the page. ?refresh=0 makes it stand still.
func (s *StatusPage) writePage(w http.ResponseWriter, r *http.Request, rep *report) {
	v := view{
		report: rep, Title: s.opts.Title, CSS: template.CSS(statusCSS),
		AllowReset: s.opts.AllowReset, HasFile: rep.hasFile,
	}
	h := w.Header()
	if r.URL.Query().Get("refresh") != "0" {
		v.Refresh = seconds(s.opts.Refresh)
		h.Set("Refresh", strconv.FormatInt(v.Refresh, 10))
	}
	var b bytes.Buffer
	if err := statusTemplate.Execute(&b, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", statusPolicy)
	h.Set("Referrer-Policy", "same-origin") // with none, a browser does not say where a form was sent from
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	w.Write(b.Bytes()) // the client may have gone
}

// bars are a chart: a column for each slot, denied on top of allowed.
type bars struct {
	Allowed, Denied string // path data
	Top             string // the rate at the upper edge
	Width, Height   int
	Idle            bool
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

// barHeight is at least a line, where there was anything.
func barHeight(rate, top, height float64) float64 {
	if rate <= 0 {
		return 0
	}
	return max(1.5, rate/top*(height-4))
}

// niceCeil returns the next of 0.1, 0.2, 0.5, 1, 2, 5, 10, …
func niceCeil(v float64) float64 {
	if v <= 0.1 {
		return 0.1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5, 10} {
		if v <= m*power {
			return m * power
		}
	}
	return v
}

// rateText writes decisions per second in a few digits.
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

// countText writes a number with its thousands apart.
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

func bytesText(n int64) string {
	v, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, next
	}
	if unit == "B" || v >= 100 {
		return fmt.Sprintf("%.0f\u202f%s", v, unit)
	}
	return fmt.Sprintf("%.1f\u202f%s", v, unit)
}

// durationText writes what took a short time.
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

// waitText writes how long something takes from now.
func waitText(s float64) string {
	n := int64(math.Ceil(s))
	switch {
	case n <= 0:
		return "now"
	case n < 60:
		return fmt.Sprintf("%d\u202fs", n)
	case n < 3600:
		return fmt.Sprintf("%d\u202fmin", (n+59)/60)
	case n < 48*3600:
		return fmt.Sprintf("%d\u202fh", (n+3599)/3600)
	}
	return fmt.Sprintf("%d\u202fd", (n+86399)/86400)
}

// limitText writes a limit in words: "100 per second, burst 200".
func limitText(l limitReport) string {
	if l.Limit == "" {
		return "off by default"
	}
	period := int64(l.Period)
	text := countText(l.Count) + " per "
	unit := func(n int64, name string) string {
		if n == 1 {
			return name
		}
		return fmt.Sprintf("%d %ss", n, name)
	}
	switch {
	case l.Period < 1 || l.Period != float64(period):
		text += time.Duration(l.Period * float64(time.Second)).String()
	case period%86400 == 0:
		text += unit(period/86400, "day")
	case period%3600 == 0:
		text += unit(period/3600, "hour")
	case period%60 == 0:
		text += unit(period/60, "minute")
	default:
		text += unit(period, "second")
	}
	if l.Burst != l.Count {
		text += ", burst " + countText(l.Burst)
	}
	if l.Queue > 0 {
		text += ", queue " + countText(l.Queue)
	}
	return text
}

// percent returns how much of a bucket has been spent, for a bar of that width.
func percent(b bucketReport) int { return int(math.Round(100 * b.used())) }
