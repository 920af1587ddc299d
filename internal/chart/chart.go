package chart

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/display"
)

// AxisTime returns a mark of an axis, exact enough to differ from marks one
// step away.
func AxisTime(at, step time.Duration) string {
	for unit := time.Second; unit > 1; unit /= 10 {
		if unit <= step {
			return at.Round(unit).String()
		}
	}
	return at.String()
}

// The size of the picture in pixels, and the margins for the labels.
const (
	svgWide, svgHigh                     = 760, 420
	svgLeft, svgRight, svgTop, svgBottom = 64, 196, 64, 52
	plotWide, plotHigh                   = svgWide - svgLeft - svgRight, svgHigh - svgTop - svgBottom
	labelHigh                            = 40 // two lines, and space
)

// MostCurves is how many curves can be told apart in a chart. chart.css has a color
// for each, c0 to c5, which differ for the color-blind too. They are Okabe and
// Ito's, darker on white and lighter on black.
const MostCurves = 6

//go:embed chart.css
var style string

// Chart has curves of counts that grow with time. The first is of all requests,
// and each of the others, at most MostCurves, of those that a limit admits.
type Chart struct {
	Title    string
	From, To int64                   // nanoseconds
	Since    string                  // when the time begins
	Requests int64                   // all of them
	Asked    iter.Seq2[int64, int64] // Steps of their count
	Curves   []Curve
}

// Curve is a count that grows with time.
type Curve struct {
	Name, Detail string
	Result       string // in a sentence
	Total        int64
	Steps        iter.Seq2[int64, int64] // instants in order, and by how much the count grows
}

// SVG returns the picture.
func (c *Chart) SVG() []byte {
	from, to := c.From, c.To
	asked := Curve{Name: display.Plural(int(c.Requests), "request"), Detail: "asked", Total: c.Requests, Steps: c.Asked}
	var results []string
	for _, curve := range c.Curves {
		results = append(results, curve.Result)
	}
	scaleX := func(at int64) float64 { return svgLeft + plotWide*float64(at-from)/float64(max(1, to-from)) }
	top := niceTop(float64(asked.Total))
	scaleY := func(n float64) float64 { return svgTop + plotHigh*(1-n/top.last) }

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" `+
		`role="img" aria-labelledby="title desc">`+"\n", svgWide, svgHigh)
	fmt.Fprintf(&b, `<title id="title">%s</title>`+"\n", escaped(c.Title))
	fmt.Fprintf(&b, `<desc id="desc">%s</desc>`+"\n", escaped("Requests admitted as time goes on: "+strings.Join(results, "; ")+"."))
	fmt.Fprintf(&b, "<style>\n%s</style>\n", style)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d"/>`+"\n", svgWide, svgHigh)
	fmt.Fprintf(&b, `<text class="head" x="%d" y="28">%s</text>`+"\n", svgLeft, escaped(display.Shortened(c.Title, 80)))
	fmt.Fprintf(&b, `<text class="note" x="%d" y="48">requests admitted so far</text>`+"\n", svgLeft)

	for n := 0.0; n <= top.last; n += top.step {
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/>`+
			`<text class="tick" x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n",
			svgLeft, scaleY(n), svgLeft+plotWide, svgLeft-8, scaleY(n)+4, n)
	}
	marks, step := timeMarks(from, to)
	for _, at := range marks {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dv5"/>`+
			`<text class="tick" x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			scaleX(at), svgTop+plotHigh, scaleX(at), svgTop+plotHigh+20, AxisTime(time.Duration(at), step))
	}
	fmt.Fprintf(&b, `<text class="note" x="%d" y="%d" text-anchor="middle">time since %s</text>`+"\n",
		svgLeft+plotWide/2, svgHigh-10, escaped(c.Since))

	draw := func(class string, curve *Curve) (end float64) {
		fmt.Fprintf(&b, `<path class="%s" d="M%d %.1f`, class, svgLeft, scaleY(0))
		n, lastX := int64(0), 0.0
		for at, more := range curve.Steps {
			if x := scaleX(at); x-lastX >= 0.25 { // closer ones are one step
				if n > 0 {
					fmt.Fprintf(&b, "V%.1f", scaleY(float64(n)))
				}
				fmt.Fprintf(&b, "H%.1f", x)
				lastX = x
			}
			n += more
		}
		fmt.Fprintf(&b, `V%.1fH%d"/>`+"\n", scaleY(float64(n)), svgLeft+plotWide)
		return scaleY(float64(n))
	}
	type label struct {
		y           float64
		class       string
		first, then string
	}
	labels := []label{{draw("line asked", &asked), "asked", asked.Name, asked.Detail}}
	for j := range c.Curves {
		curve := &c.Curves[j]
		y := draw(fmt.Sprintf("line c%d", j), curve)
		first := fmt.Sprintf("%d  %s", curve.Total, display.Shortened(curve.Name, 18))
		labels = append(labels, label{y, fmt.Sprintf("c%d", j), first, display.Shortened(curve.Detail, 30)})
	}
	// Labels are beside the ends of their lines, and do not overlap.
	slices.SortStableFunc(labels, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	for i := range labels {
		labels[i].y = max(labels[i].y, svgTop+float64(labelHigh*i))
	}
	for i := len(labels) - 1; i >= 0; i-- {
		labels[i].y = min(labels[i].y, float64(svgTop+plotHigh-labelHigh*(len(labels)-1-i)))
	}
	for _, l := range labels {
		fmt.Fprintf(&b, `<text class="name t%s" x="%d" y="%.1f">%s</text>`+
			`<text class="tick" x="%d" y="%.1f">%s</text>`+"\n",
			l.class, svgLeft+plotWide+10, l.y+4, escaped(l.first), svgLeft+plotWide+10, l.y+20, escaped(l.then))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// escaped returns a text for XML, in which control characters are visible.
func escaped(s string) string { return html.EscapeString(display.Visible(s)) }

// axis is from 0 to last, with a mark at each step.
type axis struct{ step, last float64 }

// niceTop returns an axis that is long enough for the number most, with marks
// at round numbers.
func niceTop(most float64) axis {
	step := math.Pow(10, math.Floor(math.Log10(max(1, most))))
	for _, part := range []float64{0.1, 0.2, 0.25, 0.5, 1, 2} {
		if s := step * part; s >= 1 && s == math.Trunc(s) && most/s <= 6 {
			return axis{s, math.Ceil(most/s) * s}
		}
	}
	return axis{step, math.Ceil(most/step) * step}
}

// timeMarks returns at most eight round instants between two instants.
func timeMarks(from, to int64) (marks []int64, step time.Duration) {
	units := []time.Duration{1}
	for unit := time.Duration(1); unit < time.Second; unit *= 10 {
		units = append(units, 2*unit, 5*unit, 10*unit)
	}
	for _, unit := range []time.Duration{time.Second, time.Minute} {
		for _, n := range []time.Duration{2, 5, 10, 15, 30, 60} {
			units = append(units, n*unit)
		}
	}
	for hours := time.Duration(2); hours < 1<<19; hours *= 2 {
		units = append(units, hours*time.Hour)
	}
	for _, step = range units {
		if (to-from)/int64(step) <= 7 {
			break
		}
	}
	for at := (from + int64(step) - 1) / int64(step) * int64(step); at <= to; at += int64(step) {
		marks = append(marks, at)
	}
	return marks, step
}
