package replay

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/chart"
)

// timeline counts the requests of a log, and those that each column admits, in
// slices of time that are equally long.
type timeline struct {
	width       int64 // of a slice, in nanoseconds
	slices      map[int64][]int64
	first, last int64 // instants of requests
}

// mostSlices bounds the memory. It is more than a chart is wide in pixels.
const mostSlices = 2048

// add counts a request. A slice has the requests first, then those that each
// column admits.
func (t *timeline) add(at int64, allowed []bool) {
	if t.slices == nil {
		t.width, t.slices, t.first, t.last = int64(time.Second), map[int64][]int64{}, at, at
	}
	t.first, t.last = min(t.first, at), max(t.last, at)
	slice := t.slices[at/t.width]
	if slice == nil && len(t.slices) == mostSlices {
		t.widen()
		slice = t.slices[at/t.width]
	}
	if slice == nil {
		slice = make([]int64, 1+len(allowed))
		t.slices[at/t.width] = slice
	}
	slice[0]++
	for i, ok := range allowed {
		if ok {
			slice[1+i]++
		}
	}
}

// widen doubles the width of the slices, until half of them are free.
func (t *timeline) widen() {
	for len(t.slices) > mostSlices/2 {
		wider := make(map[int64][]int64, len(t.slices))
		for n, slice := range t.slices {
			if wider[n/2] == nil {
				wider[n/2] = make([]int64, len(slice))
			}
			for i := range slice {
				wider[n/2][i] += slice[i]
			}
		}
		t.width, t.slices = 2*t.width, wider
	}
}

// steps returns the instants at which a count grows, since the first request.
func (t *timeline) steps(count int) iter.Seq2[int64, int64] {
	return func(yield func(at, n int64) bool) {
		for _, n := range slices.Sorted(maps.Keys(t.slices)) {
			if grows := t.slices[n][count]; grows > 0 && !yield(max(0, n*t.width-t.first), grows) {
				return
			}
		}
	}
}

// SVG returns a picture of the requests, and of those that each limit admits.
// Config.Chart must be set.
func (r *Replay) SVG(title string) []byte {
	t := r.timeline
	c := chart.Chart{Title: title, To: t.last - t.first, Requests: r.summary.Requests, Asked: t.steps(0),
		Since: time.Unix(0, t.first).UTC().Format("2006-01-02 15:04:05 UTC")}
	var names []string
	for _, limit := range r.Deciding {
		names = append(names, limit.Limit)
	}
	if !r.Each {
		names = []string{strings.Join(names, ", ")}
	}
	for i, column := range r.columns {
		c.Curves = append(c.Curves, chart.Curve{Name: "admitted", Detail: names[i], Total: column.allowed, Steps: t.steps(1 + i),
			Result: fmt.Sprintf("%s admits %d of %d", names[i], column.allowed, r.summary.Requests)})
	}
	return c.SVG()
}
