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

// clockWorld takes processes of one machine, one after the other, through a
// random history: the wall clock steps, the machine boots, and processes end or
// are killed. It compares what they decide with the time that the machine ran.
type clockWorld struct {
	t       *testing.T
	rnd     *rand.Rand
	mu      sync.Mutex // guards store, kept and saved while a process runs
	store   *memStore
	kept    *memStore // as it was after the last save
	process *Limiter
	wrong   atomic.Int64 // of the wall clock, in nanoseconds
	begun   time.Time
	booted  time.Time
	boots   int
	before  time.Duration // what the machine ran before this boot
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

func (w *clockWorld) ran() time.Duration { return w.before + time.Since(w.booted) }

func (w *clockWorld) open() {
	var err error
	w.process, err = New(clockWorldStore{w.store, w}, tenIn10m(w.t), &Options{
		FlushInterval: 30 * time.Second,
		MaxResident:   1000,
		wall:          func() time.Time { return truth().Add(time.Duration(w.wrong.Load())) },
		machine: func(int64) (string, int64) {
			return fmt.Sprint("boot ", w.boots), int64(time.Since(w.booted))
		},
	})
	require.NoError(w.t, err)
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
		w.boots++
		w.booted = time.Now()
		w.counts["boots"]++
	}
	if w.rnd.IntN(2) == 0 {
		w.wrong.Store(int64(w.pickWrong()))
	}
	pass(time.Duration(w.rnd.Int64N(int64(20 * time.Second))))
	w.open()
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
		d, err := w.process.Spend(k.spent, 10)
		require.NoError(w.t, err)
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
		d, err = w.process.Check(k.held, 0)
		require.NoError(w.t, err)
		if k.given > 0 && !d.Allowed {
			late := w.ran() + d.RetryAfter - k.given - holds
			require.LessOrEqual(w.t, late, w.lost-k.gaveAt, "%v after %v", k.held, time.Since(w.begun))
		}
		if d.Allowed {
			require.NoError(w.t, errorOf(w.process.Hold(k.held, w.process.Now().Add(holds))))
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
		s := seed()
		synctest.Test(t, func(t *testing.T) {
			w := &clockWorld{t: t, rnd: rand.New(rand.NewPCG(s, 0)), store: newMemStore(), begun: time.Now(),
				booted: time.Now(), boots: 1, counts: make(map[string]int)}
			defer func() {
				if w.process.Close(); t.Failed() {
					t.Logf("seed %d, %v", s, w.counts)
				}
			}()
			for _, level := range []Durability{Flushed, Synced} {
				w.keys = append(w.keys, &clockKey{spent: Name(level).Key("spent"), held: Name(level).Key("held")})
			}
			w.keep()
			w.open()
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
