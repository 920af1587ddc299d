package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/display"
)

// Summary is the result of a replay. Its JSON is the output of --json.
type Summary struct {
	Requests  int64            `json:"requests"`
	Allowed   *int64           `json:"allowed,omitempty"` // nil if Tried is there
	Denied    *int64           `json:"denied,omitempty"`
	Checked   int64            `json:"checked,omitempty"` // of the requests, those that spend nothing
	Malformed int64            `json:"malformed"`
	Other     int64            `json:"other,omitempty"`
	Repeated  *repeatSummary   `json:"repeated,omitempty"`
	Tokens    *tokenSummary    `json:"tokens,omitempty"`
	OverBurst int64            `json:"over_burst,omitempty"`
	NoYear    *yearSummary     `json:"no_year,omitempty"`
	IDs       int              `json:"ids"`
	TopDenied []idSummary      `json:"top_denied,omitzero"`
	DeniedBy  map[string]int64 `json:"denied_by,omitempty"`
	Tried     []tried          `json:"tried,omitempty"`

	BusiestMinute *minuteSummary `json:"busiest_minute"` // null without requests

	deciding []Deciding
	resets   []string // of the quotas that follow the calendar
	top      int      // ids named beside each limit of Tried
}

// repeatSummary counts lines that stand for repeated messages.
type repeatSummary struct {
	Lines    int64 `json:"lines"`
	Requests int64 `json:"requests"`
}

type tokenSummary struct {
	Asked   int64  `json:"asked"`
	Allowed *int64 `json:"allowed,omitempty"` // nil with --try
}

// yearSummary counts lines whose year was inferred.
type yearSummary struct {
	Lines int64 `json:"lines"`
	First int   `json:"first"`
	Last  int   `json:"last"`
}

func (y *yearSummary) String() string {
	if y.First == y.Last {
		return strconv.Itoa(y.First)
	}
	return fmt.Sprintf("%d to %d", y.First, y.Last)
}

// tried is the result of one limit of --try.
type tried struct {
	Limit     string      `json:"limit"`
	Allowed   int64       `json:"allowed"`
	Denied    int64       `json:"denied"`
	IDsDenied int         `json:"ids_denied"`
	TopDenied []idSummary `json:"top_denied"`

	TokensAllowed *int64 `json:"tokens_allowed,omitempty"` // nil if each request cost one
}

type idSummary struct {
	display.JSONID
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

// Summary returns the results, with the top ids by denials. If top is 0, these
// are 10, or 3 beside each of several limits.
func (r *Replay) Summary(top int) Summary {
	s := r.summary
	s.IDs, s.deciding, s.top = len(r.byID), r.Deciding, cmp.Or(top, 3)
	for _, limit := range r.Deciding {
		if spec, _ := r.Limits.Spec(limit.Name); spec.Limit.FollowsCalendar() {
			s.resets = append(s.resets, limit.Limit+" resets "+display.Resets(spec.Limit))
		}
	}
	if r.repeated.Lines > 0 {
		s.Repeated = &r.repeated
	}
	if r.costs {
		s.Tokens = &tokenSummary{Asked: r.tokens}
	}
	if r.reader.times.inferred.Lines > 0 {
		s.NoYear = &r.reader.times.inferred
	}
	for minute, c := range r.byMinute {
		m := &minuteSummary{Start: time.Unix(60*minute, 0).UTC(), Requests: c.allowed + c.denied}
		if !r.Each {
			m.Denied = &c.denied
		}
		b := s.BusiestMinute
		if b == nil || m.Requests > b.Requests || m.Requests == b.Requests && m.Start.Before(b.Start) {
			s.BusiestMinute = m
		}
	}
	for i, c := range r.columns {
		denied, ids := r.topDenied(i, cmp.Or(top, 10))
		if !r.Each {
			s.Allowed, s.Denied, s.TopDenied = &c.allowed, &c.denied, denied
			if r.costs {
				s.Tokens.Allowed = &c.tokens
			}
			break
		}
		t := tried{r.Deciding[i].Limit, c.allowed, c.denied, ids, denied, nil}
		if r.costs {
			t.TokensAllowed = &c.tokens
		}
		s.Tried = append(s.Tried, t)
	}
	if !r.Each && len(r.Deciding) > 1 {
		s.DeniedBy = map[string]int64{}
		for i, limit := range r.Deciding {
			s.DeniedBy[limit.Limit] = r.deniedBy[i]
		}
	}
	return s
}

// topDenied returns the ids with the most denials, and the number of all ids
// with a denial. The parameter most bounds only the list.
func (r *Replay) topDenied(column, most int) (top []idSummary, ids int) {
	top = []idSummary{}
	for id, t := range r.byID {
		if c := t.columns[column]; c.denied > 0 {
			top = append(top, idSummary{display.NewJSONID(id), c.allowed, c.denied, id})
		}
	}
	slices.SortFunc(top, func(a, b idSummary) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.id, b.id))
	})
	return top[:min(most, len(top))], len(top)
}

// Text returns the summary for a terminal of that width. A width of 0 means no
// bound.
func (s *Summary) Text(width int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "requests   %d\n", s.Requests)
	if s.Tried == nil {
		fmt.Fprintf(&b, "allowed    %d\ndenied     %d\n", *s.Allowed, *s.Denied)
	}
	if s.Checked > 0 {
		fmt.Fprintf(&b, "checked    %d, which spend nothing\n", s.Checked)
	}
	fmt.Fprintf(&b, "malformed  %d\n", s.Malformed)
	if s.Other > 0 {
		fmt.Fprintf(&b, "other      %d\n", s.Other)
	}
	if s.Repeated != nil {
		fmt.Fprintf(&b, "repeated   %d, in %s\n", s.Repeated.Requests, display.Plural(int(s.Repeated.Lines), "line"))
	}
	if t := s.Tokens; t != nil && t.Allowed != nil {
		fmt.Fprintf(&b, "tokens     %d, of which %d were allowed\n", t.Asked, *t.Allowed)
	} else if t != nil {
		fmt.Fprintf(&b, "tokens     %d\n", t.Asked)
	}
	if s.OverBurst > 0 {
		fmt.Fprintf(&b, "over burst %d\n", s.OverBurst)
	}
	fmt.Fprintf(&b, "ids        %d\n", s.IDs)
	if m := s.BusiestMinute; m != nil {
		start := m.Start.Format("2006-01-02 15:04")
		fmt.Fprintf(&b, "\nbusiest minute  %s UTC: %s", start, display.Plural(int(m.Requests), "request"))
		if m.Denied != nil {
			fmt.Fprintf(&b, ", %d denied", *m.Denied)
		}
		b.WriteByte('\n')
	}
	if len(s.resets) > 0 {
		fmt.Fprintf(&b, "\n%s\n", strings.Join(s.resets, "\n"))
	}
	if s.DeniedBy != nil {
		fmt.Fprintf(&b, "\ndenied by\n")
		for _, limit := range s.deciding {
			fmt.Fprintf(&b, "%8d  %s\n", s.DeniedBy[limit.Limit], limit.Limit)
		}
	}
	for i, id := range s.TopDenied {
		if i == 0 {
			b.WriteString("\ndenied most\n")
		}
		fmt.Fprintf(&b, "%8d of %d  %s\n", id.Denied, id.Allowed+id.Denied, display.Printable(id.id))
	}
	if s.Tried != nil {
		s.printTried(&b, width)
	}
	return b.String()
}

func (s *Summary) printTried(b *strings.Builder, width int) {
	tried := display.Table{Header: []string{"limit", "denied", "of all", "ids", "denied most"}}
	for _, t := range s.Tried {
		var whom []string
		for _, id := range t.TopDenied[:min(s.top, len(t.TopDenied))] {
			whom = append(whom, fmt.Sprintf("%s (%d of %d)", display.Printable(id.id), id.Denied, id.Allowed+id.Denied))
		}
		if t.Denied == 0 {
			whom = []string{"nobody"}
		}
		percent := 100 * float64(t.Denied) / float64(max(1, s.Requests))
		tried.Rows = append(tried.Rows, []string{t.Limit, fmt.Sprint(t.Denied), fmt.Sprintf("%.1f%%", percent),
			fmt.Sprint(t.IDsDenied), strings.Join(whom, ", ")})
	}
	b.WriteString("\n" + tried.Text(width))
}
