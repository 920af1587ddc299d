package stint

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/gcra"
)

// TestCalendarMoves moves a quota to another zone, start or unit, there and back.
// What was used stays used until the period ends, in memory and after a restart.
func TestCalendarMoves(t *testing.T) {
	zone := func(name string) *time.Location { return zoneOf(t, name) }
	key := perID.Key("a")
	month := EachMonth(10_000, nil)
	day := func(name string) Limit { return EachDay(100, zone(name)) }
	for _, c := range []struct {
		at, name string
		from, to Limit
	}{
		{"2026-11-23T12:00:00Z", "eastward", month, EachMonth(10_000, zone("Europe/Berlin"))},
		{"2026-11-23T12:00:00Z", "westward", month, EachMonth(10_000, zone("America/Los_Angeles"))},
		{"2026-11-23T12:00:00Z", "a quarter of an hour", day("Asia/Kolkata"), day("Asia/Kathmandu")},
		{"2026-11-23T12:00:00Z", "three quarters", day("Asia/Kathmandu"), day("Australia/Eucla")},
		{"2026-10-03T12:00:00Z", "half an hour of summer", day("Australia/Sydney"), day("Australia/Lord_Howe")},
		{"2026-10-24T12:00:00Z", "a change of the clock between", day("Europe/Berlin"), day("America/New_York")},
		{"2026-11-23T12:00:00Z", "hours", EachHour(100, zone("Asia/Kolkata")), EachHour(100, nil)},
		{"2026-11-23T12:00:00Z", "a start", day("Europe/Berlin"), day("Europe/Berlin").StartingAt(4 * time.Hour)},
		{"2026-11-23T12:00:00Z", "a start of minutes", day("Europe/Berlin"), day("Europe/Berlin").StartingAt(4*time.Hour + 7*time.Minute)},
		{"2026-11-23T12:00:00Z", "a start of seconds", day("Europe/Berlin"), day("Europe/Berlin").StartingAt(time.Hour + 90*time.Second)},
		{"2026-11-23T12:00:00Z", "a longer unit", EachDay(100, nil), EachMonth(100, nil)},
		{"2026-11-23T12:00:00Z", "a shorter unit", EachYear(100, nil), EachDay(100, nil)},
		{"2026-11-23T12:00:00Z", "many tokens", EachMonth(gcra.MostQuota, nil), EachMonth(gcra.MostQuota, zone("America/Los_Angeles"))},
		{"2026-11-23T12:00:00Z", "a smaller quota, too", EachMonth(10_000, nil), EachMonth(20, zone("America/Los_Angeles"))},
	} {
		limits := func(l Limit) *Limits { return limitsOf(t, testNames, map[Name]Limit{perID: l}) }
		for how, move := range map[string]func(r *rig, l Limit) *rig{
			"SetLimits": func(r *rig, l Limit) *rig {
				require.NoError(t, r.SetLimits(limits(l)))
				return r
			},
			"SetLimits, not in memory": func(r *rig, l Limit) *rig {
				require.NoError(t, r.Flush())
				r.evictAll()
				require.NoError(t, r.SetLimits(limits(l)))
				return r
			},
			"SetOverrides": func(r *rig, l Limit) *rig {
				require.NoError(t, r.SetOverrides(Override{Key: key, Limit: l}))
				return r
			},
			"Blocked between": func(r *rig, l Limit) *rig {
				require.NoError(t, r.SetLimits(limits(Blocked)))
				require.NoError(t, r.SetLimits(limits(l)))
				return r
			},
			"a restart": func(r *rig, l Limit) *rig {
				require.NoError(t, r.Close())
				return r.next(limits(l))
			},
		} {
			t.Run(c.name+"/"+how, func(t *testing.T) {
				r := rigFrom(t, c.at, c.from)
				used := c.from.Burst - c.from.Burst/3
				r.take(key, used)
				left := func(l Limit) int64 { return max(0, l.Burst-used) }
				for range 3 {
					for _, l := range []Limit{c.to, c.from} {
						r = move(r, l)
						b, err := r.Bucket(key)
						require.NoError(t, err)
						require.Equal(t, left(l), b.Remaining, "%v", l)
						require.Equal(t, left(l), r.left(key), "%v", l)
						_, end := l.PeriodAt(r.clock.Now())
						require.Equal(t, end.Sub(r.clock.Now()), r.check(key, 0).ResetAfter, "%v", l)
						if used++; left(l) > 0 {
							r.take(key, 1)
						} else {
							used--
						}
					}
				}
				r = move(r, c.to)
				require.Equal(t, left(c.to), r.left(key))
				_, end := c.to.PeriodAt(r.clock.Now())
				r.clock.Advance(end.Sub(r.clock.Now()))
				require.Equal(t, c.to.Burst, r.left(key), "the next period is whole")
			})
		}
	}
}

// The TATs of rolling limits say nothing of a quota: a bucket that becomes full
// before the period ends is full, and any other one is empty, as before.
func TestCalendarReadsRolling(t *testing.T) {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	day := rigFrom(t, "2026-11-23T12:00:00Z", EachDay(1000, nil)).Limits()
	limit := day.For(perID.Key("a"))
	r, _ := newRule(limit)
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC).UnixNano()
	read := 0
	const tats = 200_000
	for range tats {
		tat := now + 1 + rnd.Int64N(int64(48*time.Hour))
		want := min(tat, r.At(now)+gcra.MostQuota)
		if r.Read(tat, now) != want {
			read++
		}
	}
	require.Less(t, read, tats/5_000, "of %d", tats)
	require.Zero(t, r.Read(0, now))
}

// TestCalendarGap ends a day a minute after the quarter of an hour. In 2011 Newfoundland's
// clocks went from 0:01 to 1:01, so the day that begins at 0:40 began at 1:01. What was
// used of a large quota on the day before is over.
func TestCalendarGap(t *testing.T) {
	limit := EachDay(gcra.MostQuota, zoneOf(t, "America/St_Johns")).StartingAt(40 * time.Minute)
	r := rigFrom(t, "2011-03-12T04:09:59Z", limit)
	key := perID.Key("a")
	r.take(key, gcra.MostQuota-1)
	require.NoError(t, r.Close())
	r.clock.Advance(time.Second)
	r = r.next(limitsOf(t, testNames, map[Name]Limit{perID: limit}))
	require.Equal(t, int64(gcra.MostQuota), r.left(key))
	_, end := limit.PeriodAt(r.clock.Now())
	require.Equal(t, "2011-03-13T03:31:00Z", end.UTC().Format(time.RFC3339))
}
