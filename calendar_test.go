package stint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/modeltest"
)

func zoneOf(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	require.NoError(t, err)
	return zone
}

// rigFrom returns a rig whose clock shows the time, with one limit for perID.
func rigFrom(t testing.TB, at string, limit Limit) *rig {
	t.Helper()
	when, err := time.Parse(time.RFC3339, at)
	require.NoError(t, err)
	clock := modeltest.NewClock()
	clock.Set(when.UnixNano())
	return rigAt(t, clock, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: limit}), Options{})
}

func TestCalendar(t *testing.T) {
	key := perID.Key("a")
	pacific := zoneOf(t, "America/Los_Angeles")

	t.Run("a quota ends at midnight", func(t *testing.T) {
		r := rigFrom(t, "2026-11-23T23:59:50-08:00", EachDay(10, pacific))
		require.Equal(t, Decision{Allowed: true, Remaining: 10, Key: key, Limit: EachDay(10, pacific)}, r.check(key, 0))
		d := r.spend(key, 4)
		require.EqualValues(t, 6, d.Remaining)
		require.Equal(t, 10*time.Second, d.ResetAfter)
		r.clock.Advance(5 * time.Second)
		d = r.spend(key, 7)
		require.False(t, d.Allowed)
		require.Equal(t, []time.Duration{5 * time.Second, 5 * time.Second}, []time.Duration{d.RetryAfter, d.ResetAfter})
		require.EqualValues(t, 0, r.spend(key, 6).Remaining)
		r.clock.Advance(5*time.Second - 1)
		require.Equal(t, time.Nanosecond, r.spend(key, 1).RetryAfter)
		r.clock.Advance(1)
		d = r.spend(key, 10)
		require.True(t, d.Allowed)
		require.Equal(t, 24*time.Hour, d.ResetAfter)
		require.False(t, r.spend(key, 1).Allowed)
		require.Equal(t, Bucket{Key: key, Limit: EachDay(10, pacific), ResetAfter: 24 * time.Hour}, r.bucket(key))
		require.Contains(t, r.listed(perID), key)
		r.clock.Advance(24 * time.Hour)
		require.Equal(t, Bucket{Key: key, Limit: EachDay(10, pacific), Remaining: 10}, r.bucket(key))
		require.Empty(t, r.listed(perID), "a bucket of the day before is full")
		require.ErrorIs(t, errorOf(r.Spend(key, 11)), ErrCostOverBurst)
	})
	t.Run("refunds", func(t *testing.T) {
		r := rigFrom(t, "2026-11-23T23:59:50-08:00", EachDay(10, pacific))
		spent := r.Now()
		r.take(key, 5)
		require.EqualValues(t, 8, r.refund(key, 3).Remaining)
		r.clock.Advance(4 * time.Second)
		d := r.decided(r.Refund(Request{Key: key, Cost: 1, Spent: spent}))
		require.EqualValues(t, 9, d.Remaining, "nothing returns with time, so the refund is whole")
		r.take(key, 4)
		r.clock.Advance(6 * time.Second)
		r.take(key, 6)
		d = r.decided(r.Refund(Request{Key: key, Cost: 4, Spent: spent}))
		require.EqualValues(t, 4, d.Remaining, "these were spent yesterday")
		d = r.decided(r.Refund(Request{Key: key, Cost: 4, Spent: r.Now()}))
		require.EqualValues(t, 8, d.Remaining)
		require.Equal(t, Decision{Allowed: true, Remaining: 10, Key: key, Limit: EachDay(10, pacific)}, r.refund(key, 99))
		require.LessOrEqual(t, r.bucketTAT(key), r.clock.Nanos(), "a full bucket needs no space")
	})
	t.Run("holds", func(t *testing.T) {
		r := rigFrom(t, "2026-11-23T23:00:00-08:00", EachDay(10, pacific))
		r.take(key, 10)
		r.hold(key, 2*time.Hour)
		require.Equal(t, 2*time.Hour, r.spend(key, 1).RetryAfter, "a hold across midnight stays")
		r.clock.Advance(time.Hour)
		require.Equal(t, time.Hour, r.spend(key, 1).RetryAfter)
		require.EqualValues(t, 10, r.left(key))
		r.clock.Advance(time.Hour)
		r.take(key, 10)
		r.hold(key, time.Hour)
		require.Equal(t, 23*time.Hour, r.spend(key, 1).RetryAfter, "the quota is later")
	})
	t.Run("an hour that comes twice", func(t *testing.T) {
		r := rigFrom(t, "2026-11-01T00:30:00-07:00", EachDay(10, pacific))
		require.Equal(t, 24*time.Hour+30*time.Minute, r.spend(key, 1).ResetAfter)
		r = rigFrom(t, "2026-11-01T01:30:00-07:00", EachHour(10, pacific))
		require.Equal(t, 30*time.Minute, r.spend(key, 1).ResetAfter)
	})
	t.Run("a clock that was ahead", func(t *testing.T) {
		r := rigFrom(t, "2026-11-24T01:00:00-08:00", EachDay(10, pacific))
		r.take(key, 3)
		require.NoError(t, r.Close())
		r.clock.Advance(-2 * time.Hour)
		r = r.next(r.Limits())
		require.EqualValues(t, 0, r.left(key), "at worst empty until the end of the right period")
		require.Equal(t, time.Hour, r.spend(key, 1).RetryAfter)
		r.clock.Advance(time.Hour)
		require.EqualValues(t, 10, r.left(key))
	})
	t.Run("the end of time", func(t *testing.T) {
		r := rigFrom(t, "2162-04-10T23:00:00Z", EachYear(10, nil))
		r.take(key, 10)
		require.False(t, r.spend(key, 1).Allowed)
		r.clock.Advance(100 * 24 * time.Hour)
		require.False(t, r.spend(key, 1).Allowed, "time stands still")
	})
	t.Run("given limits", func(t *testing.T) {
		r := newRig(t)
		spend := func(l Limit, cost int64) Decision {
			return r.spendAll(Request{Key: off.Key("a"), Cost: cost, Limit: l})
		}
		require.EqualValues(t, 6, spend(EachDay(10, pacific), 4).Remaining)
		require.EqualValues(t, 16, spend(EachDay(20, pacific), 0).Remaining, "another n keeps what was used")
		require.EqualValues(t, 1, spend(EachDay(5, pacific), 0).Remaining)
		require.Equal(t, EachDay(5, zoneOf(t, "America/Los_Angeles")), spend(EachDay(5, pacific), 0).Limit)
		_, err := r.SpendAll(Request{Key: off.Key("a"), Cost: 1, Limit: EachDay(10, pacific).WithBurst(3)})
		require.ErrorAs(t, err, new(*ConfigError))
	})
}

// bucketTAT returns the TAT of a bucket in memory, or 0.
func (r *rig) bucketTAT(key Key) int64 {
	s, h := r.cache.Shard(uint16(key.Name), key.ID)
	s.LockFast()
	defer s.UnlockFast()
	if i, ok := s.Find(uint16(key.Name), key.ID, h); ok {
		return s.At(i).TAT()
	}
	return 0
}

func TestCalendarLimits(t *testing.T) {
	berlin := zoneOf(t, "Europe/Berlin")
	for text, limit := range map[string]Limit{
		"1000/month":                      EachMonth(1000, nil),
		"50/day@America/Los_Angeles":      EachDay(50, zoneOf(t, "America/Los_Angeles")),
		"1/hour@Europe/Berlin from 30m":   EachHour(1, berlin).StartingAt(30 * time.Minute),
		"7/week@Europe/Berlin from 4h":    EachWeek(7, berlin).StartingAt(4 * time.Hour),
		"700000000000/year@+05:30":        EachYear(gcra.MostQuota, time.FixedZone("IST", 19800)),
		"10/day@-00:00:01":                EachDay(10, time.FixedZone("odd", -1)),
		"10/day@+24:00":                   EachDay(10, time.FixedZone("odd", 24*3600)),
		"5/day@Europe/Berlin from 23h59m": EachDay(5, berlin).StartingAt(time.Hour).StartingAt(24*time.Hour - time.Minute),
	} {
		require.NoError(t, limit.Validate(), text)
		require.Equal(t, text, limit.String())
		parsed, err := ParseLimit(text)
		require.NoError(t, err)
		require.Equal(t, limit, parsed)
		require.True(t, limit == parsed && limit.FollowsCalendar())
	}
	require.False(t, PerDay(1).FollowsCalendar())
	require.Equal(t, PerDay(1), PerDay(1).StartingAt(0))

	for text, want := range map[string]string{
		"0/day":              "quota is 0, want 1 to 700000000000",
		"700000000001/month": "quota is 700000000001, want 1 to 700000000000",
		"x/month":            `number is "x", want a plain decimal integer`,
		"5/day burst 3":      "burst is 3, want none: a quota that follows the calendar has no other burst; a rolling limit is 5/24h burst 3",
		"5/day@Nowhere":      `zone is "Nowhere", want a name of the tz database such as Europe/Berlin`,
		"5/day from 25h":     "start is 25h, want 0 or more, and less than 24h",
		"5/day@+24:00:01":    `zone is "+24:00:01", want a name of the tz database such as Europe/Berlin`,
	} {
		require.EqualError(t, errorOf(ParseLimit(text)), fmt.Sprintf("stint: limit %q: %s", text, want))
	}
	queued := EachDay(5, berlin)
	queued.Queue = 3
	longer := EachDay(5, berlin)
	longer.Period = time.Hour
	for want, limit := range map[string]Limit{
		"stint: burst is 3, want 5, the quota: a quota that follows the calendar has no other burst, and cannot be divided": EachDay(
			5, berlin).WithBurst(3),
		"stint: burst is 2, want 5, the quota: a quota that follows the calendar has no other burst, and cannot be divided": EachDay(
			5, berlin).DividedBy(2),
		"stint: queue is 3, want none: requests for a quota that follows the calendar wait for the next day": queued,
		"stint: period is 1h, want 24h, as the quota is for each day":                                        longer,
		"stint: quota is 0, want 1 to 700000000000":                                                          EachDay(0, berlin),
		"stint: zone is +24:00:01, want a clock that differs from UTC by at most 24h": EachDay(
			5, time.FixedZone("odd", 24*3600+1)),
		"stint: start is -1h0m0s, want 0 or more, and less than 24h": EachDay(5, berlin).StartingAt(
			-time.Hour),
		"stint: start is 4h0m0s, want 0: only a limit that follows the calendar has a start": PerDay(5).StartingAt(4 * time.Hour),
	} {
		err := limit.Validate()
		require.EqualError(t, err, want)
		require.ErrorAs(t, err, new(*ConfigError))
		_, err = NewLimits(testNames.WithLimits(map[Name]Limit{perID: limit}))
		require.ErrorContains(t, err, "PerID: ")
	}
	start, end := EachMonth(1, berlin).StartingAt(4 * time.Hour).PeriodAt(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC))
	require.Equal(t, "2026-11-01T04:00:00+01:00 2026-12-01T04:00:00+01:00",
		start.Format(time.RFC3339)+" "+end.Format(time.RFC3339))
	start, end = PerDay(1).PeriodAt(time.Now())
	require.True(t, start.IsZero() && end.IsZero())
}

// TestCalendarChanges has what becomes of tokens that were used when a limit
// gets another kind.
func TestCalendarChanges(t *testing.T) {
	key := perID.Key("a")
	day, month := EachDay(10, nil), EachMonth(20, nil)
	for _, c := range []struct {
		from, to   Limit
		used, want int64
	}{
		{PerDay(10), day, 4, 4}, {PerDay(10), day, 10, 10}, {PerDay(30), day, 25, 10},
		{day, PerDay(10), 4, 4}, {day, PerHour(5), 9, 5}, {day, month, 4, 4}, {month, day, 15, 10},
		{day, EachDay(10, zoneOf(t, "Asia/Tokyo")), 4, 4}, {day, EachDay(5, nil), 8, 5}, {EachDay(5, nil), day, 4, 4},
	} {
		requireKept(t, c.from, c.to, c.used, c.want)
	}
	t.Run("a failed load changes nothing", func(t *testing.T) {
		r := rigFrom(t, "2026-11-23T12:00:00Z", PerDay(10))
		r.take(key, 4)
		require.NoError(t, r.Flush())
		r.evictAll()
		r.disk.fail(errors.New("no disk"), "load")
		require.ErrorContains(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: day}), "no disk")
		r.disk.fail(nil)
		require.EqualValues(t, 4, r.spent(key))
		require.Equal(t, PerDay(10), r.check(key, 0).Limit)
	})
	t.Run("SetLimits", func(t *testing.T) {
		for _, c := range []struct {
			from, to   Limit
			used, want int64
		}{
			{PerDay(10), day, 4, 0},   // full again before midnight, so full
			{PerDay(10), day, 10, 10}, // full only after midnight, so empty
			{day, PerHour(5), 1, 5}, {day, EachDay(20, nil), 4, 4}, {day, EachDay(3, nil), 4, 3},
		} {
			r := rigFrom(t, "2026-11-23T12:00:00Z", c.from)
			r.take(key, c.used)
			require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: c.to})))
			require.EqualValues(t, c.want, r.spent(key), "%v to %v", c.from, c.to)
			require.NoError(t, r.Close())
			require.EqualValues(t, c.want, r.next(r.Limits()).spent(key), "a restart finds the same")
		}
	})
	t.Run("a queue", func(t *testing.T) {
		r := rigFrom(t, "2026-11-23T12:00:00Z", PerDay(10))
		r.take(key, 10)
		turn := r.reserve(key, 3)
		delay := turn.Delay()
		require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: EachDay(20, nil)}))
		require.EqualValues(t, 13, r.spent(key))
		require.Equal(t, delay, turn.Delay())
		turn.Cancel()
		require.EqualValues(t, 13, r.spent(key))
	})
}

// TestPlanFlips moves a customer to a smaller quota and back, ten times at one
// instant. What was used in a period stays used until it ends.
func TestPlanFlips(t *testing.T) {
	key := perID.Key("a")
	day := func(n int64) Limit { return EachDay(n, nil) }
	both := func(n int64) *Limits { return limitsOf(t, testNames, map[Name]Limit{perID: day(n)}) }
	for name, flip := range map[string]func(r *rig, n int64) *rig{
		"SetLimits": func(r *rig, n int64) *rig {
			require.NoError(t, r.SetLimits(both(n)))
			return r
		},
		"SetOverrides": func(r *rig, n int64) *rig {
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: day(n)}))
			return r
		},
		"SetLimits, not in memory": func(r *rig, n int64) *rig {
			require.NoError(t, r.Flush())
			r.evictAll()
			require.NoError(t, r.SetLimits(both(n)))
			return r
		},
		"a restart": func(r *rig, n int64) *rig {
			require.NoError(t, r.Close())
			return r.next(both(n))
		},
		"both": func(r *rig, n int64) *rig {
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: day(n)}))
			require.NoError(t, r.SetLimits(both(n)))
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rigOn(t, NewMemStore(), both(100), Options{})
			total := int64(0)
			spend := func() {
				d := r.spendUpTo(key, 1000)
				require.LessOrEqual(t, d.ResetAfter, 24*time.Hour)
				total += d.Taken
			}
			spend()
			for range 10 {
				for _, n := range []int64{50, 100} {
					r = flip(r, n)
					spend()
				}
			}
			require.EqualValues(t, 100, total, "in one day")
			r.refund(key, 10)
			r = flip(r, 50)
			require.Zero(t, r.left(key), "90 of 50 are used")
			r = flip(r, 95)
			require.EqualValues(t, 5, r.left(key))
			r.clock.Advance(24 * time.Hour)
			require.EqualValues(t, 95, r.left(key), "on the next day")
		})
	}
	t.Run("given", func(t *testing.T) {
		r := newRig(t)
		total := int64(0)
		for range 10 {
			for _, n := range []int64{100, 50} {
				d := r.spendAll(Request{Key: off.Key("a"), Cost: 1000, Limit: day(n), Mode: UpTo})
				total += d.Taken
				require.NoError(t, r.Flush())
				r.evictAll()
			}
		}
		require.EqualValues(t, 100, total)
	})
	t.Run("a month and a day", func(t *testing.T) {
		r := rigFrom(t, "2026-11-23T12:00:00Z", EachMonth(1000, nil))
		r.take(key, 900)
		require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: day(50)}))
		require.Zero(t, r.left(key))
		require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: EachMonth(1000, nil)}))
		require.EqualValues(t, 100, r.left(key))
	})
}

func TestCalendarWait(t *testing.T) {
	key := perID.Key("a")
	bubble := func(t *testing.T, f func(t *testing.T, r *rig)) {
		synctest.Test(t, func(t *testing.T) { // it is midnight on 1 January 2000, UTC
			r := rigOn(t, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: EachDay(10, nil)}),
				Options{Now: time.Now})
			defer r.Close()
			f(t, r)
		})
	}
	t.Run("in order", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.take(key, 7)
			var mu sync.Mutex
			var order []string
			var wg sync.WaitGroup
			wait := func(name string, cost int64) {
				wg.Go(func() {
					require.NoError(t, errorOf(r.Wait(t.Context(), key.Cost(cost))))
					mu.Lock()
					order = append(order, fmt.Sprintf("%s on day %d", name, time.Now().UTC().Day()))
					mu.Unlock()
				})
				synctest.Wait()
			}
			wait("a", 5)
			wait("b", 1)
			wait("c", 6)
			r.take(key, 3) // what is left of the day is not kept for those who wait
			pass(72 * time.Hour)
			wg.Wait()
			slices.Sort(order) // a and b went at one instant, and wrote here in either order
			require.Equal(t, []string{"a on day 2", "b on day 2", "c on day 3"}, order)
			require.EqualValues(t, LimitStats{Allowed: 5}, r.Stats().Limits[perID])
			require.Empty(t, r.lines.byKey)
		})
	})
	t.Run("contexts", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.take(key, 10)
			early, cancel := context.WithTimeout(t.Context(), 23*time.Hour)
			defer cancel()
			begun := time.Now()
			require.ErrorIs(t, errorOf(r.Wait(early, key.Cost(1))), context.DeadlineExceeded)
			require.Equal(t, begun, time.Now(), "it fails at once")

			first, cancelFirst := context.WithCancel(t.Context())
			second, cancelSecond := context.WithCancel(t.Context())
			waits := make(map[context.Context]chan error)
			for _, ctx := range []context.Context{first, second, t.Context()} {
				waits[ctx] = begin(func() error { return errorOf(r.Wait(ctx, key.Cost(10))) })
			}
			cancelSecond()
			require.ErrorIs(t, <-waits[second], context.Canceled)
			cancelFirst()
			require.ErrorIs(t, <-waits[first], context.Canceled)
			require.NoError(t, <-waits[t.Context()])
			require.Equal(t, 24*time.Hour, time.Since(begun))
			require.EqualValues(t, 10, r.spent(key))
		})
	})
	t.Run("too late when it is the first", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.take(key, 10)
			begun := time.Now()
			first := make(chan error, 1)
			go func() { first <- errorOf(r.Wait(t.Context(), key.Cost(10))) }()
			synctest.Wait()
			soon, cancel := context.WithTimeout(t.Context(), 25*time.Hour)
			defer cancel()
			require.ErrorIs(t, errorOf(r.Wait(soon, key.Cost(1))), context.DeadlineExceeded)
			require.Equal(t, 24*time.Hour, time.Since(begun), "it fails once the next day is used up")
			require.NoError(t, <-first)
			require.EqualValues(t, 10, r.spent(key))
		})
	})
	t.Run("blocked and closed", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.take(key, 10)
			blocked := begin(func() error { return errorOf(r.Wait(t.Context(), key.Cost(10))) })
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: Blocked}))
			require.ErrorIs(t, <-blocked, ErrBlocked)
			pass(24 * time.Hour)
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: EachDay(5, nil)}))
			r.take(key, 5)
			results := make(chan error, 2)
			for range 2 {
				go func() { results <- errorOf(r.Wait(t.Context(), key.Cost(5))) }()
			}
			pass(time.Hour)
			require.ErrorIs(t, errorOf(r.Reserve(key.Cost(1))), errors.ErrUnsupported)
			require.ErrorIs(t, errorOf(r.Reserve(key.Cost(6))), ErrCostOverBurst)
			require.ErrorIs(t, errorOf(r.Wait(t.Context(), key.Cost(6))), ErrCostOverBurst)
			require.NoError(t, r.Close())
			require.Equal(t, ErrClosed, <-results)
			require.Equal(t, ErrClosed, <-results)
		})
	})
}

// TestEndOfTimeOverride: in a period that ends after the arithmetic does, what was
// used stays used when an override comes.
func TestEndOfTimeOverride(t *testing.T) {
	for _, to := range []Limit{EachYear(50, nil), EachMonth(50, nil), PerHour(50)} {
		r := newLevels(t, EachYear(10, nil))
		r.clock.Set(time.Date(2162, 2, 1, 0, 0, 0, 0, time.UTC).UnixNano())
		key := flushed.Key("a")
		r.take(key, 7)
		require.EqualValues(t, 3, r.left(key))
		require.Positive(t, r.bucket(key).ResetAfter)
		require.NoError(t, r.SetOverrides(Override{Key: flushed.Key("a"), Limit: to}))
		require.EqualValues(t, 43, r.left(key), to.String())
	}
}
