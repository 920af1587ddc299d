package simulate

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/chart"
	"github.com/stint-go/stint/internal/display"
)

func (s *Simulation) span() (from, to int64) {
	return s.requests[0], max(s.end, s.requests[len(s.requests)-1])
}

// Text returns the chart for a terminal of that width: a table of the limits,
// then a row of bars for each part of the time. A width of 0 means no bound.
func (s *Simulation) Text(width int) string {
	limits := display.Table{Header: []string{"limit", "", "admitted", "denied", "nearest miss"}}
	for _, l := range s.limits {
		limit, miss := l.limit.String(), "none"
		if limit == l.name {
			limit = ""
		}
		if l.nearestMiss > 0 {
			miss = fmt.Sprintf("request %d, %v too early", l.missed, l.nearestMiss)
		}
		limits.Rows = append(limits.Rows, []string{display.Visible(l.name), limit,
			fmt.Sprintf("%d of %d", l.allowed, len(s.requests)), fmt.Sprint(s.denied(l)), miss})
	}
	return fmt.Sprintf("%s: %s\n\n", display.Visible(s.title), display.Plural(len(s.requests), "request")) +
		limits.Text(width) + s.resets() + s.bars(width) + "\n█ admitted  ░ denied\n"
}

// resets returns a line for each quota that follows the calendar, and when the
// load begins by it.
func (s *Simulation) resets() string {
	var b strings.Builder
	for _, l := range s.limits {
		if l.limit.FollowsCalendar() {
			fmt.Fprintf(&b, "%s resets %s\n", display.Visible(l.name), display.Resets(l.limit))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n" + b.String() + "The load begins on " + beginning.Format("2 January 2006 at 15:04 MST") + ".\n"
}

// bars returns a row of bars for each part of the time, with as many limits
// beside each other as the width has space for.
func (s *Simulation) bars(width int) string {
	from, to := s.span()
	const rows = 20
	var requests [rows]int
	bin := func(at int64) int { return int(min(rows-1, float64(at-from)/float64(max(1, to-from))*rows)) }
	admitted := make([][rows]int, len(s.limits))
	most := 0
	for i, at := range s.requests {
		requests[bin(at)]++
		most = max(most, requests[bin(at)])
		for j, l := range s.limits {
			if l.admitted[i] {
				admitted[j][bin(at)]++
			}
		}
	}
	const times, least = 10, 8 // columns of the time, and of a bar
	counts := max(11, len(fmt.Sprintf(" %d of %d ", most, most)))
	beside, long := len(s.limits), max(least, 60/len(s.limits)-10)
	if width > 0 && times+beside*(long+1+counts) > width {
		beside = min(beside, max(1, (width-times)/(least+1+counts)))
		long = max(least, (width-times)/beside-counts-1)
	}
	length := func(n int) int { return (n*long + most - 1) / most } // at least one character if n > 0
	var b strings.Builder
	for first := 0; first < len(s.limits); first += beside {
		group := s.limits[first:min(first+beside, len(s.limits))]
		header := display.Pad("from", times)
		for _, l := range group {
			header += display.Pad(display.Shortened(display.Visible(l.name), long+counts), long+1+counts)
		}
		b.WriteString("\n" + strings.TrimRight(header, " ") + "\n")
		for row := range rows {
			if row > 0 && to == from {
				break // all at once: only the first row has requests
			}
			at := time.Duration(from + (to-from)/rows*int64(row))
			line := display.Pad(chart.AxisTime(at, time.Duration(to-from)/rows), times)
			for j := range group {
				n := admitted[first+j][row]
				bar := strings.Repeat("█", length(n))
				bar += strings.Repeat("░", length(requests[row])-length(n))
				line += display.Pad(bar, long+1) + display.Pad(fmt.Sprintf("%d of %d", n, requests[row]), counts)
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	return b.String()
}

// SVG returns the chart as a picture: the requests that each limit has admitted
// at each instant.
func (s *Simulation) SVG() []byte {
	from, to := s.span()
	steps := func(admitted func(i int) bool) iter.Seq2[int64, int64] {
		return func(yield func(at, n int64) bool) {
			for i, at := range s.requests {
				if admitted(i) && !yield(at, 1) {
					return
				}
			}
		}
	}
	c := chart.Chart{Title: s.title, From: from, To: to, Since: "the beginning",
		Requests: int64(len(s.requests)), Asked: steps(func(int) bool { return true })}
	for _, l := range s.limits {
		c.Curves = append(c.Curves, chart.Curve{Name: l.name, Detail: l.limit.String(), Total: l.allowed,
			Steps:  steps(func(i int) bool { return l.admitted[i] }),
			Result: fmt.Sprintf("%s (%v) admits %d of %d", l.name, l.limit, l.allowed, len(s.requests))})
	}
	return c.SVG()
}
