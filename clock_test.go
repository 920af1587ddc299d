package stint

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// computer is a machine with a file or a memStore that processes of it use one
// after the other.
type computer struct {
	*machine
	mem     *memStore // nil for a file
	path    string
	process *rig
}

// boot ends a boot, and begins another after a while.
func (c *computer) boot(off time.Duration) {
	c.before = c.ran()
	pass(off)
	c.reboot()
}

func (c *computer) start() {
	c.t.Helper()
	var store Store = c.mem
	if c.mem == nil {
		store = openBolt(c.t, c.path, levelNames)
	}
	c.process = c.open(store, nil)
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
							c := &computer{machine: newMachine(t), path: storePath(t)}
							begun := time.Now()
							c.booted, c.flush, c.nameless = begun, 30*time.Second, boots == "no ids of boots"
							c.wall = func() time.Time { return truth().Add(clock.wrong(time.Since(begun))) }
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
								d := c.process.spend(key, 10)
								require.LessOrEqual(t, d.RetryAfter, fills)
								at := fmt.Sprintf("after %v", time.Since(begun))
								if !emptied.IsZero() {
									require.LessOrEqual(t, c.ran()-emptiedRan-fills, late(d.Allowed), at)
								}
								if d.Allowed {
									emptied, emptiedRan = time.Now(), c.ran()
									if !clock.early {
										require.LessOrEqual(t, time.Duration(rounds)*fills, time.Since(begun), at)
									}
									rounds++
								}
								d = c.process.check(held, 0)
								require.LessOrEqual(t, d.RetryAfter, holds)
								if !heldAt.IsZero() {
									require.LessOrEqual(t, c.ran()-heldRan-holds, late(d.Allowed), at)
									if d.Allowed && !clock.early && !clock.credits {
										require.GreaterOrEqual(t, time.Since(heldAt), holds, at)
									}
								}
								if d.Allowed {
									c.process.hold(held, holds)
									heldAt, heldRan = time.Now(), c.ran()
								}
							}
							defer func() { c.process.Close() }()
							for c.ran() < max(3*time.Hour, life+time.Hour) {
								c.start()
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

// machine runs processes one after the other. Its wall clock may be wrong.
type machine struct {
	t        *testing.T
	wall     func() time.Time
	wrong    atomic.Int64 // of the wall clock, in nanoseconds
	nameless bool         // the system does not tell its boots apart
	boots    int
	booted   time.Time
	before   time.Duration // what the machine ran before this boot
	flush    time.Duration // interval; 0: the default
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, boots: 1, booted: time.Now().Add(-time.Hour)}
	m.wall = func() time.Time { return truth().Add(time.Duration(m.wrong.Load())) }
	return m
}

// reboot begins another boot.
func (m *machine) reboot() { m.boots, m.booted = m.boots+1, time.Now() }

// ran returns the time that the machine ran.
func (m *machine) ran() time.Duration { return m.before + time.Since(m.booted) }

// boot returns what the system says of the boot.
func (m *machine) boot(wall int64) (string, int64) {
	switch {
	case !m.nameless:
		return fmt.Sprint("boot ", m.boots), int64(time.Since(m.booted))
	case time.Unix(0, wall).Year() < 2026:
		return "", 0
	}
	return "wall", wall
}

// open starts a process. Without limits, an empty bucket is full after ten minutes.
func (m *machine) open(s Store, limits *Limits) *rig {
	m.t.Helper()
	if limits == nil {
		limits = tenIn10m(m.t)
	}
	l, err := New(s, limits, &Options{FlushInterval: m.flush, MaxResident: fewResident, wall: m.wall, machine: m.boot})
	require.NoError(m.t, err)
	return &rig{Limiter: l, t: m.t}
}

// TestClocksCut: a crash while holds and buckets are moved back neither ends a
// hold nor fills a bucket, and leaves none too long.
func TestClocksCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.wrong.Store(int64(2 * time.Hour))
		s := &states{memStore: newMemStore()}
		spent, held := Name(Synced).Key("spent"), Name(Synced).Key("held")
		l := m.open(s, nil)
		l.hold(held, 3*time.Hour)
		require.NoError(t, l.Close())
		m.wrong.Store(0)
		require.NoError(t, m.open(s, nil).Close())
		pass(time.Hour)
		s.kept = nil
		l = m.open(s, nil)
		defer l.Close()
		require.NoError(t, l.Health(), "the clock is believed")
		require.True(t, truth().Equal(l.Now()))
		l.take(spent, 10)
		require.NoError(t, l.Close())
		require.Greater(t, len(s.kept), 3)
		for i, kept := range s.kept {
			l := m.open(kept, nil)
			require.Equal(t, 2*time.Hour, l.check(held, 0).RetryAfter, "state %d", i)
			require.NoError(t, l.Close())
		}
	})
}

// TestClocksCutInOtherBoot: a crash after holds and buckets were moved back, in
// a boot that is not that of the save, does not add the time since the boot once
// more, nor the time by which they were moved.
func TestClocksCutInOtherBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.wrong.Store(int64(73 * 365 * 24 * time.Hour))
		s := &states{memStore: newMemStore()}
		held := Name(Synced).Key("held")
		l := m.open(s, nil)
		l.hold(held, 3*time.Hour)
		require.NoError(t, l.Close())
		pass(time.Hour)
		for boot := range 2 {
			if boot == 1 {
				m.reboot()
				pass(time.Hour)
			}
			for _, wrong := range []time.Duration{0, -time.Hour} {
				was := &states{memStore: newMemStore()}
				was.tats, was.clock = maps.Clone(s.tats), slices.Clone(s.clock)
				m.wrong.Store(0)
				require.NoError(t, m.open(was, nil).Close())
				require.Greater(t, len(was.kept), 2)
				m.wrong.Store(int64(wrong))
				for i, kept := range was.kept {
					if i == 0 && wrong != 0 {
						continue // nothing was moved
					}
					l := m.open(kept, nil)
					wait := l.check(held, 0).RetryAfter
					require.Equal(t, 2*time.Hour, wait, "boot %d, state %d, wrong by %v", boot, i, wrong)
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
		m := newMachine(t)
		m.booted = time.Now()
		s := &states{memStore: newMemStore()}
		held := Name(Synced).Key("held")
		for _, says := range []struct {
			wrong time.Duration
			cut   bool
		}{{-2 * time.Hour, true}, {73 * 365 * 24 * time.Hour, true}, {0, false}} {
			m.wrong.Store(0)
			s.memStore, s.kept = newMemStore(), nil
			l := m.open(s, nil)
			l.hold(held, 3*time.Hour)
			m.wrong.Store(int64(says.wrong))
			pass(50 * time.Minute)
			s.mu.Lock()
			cut := s.kept[len(s.kept)-1]
			s.mu.Unlock()
			require.NoError(t, l.Close())
			if says.cut {
				s.memStore = cut
			} else { // a process that lives for a second, and changes nothing
				pass(50 * time.Minute)
				l = m.open(s, nil)
				pass(time.Second)
				require.NoError(t, l.Close())
			}
			m.reboot()
			m.wrong.Store(int64(-20 * 365 * 24 * time.Hour))
			l = m.open(s, nil)
			most := 2*time.Hour + 11*time.Minute
			if !says.cut {
				most -= 51 * time.Minute
			}
			require.LessOrEqual(t, l.check(held, 0).RetryAfter, most, "wrong by %v", says.wrong)
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
						m := newMachine(t)
						m.wrong.Store(int64(c.ahead))
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
						used := func() int64 {
							l := m.open(s, limits)
							defer l.Close()
							return 10 - l.spendAll(Request{Key: key, Limit: req.Limit}).Remaining
						}
						l := m.open(s, limits)
						require.True(t, l.spendAll(req).Allowed)
						require.NoError(t, l.Close())
						m.wrong.Store(0)
						require.NoError(t, m.open(s, limits).Close())
						pass(2 * time.Hour)
						l = m.open(s, limits)
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

// board is a device whose power fails, and whose clock may be wrong when it
// boots.
type board struct {
	rig
	inMemory map[Key]int64 // what the last power cut left; nil for a file
	path     string        // of the file
	store    Store
	wrong    atomic.Int64 // nanoseconds, of the wall clock now
	mu       sync.Mutex
	events   []Event
}

// truth returns the right time. The fake clock of synctest begins in 2000.
func truth() time.Time { return time.Now().AddDate(28, 0, 0) }

func newBoard(t *testing.T, kind string) *board {
	b := &board{rig: rig{t: t}, path: storePath(t)}
	if kind == "mem" {
		b.inMemory = map[Key]int64{}
	}
	return b
}

// tenIn10m is a limit under which an empty bucket is full after ten minutes.
func tenIn10m(t testing.TB) *Limits {
	return levelLimits(t, Limit{Burst: 10, Count: 10, Period: 10 * time.Minute})
}

// boot starts a Limiter whose wall clock is wrong by that much.
func (b *board) boot(wrong time.Duration) {
	b.t.Helper()
	b.wrong.Store(int64(wrong))
	b.told()
	if b.inMemory != nil {
		mem := newMemStore()
		mem.tats = maps.Clone(b.inMemory)
		b.store = mem
	} else {
		b.store = openBolt(b.t, b.path, levelNames)
	}
	var err error
	b.Limiter, err = New(b.store, tenIn10m(b.t), &Options{
		MaxResident: fewResident,
		OnEvent: func(e Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e)
		},
		wall: func() time.Time { return truth().Add(time.Duration(b.wrong.Load())) },
	})
	require.NoError(b.t, err)
}

// told returns the events since the last call.
func (b *board) told() (events []Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	events, b.events = b.events, nil
	return events
}

// cut cuts the power: only what was saved is there at the next boot.
func (b *board) cut() {
	b.t.Helper()
	if mem, ok := b.store.(*memStore); ok {
		mem.mu.Lock()
		b.inMemory = maps.Clone(mem.tats)
		mem.mu.Unlock()
	} else {
		b.path = copyOf(b.t, b.path)
	}
	require.NoError(b.t, b.Close())
}

// clocks has, by name, the error of a wall clock at a boot.
var clocks = map[string]func() time.Duration{
	"right":      func() time.Duration { return 0 },
	"1970":       func() time.Duration { return time.Unix(1, 0).Sub(truth()) },
	"2015":       func() time.Duration { return time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC).Sub(truth()) },
	"2027":       func() time.Duration { return time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC).Sub(truth()) },
	"40m behind": func() time.Duration { return -40 * time.Minute },
	"2099":       func() time.Duration { return time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).Sub(truth()) },
}

// TestBoots: power cuts and wrong clocks admit no more than the limit and what
// each level may forget, and shut no id out for longer than an empty bucket
// does.
func TestBoots(t *testing.T) {
	t.Parallel()
	const flush, tick, full = time.Second, 500 * time.Millisecond, 10 * time.Minute
	for _, kind := range []string{"mem", "file"} {
		for says, wrong := range clocks {
			for _, mended := range []bool{true, false} {
				for level := Flushed; level <= Synced; level++ {
					if kind == "file" && (says != "1970" || mended || level < Synced) && !testlength.Long {
						continue
					}
					name := kind + "/" + says + map[bool]string{true: " then right/", false: " for ever/"}[mended] + level.String()
					t.Run(name, func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							b, key := newBoard(t, kind), Name(level).Key("a")
							begun := time.Now()
							var admitted, forgotten int64
							var passed []time.Time
							spend := func() {
								d := b.spend(key, 1)
								require.LessOrEqual(t, d.RetryAfter, full)
								if d.Allowed {
									admitted++
									passed = append(passed, time.Now())
								}
								elapsed := int64(time.Since(begun) / time.Minute)
								require.LessOrEqual(t, admitted, 10+elapsed+forgotten)
							}
							cut := func() {
								b.cut()
								for ; level == Flushed && len(passed) > 0; passed = passed[1:] {
									if time.Since(passed[0]) <= flush {
										forgotten++
									}
								}
							}
							b.boot(0)
							for range 12 {
								spend()
							}
							pass(2 * flush)
							cut()
							for boot := range 6 {
								pass(10 * time.Second)
								b.boot(wrong())
								for i := range 30 * time.Second / tick {
									if mended && i == 15*time.Second/tick {
										b.wrong.Store(0)
									}
									spend()
									pass(tick)
								}
								if boot%2 == 0 {
									pass(100 * time.Second)
									spend()
								}
								cut()
							}
							b.boot(wrong())
							d := b.check(key, 10)
							require.LessOrEqual(t, d.RetryAfter, full)
							pass(d.RetryAfter)
							b.take(key, 10)
							cut()
						})
					})
				}
			}
		}
	}
}

// TestBootsUptime: while the clock is wrong, the time that the device was on
// counts, although a denied request changes no bucket.
func TestBootsUptime(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{true, false} {
		for level := Flushed; level <= Synced; level++ {
			t.Run(map[bool]string{true: "closed/", false: "cut/"}[closed]+level.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b, key := newBoard(t, "mem"), Name(level).Key("a")
					b.boot(0)
					for range 10 {
						b.take(key, 1)
					}
					require.NoError(t, b.Flush())
					b.cut()
					for range 10 { // each is shorter than the time in which 3 tokens return
						b.boot(clocks["1970"]())
						if b.spend(key, 3).Allowed {
							b.cut()
							return
						}
						pass(70 * time.Second)
						if closed {
							require.NoError(t, b.Flush())
						}
						b.cut()
					}
					t.Fatal("never admitted")
				})
			})
		}
	}
}

// A time that could not be saved is saved by the next flush, although no bucket
// has changed.
func TestTimeAfterFailure(t *testing.T) {
	for name, flushes := range map[string]bool{"a clock that is behind": false, "Flush": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := newMemStore()
				disk := &fakeStore{Store: mem}
				o := &Options{wall: truth}
				if flushes {
					o.FlushInterval = 1000 * time.Hour
				} else { // the last save was an hour ahead
					save(t, mem, Change{Key{}, truth().Add(time.Hour).UnixNano()})
				}
				l, err := New(disk, tenIn10m(t), o)
				require.NoError(t, err)
				defer l.Close()
				require.Equal(t, flushes, l.Health() == nil)
				late := func() time.Duration { return l.Now().Sub(time.Unix(0, load(t, mem, Key{}))) }
				if flushes {
					require.NoError(t, l.Flush())
				} else {
					pass(61 * time.Second)
				}
				require.Less(t, late(), 2*time.Second)
				pass(57 * time.Second)
				disk.fail(errDisk, "save")
				pass(4 * time.Second)
				if flushes {
					require.ErrorIs(t, l.Flush(), errDisk)
				}
				require.Greater(t, late(), time.Minute)
				disk.fail(nil)
				if flushes {
					require.NoError(t, l.Flush())
				} else {
					pass(5 * time.Second)
				}
				require.Less(t, late(), 5*time.Second)
				require.NoError(t, l.Close())
			})
		})
	}
}

// TestWrongClock: an event and Health say that the clock is wrong, until it is
// right. A device that never had the right time takes the first that it gets.
func TestWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, key := newBoard(t, "mem"), flushed.Key("a")
		b.boot(0)
		b.Spend(key, 1)
		require.NoError(t, b.Flush())
		require.NoError(t, b.Health())
		begun := b.Now()
		b.cut()
		pass(time.Hour)
		b.boot(-2 * time.Hour)
		pass(2 * time.Second)
		require.ErrorContains(t, b.Health(), "time goes on from the save, until the clock is right")
		events := b.told()
		require.Len(t, events, 1)
		require.Equal(t, ClockWrong, events[0].Kind)
		require.Error(t, events[0].Err)
		require.Equal(t, begun.Add(2*time.Second), b.Now())
		b.wrong.Store(0)
		pass(time.Second)
		require.NoError(t, b.Health())
		require.True(t, truth().Equal(b.Now()))
		events = b.told()
		require.Len(t, events, 1)
		require.Equal(t, ClockStepped, events[0].Kind)
		require.ErrorContains(t, events[0].Err, "2h0m0s")
		b.cut()

		b = newBoard(t, "mem") // a new file
		b.boot(clocks["1970"]())
		b.Spend(key, 1)
		b.wrong.Store(0)
		pass(time.Second)
		require.NoError(t, b.Health())
		require.True(t, truth().Equal(b.Now()))
		b.cut()
	})
}

// clockWorld takes processes of one machine, one after the other, through a
// random history: the wall clock steps, the machine boots, and processes end or
// are killed. It compares what they decide with the time that the machine ran.
type clockWorld struct {
	*machine
	rnd     *rand.Rand
	mu      sync.Mutex // guards store, kept and saved while a process runs
	store   *memStore
	kept    *memStore // as it was after the last save
	process *rig
	begun   time.Time
	saved   time.Duration // machine time of the last save that has the time
	right   time.Duration // machine time at which the wall clock was last not behind
	lost    time.Duration // what processes cannot know of the time that the machine ran
	back    time.Duration // how far time went back
	killed  bool
	keys    []*clockKey
	counts  map[string]int
}

// clockKey is a bucket that is emptied whenever it is full, and a hold that is
// given whenever there is none.
type clockKey struct {
	spent, held         Key
	emptied, given      time.Duration // machine time of the last
	emptiedLost, gaveAt time.Duration // clockWorld.lost then
	rounds              int
}

func (w *clockWorld) Save(changes []Change) error {
	if slices.ContainsFunc(changes, func(c Change) bool { return c.Key == Key{} }) {
		w.saved = w.ran()
	}
	defer w.keep()
	return w.store.Save(changes)
}

func (w *clockWorld) SaveClock(record []byte) error {
	defer w.keep()
	return w.store.SaveClock(record)
}

func (w *clockWorld) keep() {
	w.kept = &memStore{tats: maps.Clone(w.store.tats), clock: slices.Clone(w.store.clock)}
}

// clockWorldStore is the store of one process.
type clockWorldStore struct {
	*memStore
	world *clockWorld
}

func (s clockWorldStore) Save(changes []Change) error {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	if s.memStore != s.world.store { // it was killed
		return nil
	}
	return s.world.Save(changes)
}

func (s clockWorldStore) SaveClock(record []byte) error {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	if s.memStore != s.world.store {
		return nil
	}
	return s.world.SaveClock(record)
}

// restart ends the process and begins another, perhaps in another boot. Its time
// is that of the one before and what the machine ran since, unless a rule of
// docs/edge.md says otherwise.
func (w *clockWorld) restart(kill bool) {
	expects := w.process.Now()
	ended := w.ran()
	if kill {
		killed := w.process
		w.mu.Lock()
		w.store = w.kept
		w.mu.Unlock()
		require.NoError(w.t, killed.Close())
		w.killed = true
		w.counts["kills"]++
	} else {
		require.NoError(w.t, w.process.Close())
	}
	w.keep()
	if w.rnd.IntN(2) == 0 {
		w.lost += w.ran() - w.saved
		w.before, w.saved = w.ran(), w.ran()
		pass(time.Duration(w.rnd.Int64N(int64(30 * time.Minute))))
		w.reboot()
		w.counts["boots"]++
	}
	if w.rnd.IntN(2) == 0 {
		w.wrong.Store(int64(w.pickWrong()))
	}
	pass(time.Duration(w.rnd.Int64N(int64(20 * time.Second))))
	w.process = w.open(clockWorldStore{w.store, w}, nil)
	w.lost += 2 * time.Second // a record may be as much behind
	expects = expects.Add(w.ran() - ended)
	if back := expects.Sub(w.process.Now()); back > 2*time.Second {
		w.back += back
		if !w.killed && back > w.lost {
			w.counts["time went back"]++
			waited := w.ran() - w.right
			require.True(w.t, waited >= time.Hour || back > 10*365*24*time.Hour, "time goes back by %v after %v", back, waited)
		}
	}
}

// pickWrong returns by how much the wall clock is wrong from now on.
func (w *clockWorld) pickWrong() time.Duration {
	const year = 365 * 24 * time.Hour
	wrong := []time.Duration{0, 0, -3 * time.Minute, -2 * time.Hour, -58 * year, 73 * year}
	return wrong[w.rnd.IntN(len(wrong))]
}

// try requires that each bucket is full, and each hold ends, no later than it
// would have if the clock had always been right.
func (w *clockWorld) try() {
	const fills, holds = 10 * time.Minute, 15 * time.Minute
	if behind := w.process.Now().Sub(truth().Add(time.Duration(w.wrong.Load()))); behind <= 0 && behind >= -10*365*24*time.Hour {
		w.right = w.ran()
	}
	for _, k := range w.keys {
		d := w.process.spend(k.spent, 10)
		if k.rounds > 0 && !d.Allowed {
			late := w.ran() + d.RetryAfter - k.emptied - fills
			require.LessOrEqual(w.t, late, w.lost-k.emptiedLost, "%v after %v", k.spent, time.Since(w.begun))
		}
		if d.Allowed {
			k.emptied, k.emptiedLost = w.ran(), w.lost
			k.rounds++
			w.counts["emptied"]++
			if k.spent.Name != Name(Flushed) { // a crash forgets no spend
				require.LessOrEqual(w.t, time.Duration(k.rounds-1)*fills, time.Since(w.begun)+w.back+w.lost)
			}
		}
		d = w.process.check(k.held, 0)
		if k.given > 0 && !d.Allowed {
			late := w.ran() + d.RetryAfter - k.given - holds
			require.LessOrEqual(w.t, late, w.lost-k.gaveAt, "%v after %v", k.held, time.Since(w.begun))
		}
		if d.Allowed {
			w.process.hold(k.held, holds)
			k.given, k.gaveAt = w.ran(), w.lost
			w.counts["held"]++
		}
	}
}

// Whatever the clock does, and however processes end, no bucket and no hold
// waits longer than its duration, in time that the machine runs, and no clock
// that is behind fills a bucket or is believed before an hour has passed.
func TestClockWorlds(t *testing.T) {
	t.Parallel()
	for range testlength.Of(1_000, 10) {
		s := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			w := &clockWorld{machine: newMachine(t), rnd: rand.New(rand.NewPCG(s, 0)), store: newMemStore(), begun: time.Now(),
				counts: make(map[string]int)}
			w.booted, w.flush = w.begun, 30*time.Second
			defer func() {
				if w.process.Close(); t.Failed() {
					t.Logf("seed %d, %v", s, w.counts)
				}
			}()
			for _, level := range []Durability{Flushed, Synced} {
				w.keys = append(w.keys, &clockKey{spent: Name(level).Key("spent"), held: Name(level).Key("held")})
			}
			w.keep()
			w.process = w.open(clockWorldStore{w.store, w}, nil)
			w.try()
			pass(time.Minute)
			kills := w.rnd.IntN(2) == 0
			for range 100 {
				switch n := w.rnd.IntN(10); {
				case n < 5:
					pass(time.Duration(w.rnd.Int64N(int64(20 * time.Minute))))
				case n < 7:
					w.wrong.Store(int64(w.pickWrong()))
					pass(31 * time.Second) // the process sees it
				default:
					w.restart(kills && n == 9)
				}
				w.try()
			}
		})
	}
}
