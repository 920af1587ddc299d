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
	cmd.Flags().BoolVar(&f.quiet, "quiet", false, "print errors only; the exit status shows a denial")
}

func (f *outputFlags) misused(cmd *cobra.Command) error { return exclusive(cmd, "json", "quiet") }

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// idJSON is an id in JSON. JSON is UTF-8, and would replace other bytes, so
// that two ids could become one.
type idJSON struct {
	ID     string `json:"id"`
	Base64 bool   `json:"base64,omitempty"` // because the id is not UTF-8
}

func newIDJSON(id string) idJSON {
	if utf8.ValidString(id) {
		return idJSON{ID: id}
	}
	return idJSON{base64.StdEncoding.EncodeToString([]byte(id)), true}
}

// limitJSON is a limit in JSON. The period is as in "1m0s".
type limitJSON struct {
	Burst  int64  `json:"burst"`
	Count  int64  `json:"count"`
	Period string `json:"period"`
}

// newLimitJSON returns nil, which is null, if there is no limit.
func newLimitJSON(l stint.Limit) *limitJSON {
	if l.Burst == 0 {
		return nil
	}
	return &limitJSON{l.Burst, l.Count, l.Period.String()}
}

// printable returns an id. If a terminal would not show each of its characters,
// the id is quoted.
func printable(id string) string {
	if id == "" { // of a stint.Shared limit
		return `""`
	}
	for _, r := range id {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar || r == ' ' {
			return strconv.Quote(id)
		}
	}
	return id
}

// visible returns a text without characters that control a terminal.
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

// size returns a number of bytes for people.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return plural(int(n), "byte")
	}
	v, unit := float64(n)/1024, 0
	for v >= 1023.95 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[unit])
}

// duration returns d for people: in two units at most, and rounded up so that a
// caller does not retry too early.
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
