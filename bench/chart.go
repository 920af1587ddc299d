package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// A chart is lines over two logarithmic axes, with each line's name at its end.
// The SVG is light or dark as the reader's system is.
type chart struct {
	title, x, y string
	xText       func(float64) string // how the axes' numbers are written
	yText       func(float64) string
	lines       []line
}

type line struct {
	name   string
	xs, ys []float64 // points with a y of 0 are left out
}

const (
	chartWidth, chartHeight                  = 860, 480
	plotLeft, plotTop, plotRight, plotBottom = 76, 64, 640, 420
)

// colors are the colors of the background, the text, the faint text, the grid,
// and then the lines.
type colors [14]string

var (
	light = colors{"#ffffff", "#24292f", "#57606a", "#d8dee4",
		"#0550ae", "#1a7f78", "#bc4c00", "#8250df", "#bf3989", "#4d7c0f", "#9a6700", "#6e7781", "#cf222e", "#1f2328"}
	dark = colors{"#0d1117", "#e6edf3", "#9198a1", "#30363d",
		"#58a6ff", "#39c5bb", "#f0883e", "#bc8cff", "#ff7bc0", "#a5d64c", "#d8a520", "#9aa4ae", "#ff7b72", "#f0f6fc"}
)

const lineColors = len(colors{}) - 4

// css returns the rules that set the colors. They have no CSS variables, which
// not every viewer knows.
func (c colors) css() string {
	s := fmt.Sprintf(".ground { fill: %s } text { fill: %s } .faint { fill: %s } .grid { stroke: %s }\n", c[0], c[1],
		c[2], c[3])
	for i, color := range c[4:] {
		s += fmt.Sprintf(".l%d { stroke: %s } .f%[1]d { fill: %[2]s }\n", i, color)
	}
	return s
}

func chartStyle() string {
	return "<style>\n" + light.css() +
		"@media (prefers-color-scheme: dark) {\n" + dark.css() + "}\n" +
		`svg { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
.title { font-size: 16px; font-weight: 600 }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round } .strong { stroke-width: 3.5 }
</style>
`
}

// svg draws the chart.
func (c chart) svg() string {
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+
		`width="%[1]d" height="%[2]d" role="img" aria-label="%s">`+"\n",
		chartWidth, chartHeight, html.EscapeString(c.title))
	s.WriteString(chartStyle())
	fmt.Fprintf(&s, `<rect class="ground" width="%d" height="%d"/>`+"\n", chartWidth, chartHeight)
	text := func(x, y float64, class, anchor, t string) {
		fmt.Fprintf(&s, `<text x="%.0f" y="%.0f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor,
			html.EscapeString(t))
	}
	text(plotLeft-60, 28, "title", "start", c.title)
	text(plotLeft-60, 48, "faint", "start", c.y)
	text((plotLeft+plotRight)/2, plotBottom+44, "faint", "middle", c.x)

	xs, ys := c.values()
	if len(xs) == 0 {
		return s.String() + "</svg>\n"
	}
	xAt := scale(xs, plotLeft, plotRight-12)
	yAt := scale(ys, plotBottom, plotTop+10)
	for _, y := range ticks(ys) {
		if at := yAt(y); at <= plotBottom+1 && at >= plotTop-1 {
			fmt.Fprintf(&s, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f"/>`+"\n", plotLeft, plotRight, at)
			text(plotLeft-8, at+4, "faint", "end", c.yText(y))
		}
	}
	for _, x := range xs {
		fmt.Fprintf(&s, `<line class="grid" x1="%.1f" x2="%.1[1]f" y1="%d" y2="%d"/>`+"\n", xAt(x), plotTop, plotBottom)
		text(xAt(x), plotBottom+20, "faint", "middle", c.xText(x))
	}

	type label struct {
		at    float64
		name  string
		color int
	}
	var labels []label
	for i, l := range c.lines {
		var points, dots strings.Builder
		last, end := 0.0, 0.0
		for k := range l.xs {
			if l.ys[k] > 0 {
				last, end = yAt(l.ys[k]), l.xs[k]
				fmt.Fprintf(&points, "%.1f,%.1f ", xAt(l.xs[k]), last)
				fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="3" class="f%d"/>`, xAt(l.xs[k]), last, i%lineColors)
			}
		}
		if points.Len() == 0 {
			continue
		}
		class := fmt.Sprintf("l%d", i%lineColors)
		if strings.HasPrefix(l.name, "stint") {
			class += " strong"
		}
		fmt.Fprintf(&s, `<polyline class="%s" points="%s"/>%s`+"\n", class, points.String(), dots.String())
		if end < xs[len(xs)-1] { // in the middle of the chart, the name stands at the end of its line
			fmt.Fprintf(&s, `<text x="%.0f" y="%.0f" class="f%d">%s</text>`+"\n", xAt(end)+8, last+5, i%lineColors,
				html.EscapeString(l.name))
		} else {
			labels = append(labels, label{last, l.name, i % lineColors})
		}
	}
	// Labels keep a distance from one another, and stay as near to their lines as that allows.
	slices.SortFunc(labels, func(a, b label) int { return int(math.Copysign(1, a.at-b.at)) })
	const apart = 17
	for range 100 {
		for i := 1; i < len(labels); i++ {
			if near := apart - (labels[i].at - labels[i-1].at); near > 0 {
				labels[i].at += near / 2
				labels[i-1].at -= near / 2
			}
		}
		for i := range labels {
			labels[i].at = min(max(labels[i].at, plotTop), plotBottom)
		}
	}
	for _, l := range labels {
		fmt.Fprintf(&s, `<text x="%d" y="%.0f" class="f%d">%s</text>`+"\n", plotRight+6, l.at+4, l.color,
			html.EscapeString(l.name))
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// values returns all x and y of the lines, sorted.
func (c chart) values() (xs, ys []float64) {
	for _, l := range c.lines {
		for k, y := range l.ys {
			if y > 0 {
				xs, ys = append(xs, l.xs[k]), append(ys, y)
			}
		}
	}
	slices.Sort(xs)
	slices.Sort(ys)
	return slices.Compact(xs), ys
}

// scale returns a function from a value to its place on a logarithmic axis.
func scale(sorted []float64, from, to float64) func(float64) float64 {
	low, high := math.Log10(sorted[0]*0.8), math.Log10(sorted[len(sorted)-1]*1.25)
	return func(v float64) float64 { return from + (math.Log10(v)-low)/(high-low)*(to-from) }
}

// ticks returns 1, 2 and 5, or over many decades only 1, times the powers of
// ten in and around the values.
func ticks(sorted []float64) (ts []float64) {
	low, high := math.Floor(math.Log10(sorted[0])), math.Ceil(math.Log10(sorted[len(sorted)-1])+0.1)
	for e := low; e <= high; e++ {
		ts = append(ts, math.Pow(10, e))
		if high-low <= 3 {
			ts = append(ts, 2*math.Pow(10, e), 5*math.Pow(10, e))
		}
	}
	return ts
}
