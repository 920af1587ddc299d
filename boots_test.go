package stint

import (
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// board is a device whose power fails, and whose clock may be wrong when it
// boots.
type board struct {
	*Limiter
	t        *testing.T
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
	b := &board{t: t, path: storePath(t)}
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
		b.store = openBoltOn(b.t, b.path, levelNames, unsynced())
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
								d, err := b.Spend(key, 1)
								require.NoError(t, err)
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
							d, err := b.Check(key, 10)
							require.NoError(t, err)
							require.LessOrEqual(t, d.RetryAfter, full)
							pass(d.RetryAfter)
							require.True(t, allowed(t, b.Limiter, key, 10))
							cut()
						})
					})
				}
			}
		}
	}
}

func allowed(t *testing.T, l *Limiter, key Key, cost int64) bool {
	t.Helper()
	d, err := l.Spend(key, cost)
	require.NoError(t, err)
	return d.Allowed
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
						require.True(t, allowed(t, b.Limiter, key, 1))
					}
					require.NoError(t, b.Flush())
					b.cut()
					for range 10 { // each is shorter than the time in which 3 tokens return
						b.boot(clocks["1970"]())
						if allowed(t, b.Limiter, key, 3) {
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

// timeStore is a memStore whose saves can fail.
type timeStore struct {
	*memStore
	fails atomic.Bool
}

func (s *timeStore) Save(changes []Change) error {
	if s.fails.Load() {
		return errDisk
	}
	return s.memStore.Save(changes)
}

// A time that could not be saved is saved by the next flush, although no bucket
// has changed.
func TestTimeAfterFailure(t *testing.T) {
	for name, flushes := range map[string]bool{"a clock that is behind": false, "Flush": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &timeStore{memStore: newMemStore()}
				o := &Options{wall: truth}
				if flushes {
					o.FlushInterval = 1000 * time.Hour
				} else { // the last save was an hour ahead
					require.NoError(t, store.Save([]Change{{Key{}, truth().Add(time.Hour).UnixNano()}}))
				}
				l, err := New(store, tenIn10m(t), o)
				require.NoError(t, err)
				defer l.Close()
				require.Equal(t, flushes, l.Health() == nil)
				late := func() time.Duration { return l.Now().Sub(time.Unix(0, load(t, store, Key{}))) }
				if flushes {
					require.NoError(t, l.Flush())
				} else {
					pass(61 * time.Second)
				}
				require.Less(t, late(), 2*time.Second)
				pass(57 * time.Second)
				store.fails.Store(true)
				pass(4 * time.Second)
				if flushes {
					require.ErrorIs(t, l.Flush(), errDisk)
				}
				require.Greater(t, late(), time.Minute)
				store.fails.Store(false)
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

// testWrongClock: an event and Health say that the clock is wrong, until it is
// right. A device that never had the right time takes the first that it gets.
func testWrongClock(t *testing.T) {
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
		require.Equal(t, -time.Hour, events[0].Step)
		require.Equal(t, begun.Add(2*time.Second), b.Now())
		b.wrong.Store(0)
		pass(time.Second)
		require.NoError(t, b.Health())
		require.True(t, truth().Equal(b.Now()))
		events = b.told()
		require.Len(t, events, 1)
		require.Equal(t, ClockStepped, events[0].Kind)
		require.ErrorContains(t, events[0].Err, "2h0m0s")
		require.Equal(t, 2*time.Hour, events[0].Step)
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
