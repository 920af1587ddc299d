package stint

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSetOverrides moves ids to other plans.
func TestSetOverrides(t *testing.T) {
	t.Run("an override of many buckets", func(t *testing.T) {
		names := Names{1: {
			Label: "Logins", IDs: Tuple(AnyID, AnyID), OverrideIDs: AnyID, Limit: PerMinute(5),
		}}
		r := rigOn(t, NewMemStore(), limitsOf(t, names, nil), Options{})
		for _, id := range []string{"a:x", "a:y", "ab:x", "b:a"} {
			r.spend(Name(1).Key(id), 1)
		}
		require.NoError(t, r.SetOverrides(Override{Key: Name(1).Key("a"), Limit: Blocked}))
		for id, allowed := range map[string]bool{
			"a:x": false, "a:y": false, "a:z": false, "ab:x": true, "b:a": true,
		} {
			require.Equal(t, allowed, r.Allow(Name(1).Key(id)), id)
		}
	})
	t.Run("at the same time", func(t *testing.T) {
		r := newRig(t)
		old := r.Limits()
		var wg sync.WaitGroup
		for g := range 4 {
			id := strconv.Itoa(g % 2)
			wg.Go(func() {
				for i := range 200 {
					_ = r.SetOverrides(Override{Key: perID.Key(id), Limit: PerHour(1000 + int64(i%7))})
					if old.For(perID.Key(id)) == Unlimited {
						t.Error("not limited")
					}
				}
			})
			wg.Go(func() {
				for range 200 {
					if d, err := r.Spend(perID.Key(id), 0); err != nil || !d.Allowed {
						t.Error(d, err)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, 2, r.Limits().CountOverrides(perID))
		require.Zero(t, old.CountOverrides(perID))
	})
}

// Overrides that come and go with limits of their own do not fill the memory,
// and every bucket keeps its state and its limit.
func TestRulebook(t *testing.T) {
	limit := func(n int) Limit { return Limit{Burst: 10, Count: 1, Period: time.Hour + time.Duration(n)} }
	t.Run("SetOverrides", func(t *testing.T) {
		r := newRig(t)
		kept, still := perID.Key("kept"), perID.Key("still")
		require.NoError(t, r.SetOverrides(Override{Key: perID.Key("kept"), Limit: limit(0), Comment: "why"}))
		r.take(kept, 3)
		r.take(still, 2)
		r.hold(off.Key("x"), time.Hour)
		tidied := 0
		for n := range 5 * minTidy {
			book := r.Limits().book
			key := perID.Key(fmt.Sprint(n % 10))
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key(key.ID), Limit: limit(1 + n)}))
			if n < 20 {
				r.take(key, 1)
			}
			if r.Limits().book != book {
				tidied++
				require.EqualValues(t, 7, r.left(kept))
				require.Equal(t, limit(0), r.bucket(kept).Limit)
				require.EqualValues(t, 3, r.left(still))
				require.Equal(t, PerMinute(5), r.bucket(still).Limit)
				require.Equal(t, limit(1+n), r.bucket(key).Limit)
				require.EqualValues(t, 8, r.left(key))
			}
		}
		require.Equal(t, 5, tidied)
		require.Less(t, len(r.Limits().rules), 2*minTidy)
		require.EqualValues(t, 22, r.Stats().Limits[perID].Allowed)
		for o := range r.Limits().Overrides(perID) {
			if o.Key.ID == "kept" {
				require.Equal(t, "why", o.Comment)
				require.Equal(t, limit(0), o.Limit)
			}
		}
	})
	t.Run("With", func(t *testing.T) {
		first := testLimits(t)
		ls := first
		for n := range 5 * minTidy {
			var err error
			ls, err = ls.With(
				Override{Key: perID.Key(fmt.Sprint(n % 10)), Limit: limit(n)},
				Override{Key: off.Key(fmt.Sprint(n % 10)), Limit: Blocked},
			)
			require.NoError(t, err)
		}
		require.Less(t, len(ls.rules), minTidy+20)
		l := ls.For(perID.Key("3"))
		require.Equal(t, limit(5*minTidy-7), l)
		l = ls.For(off.Key("3"))
		require.Equal(t, Blocked, l)
		require.Equal(t, Unlimited, ls.For(off.Key("other")))
		l = first.For(perID.Key("3"))
		require.Equal(t, PerMinute(5), l, "the first are as they were")
	})
	t.Run("as many as there can be", func(t *testing.T) {
		ls := testLimits(t)
		ls.book.most = len(ls.rules)
		_, err := ls.With(Override{Key: perID.Key("a"), Limit: limit(1)})
		require.ErrorAs(t, err, new(*ConfigError))
		require.ErrorContains(t, err, "different limits")
		_, err = ls.With(Override{Key: perID.Key("a"), Limit: PerMinute(5)})
		require.NoError(t, err, "it is one of them")
	})
}

// requireKept requires that so many tokens are used once SetOverrides has changed
// a limit: at every level, in memory and in the file, also over a crash.
func requireKept(t *testing.T, from, to Limit, used, want int64) {
	for level := Memory; level <= Synced; level++ {
		for n := range 6 {
			resident, how := n%2 == 0, []string{"SetOverrides", "SetLimits", "SetLimits without it"}[n/2]
			t.Run(fmt.Sprintf("%d of %v to %v, %v, in memory %v, %s", used, from, to, level, resident, how), func(t *testing.T) {
				from, to := from.withLevel(level), to.withLevel(level)
				r, key := rigFrom(t, "2026-11-23T12:00:00Z", from), perID.Key("a")
				if used > 0 {
					r.take(key, used)
				}
				if !resident {
					require.NoError(t, r.Flush())
					r.evictAll()
					require.Zero(t, r.Stats().Resident)
				}
				switch override := (Override{Key: key, Limit: to}); how {
				case "SetOverrides":
					require.NoError(t, r.SetOverrides(override))
				case "SetLimits":
					require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: from}, override)))
				default: // the override was the other limit, and the new default is this one
					override.Limit = from
					require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: PerHour(7)}, override)))
					require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: to})))
				}
				require.Equal(t, want, r.spent(key))
				limits := r.Limits()
				if level >= Leased {
					again := r.next(limits).spent(key) // after a crash
					require.GreaterOrEqual(t, again, want)
					if level == Synced || from.FollowsCalendar() != to.FollowsCalendar() {
						require.Equal(t, want, again)
					}
				}
				require.NoError(t, r.Flush())
				require.Equal(t, want, r.next(limits).spent(key))
				if left := to.Burst - want; left > 0 {
					r.take(key, left)
				}
				require.False(t, r.spend(key, 1).Allowed)
			})
		}
	}
}

// A plan that changes keeps what was used.
func TestSetOverridesKeepsUsed(t *testing.T) {
	hours := func(n, h int64) Limit { return Limit{Burst: n, Count: n, Period: time.Duration(h) * time.Hour} }
	requireKept(t, hours(100, 24), hours(10000, 24), 100, 100)
	requireKept(t, hours(100, 24), hours(10000, 24), 0, 0)
	requireKept(t, hours(10000, 24), hours(100, 24), 5000, 100)
	requireKept(t, hours(10000, 24), hours(100, 24), 30, 30)
	requireKept(t, hours(100, 1), hours(100, 24), 40, 40)
	requireKept(t, hours(100, 24), hours(100, 24).WithBurst(1000), 100, 100)
	t.Run("back and forth", func(t *testing.T) {
		r := newRig(t)
		key, rnd := perID.Key("a"), rand.New(rand.NewPCG(1, 2))
		require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: hours(1000, 1)}))
		used := new(big.Rat) // tokens, exactly
		limit := hours(1000, 1)
		for range 2000 {
			next := hours(1+rnd.Int64N(5000), 1+rnd.Int64N(30))
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: next}))
			limit = next
			if most := big.NewRat(limit.Burst, 1); used.Cmp(most) > 0 {
				used.Set(most)
			}
			b := r.bucket(key)
			// Each change rounds up to a nanosecond of the new limit.
			got := big.NewRat(int64(b.ResetAfter), int64(limit.Interval()))
			require.True(t, got.Cmp(used) >= 0, "%v used, want %v", got, used)
			used.Add(used, big.NewRat(1, int64(limit.Interval())))
			require.True(t, got.Cmp(used) <= 0, "%v used, want at most %v", got, used)
			used.Set(got)
			if n := rnd.Int64N(3); n <= b.Remaining {
				r.take(key, n)
				used.Add(used, big.NewRat(n, 1))
			}
			passed := time.Duration(rnd.Int64N(int64(time.Minute)))
			r.clock.Advance(passed)
			if used.Sub(used, big.NewRat(int64(passed), int64(limit.Interval()))); used.Sign() < 0 {
				used.SetInt64(0)
			}
		}
	})
	t.Run("SetLimits and a restart shorten the wait only", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), limitsOf(t, testNames, map[Name]Limit{perID: hours(100, 24)}), Options{})
		r.take(perID.Key("a"), 50)
		require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: hours(1000, 24)})))
		require.EqualValues(t, 500, r.left(perID.Key("a")), "half a day is half of it")
	})
}

// However many calls of SetOverrides give up on a disk that hangs, one goroutine
// waits for it. A call that comes during a flush waits for the next one.
func TestSetOverridesWhileASaveHangs(t *testing.T) {
	limit := func(n int) Limit {
		return Limit{Burst: 1000, Count: int64(n), Period: time.Hour, Durability: Synced}
	}
	inBubble(t, limit(1), Options{CommitTimeout: 5 * time.Second}, func(t *testing.T, r *rig) {
		key := flushed.Key("a")
		r.take(key, 1)
		r.disk.shut()
		before := goroutines(t)
		for n := range 50 {
			err := r.SetOverrides(Override{Key: flushed.Key("a"), Limit: limit(n + 2)})
			require.ErrorIs(t, err, ErrNotDurable)
		}
		require.LessOrEqual(t, goroutines(t), before+1)
		r.disk.open()
		require.NoError(t, r.cache.Flush(0))
		require.EqualValues(t, r.bucket(key).ResetAfter, r.stored(key)-r.clock.Nanos())
	})
}

// What was used stays used, even if a bucket leaves memory before SetOverrides
// puts the limits in force, or if another call changes the limits while it loads.
func TestSetOverridesLoadsAgain(t *testing.T) {
	at := func(name Name, period time.Duration) Override {
		l := Limit{Burst: 100, Count: 100, Period: period, Durability: Durability(name)}
		return Override{Key: name.Key("a"), Limit: l}
	}
	const day = 24 * time.Hour
	for _, c := range []struct {
		name   string
		during []Override // put in force while the first bucket is loaded
		want   []Override
	}{
		{"evicted", nil, []Override{at(flushed, 30*day), at(synced, 30*day)}},
		{"other limits come", []Override{at(synced, time.Second)},
			[]Override{at(flushed, 30*day), at(synced, day)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newLevels(t, Limit{Burst: 100, Count: 100, Period: day})
			for _, o := range c.want {
				r.take(o.Key, 100)
			}
			require.NoError(t, r.Flush())
			r.evictAll()
			loads := 0
			r.disk.on(func(op storeOp) error {
				if op.name != "load" || op.done {
					return nil
				}
				if loads++; loads == len(c.want)-len(c.during) { // the last that is loaded at first
					if c.during != nil {
						require.NoError(t, r.SetOverrides(c.during...))
					}
					require.NoError(t, r.Flush())
					r.evictAll()
					require.Zero(t, r.Stats().Resident)
				}
				return nil
			})
			require.NoError(t, r.SetOverrides(c.want...))
			for _, o := range c.want {
				require.EqualValues(t, 0, r.left(o.Key), "%v", o.Limit.Durability)
			}
		})
	}
}

// A bucket that cannot be read keeps its time when SetLimits changes its override. It
// stops no other override from keeping what was used.
func TestSetLimitsUnreadable(t *testing.T) {
	a, b := perID.Key("a"), perID.Key("b")
	plans := func(l Limit) []Override { return []Override{{Key: a, Limit: l}, {Key: b, Limit: l}} }
	r := newRig(t)
	require.NoError(t, r.SetOverrides(plans(PerHour(10))...))
	r.spend(a, 5)
	require.NoError(t, r.Flush())
	r.evictAll()
	r.disk.on(func(op storeOp) error {
		if op.name == "load" && op.key == b {
			return errDisk
		}
		return nil
	})
	with, err := testLimits(t).With(plans(PerHour(20))...)
	require.NoError(t, err)
	require.NoError(t, r.SetLimits(with))
	require.EqualValues(t, 15, r.left(a))
}

// SetOverrides ends even if one id has more buckets than memory may have.
func TestSetOverridesWithoutSpace(t *testing.T) {
	day, month := Limit{Burst: 100, Count: 100, Period: 24 * time.Hour}, Limit{Burst: 100, Count: 100, Period: 720 * time.Hour}
	r := rigOn(t, NewMemStore(), levelLimits(t, day), Options{MaxResident: 2})
	var changes []Override
	for name := range levelNames {
		r.take(name.Key("a"), 60)
		changes = append(changes, Override{Key: name.Key("a"), Limit: month})
	}
	require.NoError(t, r.Flush())
	loads := 0
	r.disk.on(func(op storeOp) error {
		if op.name == "load" && !op.done {
			if loads++; loads > 100 {
				return errDisk
			}
		}
		return nil
	})
	require.NoError(t, r.SetOverrides(changes...))
	for name := range levelNames {
		require.EqualValues(t, 40, r.left(name.Key("a")), "%v", Durability(name))
	}
}

// An override that is removed while SetLimits still puts its limits in force is
// removed from them.
func TestSetOverridesDuringSetLimits(t *testing.T) {
	base := func(overrides ...Override) *Limits { return limitsOf(t, testNames, planDefaults, overrides...) }
	r := rigOn(t, NewMemStore(), base(), Options{})
	// The same tokens are used under a larger burst: SetLimits converts nothing
	// before it puts the limits in force.
	listed := base(Override{Key: perID.Key("a"), Limit: planDefaults[perID].WithBurst(planDefaults[perID].Burst + 1)})
	r.take(perID.Key("a"), 1)
	s, _ := r.cache.Shard(uint16(perID), "a")
	s.LockFast() // SetLimits waits for it
	unlock := sync.OnceFunc(s.UnlockFast)
	defer unlock()
	set := make(chan error, 1)
	go func() { set <- r.SetLimits(listed) }()
	for r.Limits() != listed {
		runtime.Gosched()
	}
	removed := make(chan error, 1)
	go func() { removed <- r.SetOverrides(Override{Key: perID.Key("a")}) }()
	unlock()
	require.NoError(t, <-set)
	require.NoError(t, <-removed)
	limit := r.Limits().For(perID.Key("a"))
	require.Equal(t, planDefaults[perID], limit)
	require.Equal(t, planDefaults[perID], r.check(perID.Key("a"), 0).Limit)
}

// SetLimits replaces what SetOverrides put in force, unless the new limits have it.
func TestPlansOverSetLimits(t *testing.T) {
	pro, team := PerHour(1000), PerHour(5000)
	var inFile []Override
	for _, id := range []string{"listed", "left", "moved"} {
		inFile = append(inFile, Override{Key: perID.Key(id), Limit: team})
	}
	base := limitsOf(t, testNames, planDefaults, inFile...)
	plans := []Override{
		{Key: perID.Key("a"), Limit: pro, Comment: "why"}, {Key: perID.Key("moved"), Limit: pro}, {Key: perID.Key("left")},
	}
	r := rigOn(t, NewMemStore(), base, Options{})
	require.NoError(t, r.SetOverrides(plans...))
	r.take(perID.Key("a"), 900)
	want := map[string]Limit{"a": pro, "listed": team, "left": planDefaults[perID], "moved": pro}
	inForce := func() {
		t.Helper()
		for id, limit := range want {
			require.Equal(t, limit, r.check(perID.Key(id), 0).Limit, id)
			of := r.Limits().For(perID.Key(id))
			require.Equal(t, limit, of, id)
		}
	}
	inForce()
	with, err := base.With(plans...)
	require.NoError(t, err)
	require.NoError(t, r.SetLimits(with))
	inForce()
	require.EqualValues(t, 100, r.left(perID.Key("a")), "its bucket stays")
	require.NoError(t, r.SetLimits(base))
	want = map[string]Limit{"a": planDefaults[perID], "listed": team, "left": team, "moved": team}
	inForce()
}

// A smaller limit cuts a bucket when the first request comes, which may be a
// Check, and no sooner: a client that is told a RetryAfter is not told it again
// after a restart. Bucket, and a smaller limit that comes and goes, change nothing.
// It is the same for a bucket that is in memory, and for one that is not.
func TestSmallerLimit(t *testing.T) {
	key := flushed.Key("a")
	for name, c := range map[string]struct {
		look func(r *rig)
		left int64
	}{
		"Check":     {func(r *rig) { r.check(key, 1) }, 100},
		"CheckOnly": {func(r *rig) { r.spendAll(Request{Key: key, Cost: 1, Mode: CheckOnly}) }, 100},
		"Spend":     {func(r *rig) { require.False(r.t, r.spend(key, 1).Allowed) }, 100},
		"SpendAll":  {func(r *rig) { require.False(r.t, r.spendAll(Request{Key: key, Cost: 1}).Allowed) }, 100},
		"Bucket":    {func(r *rig) { require.Zero(r.t, r.bucket(key).Remaining) }, 0},
		"nothing":   {func(*rig) {}, 0},
	} {
		for how, change := range map[string]func(r *rig, limit Limit) *rig{
			"a restart": func(r *rig, limit Limit) *rig {
				require.NoError(t, r.Close())
				return r.next(levelLimits(t, limit))
			},
			"in memory": func(r *rig, limit Limit) *rig {
				require.NoError(t, r.SetLimits(levelLimits(t, limit)))
				return r
			},
			"not in memory": func(r *rig, limit Limit) *rig {
				require.NoError(t, r.Flush())
				r.evictAll()
				require.Zero(t, r.Stats().Resident)
				require.NoError(t, r.SetLimits(levelLimits(t, limit)))
				return r
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newLevels(t, PerHour(100))
				r.take(key, 100)
				r = change(r, PerSecond(1))
				c.look(r)
				r.clock.Advance(2 * time.Second)
				for range 130 { // each shard's turn comes
					require.NoError(t, r.Flush())
				}
				require.Equal(t, c.left, change(r, PerHour(100)).left(key))
			})
		}
	}
	for name, again := range map[string]func(r *rig) *rig{
		"limits that are set again": func(r *rig) *rig {
			require.NoError(t, r.SetLimits(levelLimits(t, PerHour(10))))
			return r
		},
		"a restart": func(r *rig) *rig {
			require.NoError(t, r.Close())
			return r.next(levelLimits(t, PerHour(10)))
		},
	} {
		t.Run("Check after Check, "+name, func(t *testing.T) {
			r := newLevels(t, PerDay(10))
			r.take(key, 10)
			r = again(r)
			require.Equal(t, 6*time.Minute, r.check(key, 1).RetryAfter)
			for range 5 {
				r.clock.Advance(time.Minute)
				r = again(r)
				require.False(t, r.check(key, 1).Allowed)
			}
			r.clock.Advance(time.Minute)
			require.True(t, again(r).check(key, 1).Allowed)
		})
	}
	t.Run("from rolling to a large quota", func(t *testing.T) {
		// A TAT that is a minute ahead is more than a quota of 5e10 can have used.
		key, day := perID.Key("a"), EachDay(50_000_000_000-1, nil)
		r := rigFrom(t, "2026-06-10T23:59:10Z", Limit{Burst: 100, Count: 1, Period: time.Second})
		r.take(key, 100) // full 50 s after midnight
		require.NoError(t, r.SetLimits(limitsOf(t, testNames, map[Name]Limit{perID: day})))
		require.Zero(t, r.left(key))
	})
}

// What Declare adds stays declared over SetLimits, and has one number and one label.
func TestDeclare(t *testing.T) {
	base := limitsOf(t, testNames, planDefaults)
	smaller := limitsOf(t, Names{other: testNames[other]}, map[Name]Limit{other: PerHour(1)})
	r := rigOn(t, NewMemStore(), base, Options{})
	lent := Names{perID: testNames[perID], 99: {Label: "Late"}}
	require.NoError(t, r.Declare(lent))
	inForce := r.Limits()
	require.NoError(t, r.Declare(lent))
	require.True(t, inForce == r.Limits(), "nothing is new")
	given := func(name Name) error {
		_, err := r.SpendAll(Request{Key: name.Key("a"), Cost: 1, Limit: PerHour(1000)})
		return err
	}
	for _, limits := range []*Limits{smaller, base, smaller} {
		require.NoError(t, r.SetLimits(limits))
		require.NoError(t, given(perID), "it had been declared before")
		require.NoError(t, given(99))
	}
	require.ErrorIs(t, given(everyone), ErrUnknownName, "it was not lent")
	require.Equal(t, Unlimited, r.Limits().For(perID.Key("a")))
	for _, wrong := range []Names{{99: {Label: "Other"}}, {98: {Label: "Late"}}, {perID: {Label: "Other"}}} {
		require.ErrorIs(t, r.Declare(wrong), ErrNameMismatch)
		for name, spec := range wrong {
			spec.Limit = PerHour(1)
			require.ErrorIs(t, r.SetLimits(limitsOf(t, Names{name: spec}, nil)), ErrNameMismatch)
		}
	}
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Declare(lent), ErrClosed)
}
