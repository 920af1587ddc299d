package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

type outputFlags struct {
	json, quiet bool
}

func (f *outputFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "print nothing but errors; a denial shows in the exit status")
}

func (f *outputFlags) misused(cmd *cobra.Command) error { return exclusive(cmd, "json", "quiet") }

// idJSON is an id in JSON, which has no other text than UTF-8: of two ids that are not, it would make the same.
type idJSON struct {
	ID     string `json:"id"`
	Base64 bool   `json:"base64,omitempty"` // the id is not UTF-8, and written so
}

func newIDJSON(id string) idJSON {
	if utf8.ValidString(id) {
		return idJSON{ID: id}
	}
	return idJSON{base64.StdEncoding.EncodeToString([]byte(id)), true}
}

// limitJSON is a limit in what --json prints. The period is as in "1m0s".
type limitJSON struct {
	Burst  int64  `json:"burst"`
	Count  int64  `json:"count"`
	Period string `json:"period"`
}

// newLimitJSON returns nil, which is null, where there is no limit.
func newLimitJSON(l stint.Limit) *limitJSON {
	if l.Burst == 0 {
		return nil
	}
	return &limitJSON{l.Burst, l.Count, l.Period.String()}
}

// decisionJSON is what --json prints of a decision. Where no limit applies, limit is null and remaining 2⁶³−1.
type decisionJSON struct {
	Allowed bool   `json:"allowed"`
	Name    string `json:"name"`
	idJSON
	Cost       int64         `json:"cost"`
	Remaining  int64         `json:"remaining"`
	Limit      *limitJSON    `json:"limit"`
	RetryAfter time.Duration `json:"retry_after_ns"`
	ResetAfter time.Duration `json:"reset_after_ns"`
}

func (f *outputFlags) decision(w io.Writer, asked *decideFlags, id string, d stint.Decision) error {
	switch {
	case f.quiet:
		return nil
	case f.json:
		return printJSON(w, decisionJSON{d.Allowed, asked.limits.label(), newIDJSON(id), asked.cost, d.Remaining, newLimitJSON(d.Limit), d.RetryAfter, d.ResetAfter})
	}
	done, state := asked.done, asked.state
	if !d.Allowed {
		done = "denied"
	}
	if d.Limit.Burst > 0 {
		state = stateOf(d)
	} else if d.Limit == stint.Blocked {
		state = "blocked"
	}
	_, err := fmt.Fprintf(w, "%s  %s  %s\n", done, printable(id), state)
	return err
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// stateOf says in words what a decision found: "0 of 3 left, retry in 19.8s".
func stateOf(d stint.Decision) string {
	s := fmt.Sprintf("%d of %d left", d.Remaining, d.Limit.Burst)
	switch {
	case !d.Allowed:
		s += ", retry in " + duration(d.RetryAfter)
	case d.ResetAfter > 0:
		s += ", full in " + duration(d.ResetAfter)
	}
	return s
}

// duration writes d for people: in two units at most, and rounded up, so that nobody comes back too early.
func duration(d time.Duration) string {
	const day = 24 * time.Hour
	for _, step := range []struct{ below, unit time.Duration }{
		{time.Second, time.Millisecond},
		{time.Minute, time.Second / 10},
		{time.Hour, time.Second},
		{2 * day, time.Minute},
		{math.MaxInt64, time.Hour},
	} {
		if d < step.below {
			if rest := d % step.unit; rest > 0 && d < math.MaxInt64-step.unit {
				d += step.unit - rest
			}
			break
		}
	}
	switch {
	case d < time.Minute:
		return d.String() // "19.8s"
	case d < time.Hour:
		return twoUnits(d, time.Minute, "m", time.Second, "s")
	case d < 2*day:
		return twoUnits(d, time.Hour, "h", time.Minute, "m")
	}
	return twoUnits(d, day, "d", time.Hour, "h")
}

func twoUnits(d, large time.Duration, l string, small time.Duration, s string) string {
	text := strconv.Itoa(int(d/large)) + l
	if rest := d % large / small; rest > 0 {
		text += strconv.Itoa(int(rest)) + s
	}
	return text
}

// printable returns an id as it is, or quoted where a terminal would not show it as it is.
func printable(id string) string {
	if id == "" { // of a limit with one bucket for everyone
		return `""`
	}
	for _, r := range id {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar || r == ' ' {
			return strconv.Quote(id)
		}
	}
	return id
}

// visible returns a text as it is, but for what would do something to a terminal.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "try"); ok {
		noun = stem + "trie"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
