package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// summary is what --json prints of a replay.
type summary struct {
	Requests  int64            `json:"requests"`
	Allowed   *int64           `json:"allowed,omitempty"` // nil if Tried is there
	Denied    *int64           `json:"denied,omitempty"`
	Malformed int64            `json:"malformed"`
	Other     int64            `json:"other,omitempty"`
	IDs       int              `json:"ids"`
	TopDenied []idSummary      `json:"top_denied,omitzero"`
	DeniedBy  map[string]int64 `json:"denied_by,omitempty"`
	Tried     []tried          `json:"tried,omitempty"`

	BusiestMinute *minuteSummary `json:"busiest_minute"` // null without requests

	limits []string
}

// tried is what one of several limits did.
type tried struct {
	Limit     string      `json:"limit"`
	Allowed   int64       `json:"allowed"`
	Denied    int64       `json:"denied"`
	IDsDenied int         `json:"ids_denied"`
	TopDenied []idSummary `json:"top_denied"`
}

type idSummary struct {
	idJSON
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`

	id string
}

// minuteSummary is a minute of the log's own time, in UTC.
type minuteSummary struct {
	Start    time.Time `json:"start"`
	Requests int64     `json:"requests"`
	Denied   *int64    `json:"denied,omitempty"` // nil with --try
}

func (r *replayer) summary() summary {
	s := summary{Requests: r.requests, Malformed: r.malformed, Other: r.other, IDs: len(r.byID), limits: r.limits}
	for minute, c := range r.byMinute {
		m := &minuteSummary{Start: time.Unix(60*minute, 0).UTC(), Requests: c.requests()}
		if !r.sweep {
			m.Denied = &c.denied
		}
		b := s.BusiestMinute
		if b == nil || m.Requests > b.Requests || m.Requests == b.Requests && m.Start.Before(b.Start) {
			s.BusiestMinute = m
		}
	}
	for i, c := range r.columns {
		top, ids := r.topDenied(i)
		if !r.sweep {
			s.Allowed, s.Denied, s.TopDenied = &c.allowed, &c.denied, top
			break
		}
		s.Tried = append(s.Tried, tried{r.limits[i], c.allowed, c.denied, ids, top})
	}
	if !r.sweep && len(r.limits) > 1 {
		s.DeniedBy = map[string]int64{}
		for i, limit := range r.limits {
			s.DeniedBy[limit] = r.deniedBy[i]
		}
	}
	return s
}

// topDenied returns the ids with the most denials, and how many ids had any.
func (r *replayer) topDenied(column int) (top []idSummary, ids int) {
	top = []idSummary{}
	const most = 10
	for id, t := range r.byID {
		if c := t.columns[column]; c.denied > 0 {
			top = append(top, idSummary{newIDJSON(id), c.allowed, c.denied, id})
		}
	}
	slices.SortFunc(top, func(a, b idSummary) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.id, b.id))
	})
	return top[:min(most, len(top))], len(top)
}

func (f *replayFlags) print(w io.Writer, s summary) error {
	if f.json {
		return printJSON(w, s)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "requests   %d\n", s.Requests)
	if s.Tried == nil {
		fmt.Fprintf(&b, "allowed    %d\ndenied     %d\n", *s.Allowed, *s.Denied)
	}
	fmt.Fprintf(&b, "malformed  %d\n", s.Malformed)
	if s.Other > 0 {
		fmt.Fprintf(&b, "other      %d\n", s.Other)
	}
	fmt.Fprintf(&b, "ids        %d\n", s.IDs)
	if m := s.BusiestMinute; m != nil {
		start := m.Start.Format("2006-01-02 15:04")
		fmt.Fprintf(&b, "\nbusiest minute  %s UTC: %s", start, plural(int(m.Requests), "request"))
		if m.Denied != nil {
			fmt.Fprintf(&b, ", %d denied", *m.Denied)
		}
		b.WriteByte('\n')
	}
	if s.DeniedBy != nil {
		fmt.Fprintf(&b, "\ndenied by\n")
		for _, limit := range s.limits {
			fmt.Fprintf(&b, "%8d  %s\n", s.DeniedBy[limit], limit)
		}
	}
	if len(s.TopDenied) > 0 {
		fmt.Fprintf(&b, "\ndenied most\n")
	}
	for _, id := range s.TopDenied {
		fmt.Fprintf(&b, "%8d of %d  %s\n", id.Denied, id.Allowed+id.Denied, printable(id.id))
	}
	if s.Tried != nil {
		s.printTried(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printTried writes the table of the limits that were tried.
func (s *summary) printTried(b *strings.Builder) {
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "\nlimit\tdenied\tof all\tids\tdenied most\n")
	for _, t := range s.Tried {
		var whom []string
		for _, id := range t.TopDenied[:min(3, len(t.TopDenied))] {
			whom = append(whom, fmt.Sprintf("%s (%d of %d)", printable(id.id), id.Denied, id.Allowed+id.Denied))
		}
		if t.Denied == 0 {
			whom = []string{"nobody"}
		}
		percent := 100 * float64(t.Denied) / float64(max(1, s.Requests))
		fmt.Fprintf(tw, "%s\t%d\t%.1f%%\t%d\t%s\n", t.Limit, t.Denied, percent, t.IDsDenied, strings.Join(whom, ", "))
	}
	_ = tw.Flush() // a Builder does not fail
}
