package calendar

import (
	"archive/zip"
	"hash/crc32"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// zoneNames returns the name of every zone of the tz database.
func zoneNames(t *testing.T) (names []string) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	r, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(out)), "lib", "time", "zoneinfo.zip"))
	require.NoError(t, err)
	defer r.Close()
	for _, f := range r.File {
		if !strings.HasSuffix(f.Name, "/") {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	require.Greater(t, len(names), 400)
	return names
}

// odd are zones whose midnights or dates were left out or came twice, or whose
// clocks were set by less than an hour.
var odd = []string{
	"America/Santiago", "Pacific/Apia", "Africa/Tunis", "America/St_Johns", "Pacific/Kwajalein", "Australia/Lord_Howe",
	"America/Sao_Paulo", "Asia/Beirut", "Africa/Cairo", "Asia/Gaza", "America/Havana", "Asia/Amman", "Asia/Pyongyang",
	"America/Caracas", "Asia/Kathmandu", "Antarctica/Troll", "America/Los_Angeles", "Europe/Dublin", "Pacific/Fakaofo",
	"America/Asuncion", "Asia/Tehran", "Pacific/Kiritimati", "America/Juneau", "Africa/Casablanca", "UTC",
}

// TestPeriod checks periods in every zone, around each change of its offset
// from 1990 to 2037. By default it takes a tenth of the zones, and the odd ones.
func TestPeriod(t *testing.T) {
	names := zoneNames(t)
	if !testlength.Long {
		names = slices.DeleteFunc(names, func(name string) bool {
			return !slices.Contains(odd, name) && crc32.ChecksumIEEE([]byte(name))%12 != 0
		})
		require.Greater(t, len(names), 50)
	}
	var checked [Year + 1]int64
	var mu sync.Mutex
	t.Run("zones", func(t *testing.T) {
		for part := range runtime.NumCPU() {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				var n [Year + 1]int64
				for i := part; i < len(names); i += runtime.NumCPU() {
					checkZone(t, names[i], &n)
				}
				mu.Lock()
				defer mu.Unlock()
				for u := range n {
					checked[u] += n[u]
				}
			})
		}
	})
	t.Logf("%d zones; periods of hours, days, weeks, months and years: %v", len(names), checked[Hour:])
}

func checkZone(t *testing.T, name string, n *[Year + 1]int64) {
	zone, err := Zone(name)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, uint64(len(name))))
	starts := []time.Duration{0, 4 * time.Hour, 90 * time.Minute, 24*time.Hour - 1}
	for _, unit := range Units() {
		for _, start := range starts {
			c := Of(unit, zone, start%unit.Most()).Calendar()
			require.NoError(t, c.Check())
			first := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)
			n[unit] += checkAround(t, c, first.UnixNano(), rng)
			for at := first; ; {
				_, change := at.In(zone).ZoneBounds()
				if change.IsZero() || change.Year() > 2037 {
					break
				}
				n[unit] += checkAround(t, c, change.UnixNano(), rng)
				at = change
			}
		}
	}
}

// checkAround checks periods from some days before an instant to some days
// after it.
func checkAround(t *testing.T, c *Calendar, change int64, rng *rand.Rand) (n int64) {
	const minute = int64(time.Minute)
	near := []int64{-1, 0, 1, 30*minute - 1, 30 * minute, -30 * minute, -30*minute - 1}
	var at []int64
	for h := int64(-50); h <= 50; h += 1 + rng.Int64N(9) {
		at = append(at, change+h*hour+near[rng.IntN(len(near))])
	}
	slices.Sort(at)
	fail := func(now int64, p Period, text string) {
		t.Fatalf("%v of %v at %v: %v to %v: %s", c.unit, c.zone, instant(now, c.zone), instant(p.Start, c.zone),
			instant(p.End, c.zone), text)
	}
	var before Period
	for _, now := range at {
		p := c.Period(now)
		n++
		if p.Contains(now) && p == before {
			continue
		}
		switch {
		case !p.Contains(now):
			fail(now, p, "now is not inside")
		case p.End < before.End:
			fail(now, p, "the end went back")
		case c.Period(p.End-1) != p:
			fail(now, p, "another period at its last nanosecond")
		case c.Period(p.Start) != p:
			fail(now, p, "another period at its first nanosecond")
		case c.Period(p.End).Start != p.End || c.Period(p.Start-1).End != p.Start:
			fail(now, p, "a gap before or after")
		case p.End-p.Start < hour/2:
			fail(now, p, "too short")
		}
		if c.unit != Hour {
			if wrong := wrongDate(c, p.End); wrong != "" {
				fail(now, p, wrong)
			}
		}
		before = p
	}
	return n
}

// wrongDate compares the begin of a period with the clock of the zone: the
// clock shows an earlier date just before, never again after, and the date is
// the first of the period.
func wrongDate(c *Calendar, begin int64) string {
	date := func(at int64) time.Time { // of the period's days, as midnight UTC
		t := instant(at, c.zone)
		y, m, d := t.Date()
		clock := time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute +
			time.Duration(t.Second())*time.Second + time.Duration(t.Nanosecond())
		if clock < c.Start() {
			d--
		}
		return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	}
	first, last := date(begin), date(begin-1)
	if !last.Before(first) { // unless its midnight comes twice
		t := instant(begin, c.zone)
		y, m, d := first.Date()
		if reading := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Add(c.Start()).UnixNano(); begin+offset(t) != reading ||
			!date(begin-1-4*hour).Before(first) {
			return "the date does not change"
		}
		last = first.AddDate(0, 0, -1)
	}
	for after := int64(0); after < 27*hour; after += hour / 2 {
		if date(begin + after).Before(first) {
			return "an earlier date comes again"
		}
	}
	same := func(a, b time.Time) bool {
		yearA, weekA := a.ISOWeek()
		yearB, weekB := b.ISOWeek()
		return c.unit == Day && a.Equal(b) ||
			c.unit == Week && yearA == yearB && weekA == weekB ||
			c.unit == Month && a.Month() == b.Month() && a.Year() == b.Year() ||
			c.unit == Year && a.Year() == b.Year()
	}
	if same(first, last) {
		return "the period before is not over"
	}
	// Only dates that do not exist may be missing at the begin of the period.
	if same(first, first.AddDate(0, 0, -1)) && last.AddDate(0, 0, 1).Equal(first) {
		return "it has begun earlier"
	}
	return ""
}

func TestPeriodTable(t *testing.T) {
	for _, c := range []struct{ calendar, now, start, end string }{
		{"day", "2026-12-31T23:59:59.999999999Z", "2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"day", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z"},
		{"week", "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}, // a Monday
		{"week", "2026-11-22T23:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"month", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"year", "2026-07-01T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"hour@Asia/Kathmandu", "2026-07-01T00:20:00Z", "2026-07-01T00:15:00Z", "2026-07-01T01:15:00Z"},
		{"day@+02:00", "2026-07-01T22:00:00Z", "2026-07-01T22:00:00Z", "2026-07-02T22:00:00Z"},

		// Days of 23 and 25 hours.
		{"day@Europe/Berlin", "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"day@Europe/Berlin", "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"hour@Europe/Berlin", "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"},
		{"day@America/Los_Angeles from 4h", "2026-11-24T03:59:59-08:00", "2026-11-23T04:00:00-08:00",
			"2026-11-24T04:00:00-08:00"},
		{"month@America/Los_Angeles from 4h", "2026-12-01T00:00:00-08:00", "2026-11-01T04:00:00-08:00",
			"2026-12-01T04:00:00-08:00"},

		// This midnight does not exist.
		{"day@America/Santiago", "2022-09-10T23:59:59-04:00", "2022-09-10T00:00:00-04:00", "2022-09-11T01:00:00-03:00"},
		// These come twice.
		{"day@America/Havana", "2026-11-01T00:30:00-04:00", "2026-10-31T00:00:00-04:00", "2026-11-01T00:00:00-05:00"},
		{"day@America/St_Johns", "2010-11-07T00:00:30-02:30", "2010-11-06T00:00:00-02:30", "2010-11-07T00:00:00-03:30"},
		// This date does not exist.
		{"day@Pacific/Apia", "2011-12-29T12:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		// This start does not exist.
		{"day@Europe/Berlin from 2h30m", "2026-03-29T03:00:00+02:00", "2026-03-29T03:00:00+02:00",
			"2026-03-30T02:30:00+02:00"},
		// This hour does not exist.
		{"hour@Europe/Berlin", "2026-03-29T01:30:00+01:00", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"},
		// Half an hour does not exist, and half an hour comes twice.
		{"hour@Australia/Lord_Howe", "2026-10-04T02:45:00+11:00", "2026-10-04T01:00:00+10:30", "2026-10-04T03:00:00+11:00"},
		{"hour@Australia/Lord_Howe", "2026-04-05T01:45:00+10:30", "2026-04-05T01:00:00+11:00", "2026-04-05T02:00:00+10:30"},
	} {
		i, err := Parse(c.calendar)
		require.NoError(t, err, c.calendar)
		at := func(s string) int64 {
			when, err := time.Parse(time.RFC3339Nano, s)
			require.NoError(t, err)
			return when.UnixNano()
		}
		cal := i.Calendar()
		p := cal.Period(at(c.now))
		require.Equal(t, []time.Time{instant(at(c.start), cal.zone), instant(at(c.end), cal.zone)},
			[]time.Time{instant(p.Start, cal.zone), instant(p.End, cal.zone)}, "%s at %s", c.calendar, c.now)
		require.Equal(t, c.calendar, cal.String())
	}
}
