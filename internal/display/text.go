package display

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Printable returns an id. If a terminal would not show each of its characters,
// the id is quoted.
func Printable(id string) string {
	if id == "" { // of a stint.Single limit
		return `""`
	}
	for _, r := range id {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar || r == ' ' {
			return strconv.Quote(id)
		}
	}
	return id
}

// Visible returns a text without characters that control a terminal.
func Visible(text string) string {
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

// Plural returns a number with its noun: "2 buckets".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "try"); ok {
		noun = stem + "trie"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Size returns a number of bytes for people.
func Size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return Plural(int(n), "byte")
	}
	v, unit := float64(n)/1024, 0
	for v >= 1023.95 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[unit])
}

// Duration returns d for people: in two units at most, and rounded up so that a
// caller does not retry too early.
func Duration(d time.Duration) string {
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

// Shortened cuts s to so many characters.
func Shortened(s string, room int) string {
	if runes := []rune(s); len(runes) > room {
		return string(runes[:room-1]) + "…"
	}
	return s
}
