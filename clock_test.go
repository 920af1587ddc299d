package stint

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// computer is a machine with a clock that may be wrong, and a file or a memStore
// that processes of it use one after the other.
type computer struct {
	t        *testing.T
	mem      *memStore // nil for a file
	path     string
	begun    time.Time
	wrong    func(elapsed time.Duration) time.Duration // of the wall clock
	nameless bool                                      // the system does not tell its boots apart
	boots    int
	booted   time.Time
	ran      time.Duration // time that the machine ran, before this boot
	process  *Limiter
}

// boot ends a boot, if there is one, and begins another after a while.
func (c *computer) boot(off time.Duration) {
	if c.boots > 0 {
		c.ran += time.Since(c.booted)
		pass(off)
	}
	c.boots++
	c.booted = time.Now()
}

// running returns the time that the machine ran.
func (c *computer) running() time.Duration { return c.ran + time.Since(c.booted) }

func (c *computer) start(level Durability) {
	c.t.Helper()
	var store Store = c.mem
	if c.mem == nil {
		store = openBoltOn(c.t, c.path, levelNames, unsynced())
	}
	o := &Options{FlushInterval: 30 * time.Second, Durability: level, MaxResident: fewResident,
		wall: func() time.Time { return truth().Add(c.wrong(time.Since(c.begun))) }}
	if !c.nameless {
		o.machine = func(int64) (string, int64) { return fmt.Sprint("boot ", c.boots), int64(time.Since(c.booted)) }
	} else {
		o.machine = func(wall int64) (string, int64) {
			if time.Unix(0, wall).Year() < 2026 {
				return "", 0
			}
			return "wall", wall
		}
	}
	var err error
	c.process, err = New(store, tenIn10m(c.t), o)
	require.NoError(c.t, err)
}

// wrongClocks has, by name, how a wall clock is wrong as time passes. They are
// the rows of the table in docs/edge.md.
var wrongClocks = map[string]struct {
	wrong   func(elapsed time.Duration) time.Duration
	early   bool // buckets fill too early, because the clock is set ahead
	credits bool // once it is right, time without power counts, also for what came after it
}{
	"right":                  {wrong: func(time.Duration) time.Duration { return 0 }},
	"2h ahead, then right":   {wrong: until(time.Second, 2*time.Hour, 0)},
	"9y ahead, then right":   {wrong: until(time.Second, 9*365*24*time.Hour, 0)},
	"2099, then right":       {wrong: until(time.Second, 73*365*24*time.Hour, 0)},
	"2h behind from then on": {wrong: until(time.Second, 0, -2*time.Hour)},
	"1970 from then on":      {wrong: until(time.Second, 0, time.Unix(1, 0).Sub(time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC)))},
	"1970, then right":       {wrong: until(40*time.Minute, time.Unix(1, 0).Sub(time.Date(2028, 1, 1, 0, 0, 0, 0, time.UTC)), 0), early: true},
	"set back in a run":      {wrong: until(25*time.Minute+time.Second, 0, -3*time.Hour)},
	"set ahead in a run":     {wrong: until(25*time.Minute+time.Second, 0, 3*time.Hour), early: true},
	"2h behind, then right": {credits: true, wrong: func(elapsed time.Duration) time.Duration {
		if elapsed < time.Second || elapsed > 50*time.Minute {
			return 0
		}
		return -2 * time.Hour
	}},
}

// until returns a clock that is wrong by one duration at first, and then by
// another.
func until(when, before, after time.Duration) func(time.Duration) time.Duration {
	return func(elapsed time.Duration) time.Duration {
		if elapsed < when {
			return before
		}
		return after
	}
}

// TestClocks runs the table of docs/edge.md: whatever the clock did, an empty
// bucket fills, and a hold ends, within their durations of time that the machine
// runs, over processes that live for milliseconds, minutes and days. They do so
// no earlier, unless the clock was set ahead.
func TestClocks(t *testing.T) {
	t.Parallel()
	const fills, holds = 10 * time.Minute, 15 * time.Minute
	for _, life := range []time.Duration{5 * time.Millisecond, 12 * time.Minute, 26 * time.Hour} {
		for _, boots := range []string{"same boot", "other boots", "no ids of boots"} {
			for says, clock := range wrongClocks {
				for level := Flushed; level <= Synced; level++ {
					if boots == "no ids of boots" && says == "1970 from then on" {
						continue // only the time of processes counts
					}
					kind := "mem"
					if life < time.Second && says == "9y ahead, then right" &&
						(level == Synced && boots == "same boot" || testlength.Long && boots != "other boots") {
						kind = "file"
					}
					if testlength.Race && level != Synced { // each run takes ten times as long
						continue
					}
					if !testlength.Long && level != Synced && (life > time.Second || boots != "same boot" ||
						says != "2h behind, then right" && says != "set ahead in a run") {
						continue
					}
					if !testlength.Long && life > time.Hour && boots != "same boot" {
						continue
					}
					t.Run(fmt.Sprintf("%v/%s/%s/%v", life, boots, says, level), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							c := &computer{t: t, path: storePath(t), begun: time.Now(), wrong: clock.wrong,
								nameless: boots == "no ids of boots"}
							if kind == "mem" {
								c.mem = newMemStore()
							}
							step := time.Minute
							if !testlength.Long && life > time.Hour {
								step = 5 * time.Minute
							}
							key, held := Name(level).Key("a"), Name(level).Key("held")
							emptied, emptiedRan := time.Time{}, time.Duration(0)
							heldAt, heldRan := time.Time{}, time.Duration(0)
							rounds := 0
							late := func(allowed bool) (most time.Duration) {
								if c.nameless {
									most += 5 * step // since the last save before the clock was set back
								}
								if allowed {
									most += step
								}
								return most
							}
							try := func() {
								d, err := c.process.Spend(key, 10)
								require.NoError(t, err)
								require.LessOrEqual(t, d.RetryAfter, fills)
								at := fmt.Sprintf("after %v", time.Since(c.begun))
								if !emptied.IsZero() {
									require.LessOrEqual(t, c.running()-emptiedRan-fills, late(d.Allowed), at)
								}
								if d.Allowed {
									emptied, emptiedRan = time.Now(), c.running()
									if !clock.early {
										require.LessOrEqual(t, time.Duration(rounds)*fills, time.Since(c.begun), at)
									}
									rounds++
								}
								d, err = c.process.Check(held, 0)
								require.NoError(t, err)
								require.LessOrEqual(t, d.RetryAfter, holds)
								if !heldAt.IsZero() {
									require.LessOrEqual(t, c.running()-heldRan-holds, late(d.Allowed), at)
									if d.Allowed && !clock.early && !clock.credits {
										require.GreaterOrEqual(t, time.Since(heldAt), holds, at)
									}
								}
								if d.Allowed {
									require.NoError(t, errorOf(c.process.Hold(held, c.process.Now().Add(holds))))
									heldAt, heldRan = time.Now(), c.running()
								}
							}
							defer func() { c.process.Close() }()
							c.boot(0)
							for c.running() < max(3*time.Hour, life+time.Hour) {
								c.start(level)
								try()
								for at := step; at < life; at += step {
									pass(step)
									try()
								}
								pass(min(life, time.Second))
								require.NoError(t, c.process.Close())
								if boots == "other boots" {
									c.boot(13 * time.Second)
									pass(47 * time.Second)
								} else {
									pass(step - min(life, time.Second))
								}
							}
							require.Greater(t, rounds, 12)
						})
					})
				}
			}
		}
	}
}

// states is a memStore that keeps what it had after each save.
type states struct {
	*memStore
	mu   sync.Mutex // guards kept
	kept []*memStore
}

func (s *states) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, &memStore{tats: maps.Clone(s.tats), clock: slices.Clone(s.clock)})
}

func (s *states) Save(changes []Change) error {
	defer s.keep()
	return s.memStore.Save(changes)
}

func (s *states) SaveClock(record []byte) error {
	defer s.keep()
	return s.memStore.SaveClock(record)
}

// TestClocksCut: a crash while holds and buckets are moved back neither ends a
// hold nor fills a bucket, and leaves none too long.
func TestClocksCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := 2 * time.Hour
		booted := time.Now().Add(-time.Hour)
		open := func(s Store) *Limiter {
			t.Helper()
			l, err := New(s, tenIn10m(t), &Options{
				wall:    func() time.Time { return truth().Add(ahead) },
				machine: func(int64) (string, int64) { return "boot", int64(time.Since(booted)) },
			})
			require.NoError(t, err)
			return l
		}
		s := &states{memStore: newMemStore()}
		spent, held := Name(Synced).Key("spent"), Name(Synced).Key("held")
		l := open(s)
		require.NoError(t, errorOf(l.Hold(held, l.Now().Add(3*time.Hour))))
		require.NoError(t, l.Close())
		ahead = 0
		require.NoError(t, open(s).Close())
		pass(time.Hour)
		s.kept = nil
		l = open(s)
		defer l.Close()
		require.NoError(t, l.Health(), "the clock is believed")
		require.True(t, truth().Equal(l.Now()))
		require.True(t, allowed(t, l, spent, 10))
		require.NoError(t, l.Close())
		require.Greater(t, len(s.kept), 3)
		for i, kept := range s.kept {
			l := open(kept)
			d, err := l.Check(held, 0)
			require.NoError(t, err)
			require.Equal(t, 2*time.Hour, d.RetryAfter, "state %d", i)
			require.NoError(t, l.Close())
		}
	})
}

// TestClocksCutInOtherBoot: a crash after holds and buckets were moved back, in
// a boot that is not that of the save, does not add the time since the boot once
// more, nor the time by which they were moved.
func TestClocksCutInOtherBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := 73 * 365 * 24 * time.Hour
		boot, booted := "first", time.Now().Add(-time.Hour)
		open := func(s Store) *Limiter {
			t.Helper()
			l, err := New(s, tenIn10m(t), &Options{
				wall:    func() time.Time { return truth().Add(wrong) },
				machine: func(int64) (string, int64) { return boot, int64(time.Since(booted)) },
			})
			require.NoError(t, err)
			return l
		}
		s := &states{memStore: newMemStore()}
		held := Name(Synced).Key("held")
		l := open(s)
		require.NoError(t, errorOf(l.Hold(held, l.Now().Add(3*time.Hour))))
		require.NoError(t, l.Close())
		pass(time.Hour)
		for _, id := range []string{"first", "second"} {
			if id == "second" {
				boot, booted = id, time.Now()
				pass(time.Hour)
			}
			for _, wrong = range []time.Duration{0, -time.Hour} {
				was := &states{memStore: newMemStore()}
				was.tats, was.clock = maps.Clone(s.tats), slices.Clone(s.clock)
				first := wrong
				wrong = 0
				require.NoError(t, open(was).Close())
				require.Greater(t, len(was.kept), 2)
				wrong = first
				for i, kept := range was.kept {
					if i == 0 && wrong != 0 {
						continue // nothing was moved
					}
					l := open(kept)
					d, err := l.Check(held, 0)
					require.NoError(t, err)
					require.Equal(t, 2*time.Hour, d.RetryAfter, "boot %s, state %d, wrong by %v", id, i, wrong)
					require.NoError(t, l.Close())
				}
			}
		}
	})
}

// TestClocksCutPower: what the machine ran with a clock that is behind counts in
// the next boot, although nothing else is saved, except for the last minute. So
// does the time between processes that change nothing.
func TestClocksCutPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wrong atomic.Int64 // of the wall clock, in nanoseconds
		boots, booted := 1, time.Now()
		s := &states{memStore: newMemStore()}
		open := func(s Store) *Limiter {
			t.Helper()
			l, err := New(s, tenIn10m(t), &Options{
				MaxResident: fewResident,
				wall:        func() time.Time { return truth().Add(time.Duration(wrong.Load())) },
				machine:     func(int64) (string, int64) { return fmt.Sprint(boots), int64(time.Since(booted)) },
			})
			require.NoError(t, err)
			return l
		}
		held := Name(Synced).Key("held")
		for _, says := range []struct {
			wrong time.Duration
			cut   bool
		}{{-2 * time.Hour, true}, {73 * 365 * 24 * time.Hour, true}, {0, false}} {
			wrong.Store(0)
			s.memStore, s.kept = newMemStore(), nil
			l := open(s)
			require.NoError(t, errorOf(l.Hold(held, l.Now().Add(3*time.Hour))))
			wrong.Store(int64(says.wrong))
			pass(50 * time.Minute)
			s.mu.Lock()
			cut := s.kept[len(s.kept)-1]
			s.mu.Unlock()
			require.NoError(t, l.Close())
			if says.cut {
				s.memStore = cut
			} else { // a process that lives for a second, and changes nothing
				pass(50 * time.Minute)
				l = open(s)
				pass(time.Second)
				require.NoError(t, l.Close())
			}
			boots, booted = boots+1, time.Now()
			wrong.Store(int64(-20 * 365 * 24 * time.Hour))
			l = open(s)
			d, err := l.Check(held, 0)
			require.NoError(t, err)
			most := 2*time.Hour + 11*time.Minute
			if !says.cut {
				most -= 51 * time.Minute
			}
			require.LessOrEqual(t, d.RetryAfter, most, "wrong by %v", says.wrong)
			require.NoError(t, l.Close())
		}
	})
}

// TestClocksCalendar: a quota that follows the calendar has used in its period
// what was used while the clock was ahead, or at worst all of it. It is full
// again when the right period ends.
func TestClocksCalendar(t *testing.T) {
	for _, c := range []struct {
		name  string
		ahead time.Duration
		used  int64 // of 10, on the right day
	}{
		{"the same day", 2 * time.Hour, 4},
		{"the next day", 20 * time.Hour, 10},
		{"2101", 73 * 365 * 24 * time.Hour, 10},
	} {
		for level := Flushed; level <= Synced; level++ {
			for _, given := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/given=%v", c.name, level, given), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						pass(10 * time.Hour) // since midnight
						ahead := c.ahead
						booted := time.Now().Add(-time.Hour)
						s := &states{memStore: newMemStore()}
						day, key := EachDay(10, time.UTC), Name(level).Key("a")
						day.Durability = level
						limits := levelLimits(t, day)
						req := Request{Key: key, Cost: 4}
						if given {
							limits = limitsOf(t, levelNames, map[Name]Limit{
								inMemory: Unlimited, flushed: Unlimited, leased: Unlimited, synced: Unlimited})
							req.Limit = day
						}
						open := func() *Limiter {
							l, err := New(s, limits, &Options{
								wall:    func() time.Time { return truth().Add(ahead) },
								machine: func(int64) (string, int64) { return "boot", int64(time.Since(booted)) },
							})
							require.NoError(t, err)
							return l
						}
						used := func() int64 {
							l := open()
							defer l.Close()
							d, err := l.SpendAll(Request{Key: key, Limit: req.Limit})
							require.NoError(t, err)
							return 10 - d.Remaining
						}
						l := open()
						d, err := l.SpendAll(req)
						require.NoError(t, err)
						require.True(t, d.Allowed)
						require.NoError(t, l.Close())
						ahead = 0
						require.NoError(t, open().Close())
						pass(2 * time.Hour)
						l = open()
						require.NoError(t, l.Health(), "the clock is believed")
						require.True(t, truth().Equal(l.Now()))
						require.NoError(t, l.Close())
						require.Equal(t, c.used, used())
						pass(12*time.Hour - 1)
						require.Equal(t, c.used, used())
						pass(1)
						require.EqualValues(t, 0, used(), "a new day")
						pass(24 * time.Hour)
						require.EqualValues(t, 0, used(), "another one")
					})
				})
			}
		}
	}
}
