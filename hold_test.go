package stint

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/testlength"
)

// held requires that every call finds the key held for that time.
func (r *rig) held(key Key, want time.Duration) {
	r.t.Helper()
	for _, d := range []Decision{r.check(key, 1), r.spend(key, 1), r.check(key, 0),
		r.spendAll(Request{Key: key, Cost: 1})} {
		require.Equal(r.t, want, d.RetryAfter)
	}
	require.True(r.t, r.refund(key, 0).Allowed)
}

func TestHold(t *testing.T) {
	key, shared := perID.Key("a"), everyone.Key("")
	t.Run("extended, restarted, reset and over", func(t *testing.T) {
		r := newRig(t)
		r.hold(key, time.Hour)
		r.hold(shared, 2*time.Hour)
		r.held(key, time.Hour)
		r.hold(key, 90*time.Minute)
		for range 2 {
			require.NoError(t, r.Close())
			r.clock.Advance(time.Minute)
			r = r.next(r.Limits())
		}
		r.held(key, 88*time.Minute)
		r.held(shared, 118*time.Minute)
		require.NoError(t, r.Reset(key))
		require.NoError(t, r.SetHold(shared, time.Time{}))
		r.take(shared, 1)

		r.hold(key, time.Minute)
		r.hold(off.Key("a"), time.Minute)
		r.clock.Advance(time.Minute - 1)
		r.held(key, 1)
		require.NoError(t, r.Flush())
		require.Len(t, collect(t, r.disk.All(Unknown)), 2)
		r.clock.Advance(1)
		r.take(key, 1)
		require.NoError(t, r.Flush())
		require.Empty(t, collect(t, r.disk.All(Unknown)))
		requireNoGates(t, r.Limiter)
	})
	t.Run("without space for the bucket", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 1})
		for range 2 {
			r.reserve(single.Key("queued"), 1)
		}
		require.ErrorIs(t, errorOf(r.Spend(key, 1)), ErrFull)
		r.hold(key, time.Hour)
		end, err := r.Hold(key, r.Now().Add(2*time.Hour))
		require.NoError(t, err)
		require.Equal(t, r.Now().Add(2*time.Hour), end)
		require.Equal(t, end, r.bucket(key).HeldUntil)
		require.EqualValues(t, 1, r.Stats().Resident)
		r.next(r.Limits()).held(key, 2*time.Hour)
	})
	t.Run("on a bucket that cannot be read", func(t *testing.T) {
		r := newRig(t)
		r.take(key, 3)
		require.NoError(t, r.Flush())
		r.evictAll()
		r.disk.fail(errDisk, "load")
		require.ErrorIs(t, errorOf(r.Spend(key, 1)), errDisk)
		r.hold(key, time.Hour)
		r.disk.fail(nil)
		r.held(key, time.Hour)
		r.clock.Advance(time.Hour)
		require.EqualValues(t, 5, r.left(key))
	})
	t.Run("Held", func(t *testing.T) {
		r, other, queued := newRig(t), perID.Key("b"), single.Key("queued")
		listed := func() map[Key]Held {
			all := map[Key]Held{}
			for h := range r.Held() {
				all[h.Key] = h
			}
			return all
		}
		r.hold(key, time.Hour)
		r.hold(shared, time.Minute)
		r.spend(other, 5)
		r.hold(other, time.Minute)
		require.NoError(t, r.Reset(other))
		r.take(queued, 1)
		r.reserve(queued, 1)
		r.reserve(queued, 1)
		until := r.clock.Now().Add(time.Hour)
		want := Held{Key: key, HeldUntil: listed()[key].HeldUntil}
		require.True(t, until.Equal(want.HeldUntil))
		require.Equal(t, map[Key]Held{key: want, shared: listed()[shared], queued: {Key: queued, Waiting: 2}}, listed())
		for range r.Held() {
			break
		}
		r.clock.Advance(time.Second)
		require.Equal(t, 1, listed()[queued].Waiting, "the first has gone")
		require.NoError(t, r.Close())
		require.Empty(t, listed())
		r.clock.Advance(time.Minute)
		r = r.next(r.Limits())
		require.Equal(t, map[Key]Held{key: want}, listed(), "from the store; holds that are over are not in force")
		require.Zero(t, r.Stats().Resident, "it loads no bucket")
	})
	inBubbleNamed(t, "late hold moves the queue", func(t *testing.T, r *rig) {
		key := synced.Key("a")
		r.take(key, 10)
		place := r.reserve(key, 5)
		r.disk.shut()
		require.ErrorIs(t, errorOf(r.Hold(key, r.Now().Add(time.Hour))), ErrNotDurable)
		require.Equal(t, time.Hour, place.Delay(), "it is in force at once")
		r.disk.open()
		synctest.Wait()
		require.Equal(t, time.Hour, place.Delay())
		require.Equal(t, r.tat(1)+int64(5*time.Second), r.stored(key))
		r.clock.Advance(100 * time.Hour)
		for range 2 * sweepRounds {
			r.tick()
		}
		require.Zero(t, r.Stats().Resident)
	})
}

func TestHoldLonger(t *testing.T) {
	key := perID.Key("a")
	extend := func(r *rig, d, want time.Duration) {
		r.t.Helper()
		until, err := r.Hold(key, r.Now().Add(d))
		require.NoError(r.t, err)
		require.Equal(r.t, want, until.Sub(r.Now()))
	}
	t.Run("never ends nor shortens", func(t *testing.T) {
		r := newRig(t)
		for _, none := range []time.Duration{0, -time.Hour} {
			until, err := r.Hold(key, r.Now().Add(none))
			require.NoError(t, err)
			require.Zero(t, until)
		}
		require.Zero(t, r.disk.count(), "there is nothing to save")
		extend(r, time.Minute, time.Minute)
		extend(r, time.Hour, time.Hour)
		saves := r.disk.count()
		for _, d := range []time.Duration{time.Hour, time.Minute, -time.Minute} {
			extend(r, d, time.Hour)
		}
		require.Equal(t, saves, r.disk.count())
		r.held(key, time.Hour)
		r = r.next(r.Limits()) // as after a crash
		extend(r, time.Minute, time.Hour)
		r.clock.Advance(time.Hour)
		extend(r, time.Minute, time.Minute)
		require.NoError(t, r.Reset(key))
		extend(r, time.Second, time.Second)
	})
	t.Run("many at once, and a crash", func(t *testing.T) {
		r := newRig(t)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for n := range 50 {
					d := time.Duration(1+(n*8+w)*7919%400) * time.Second
					until, err := r.Hold(key, r.Now().Add(d))
					if err != nil || until.Sub(r.Now()) < d {
						t.Errorf("%v: %v, %v", d, until.Sub(r.Now()), err)
					}
				}
			})
		}
		wg.Wait()
		r.held(key, 400*time.Second)
		r.next(r.Limits()).held(key, 400*time.Second)
	})
	inBubbleNamed(t, "the hold that it finds is in a commit", func(t *testing.T, r *rig) {
		key := flushed.Key("a")
		r.disk.shut()
		first := begin(func() error { return errorOf(r.Hold(key, r.Now().Add(time.Hour))) })
		second := begin(func() error {
			until, err := r.Hold(key, r.Now().Add(time.Minute))
			if err == nil && until.Sub(r.Now()) != time.Hour {
				t.Error(until)
			}
			return err
		})
		require.Empty(t, second, "the store does not have the hold yet")
		r.disk.gate <- errDisk
		require.ErrorIs(t, <-first, ErrNotDurable)
		r.disk.open()
		require.NoError(t, <-second)
		r.next(r.Limits()).held(key, time.Hour)
	})
}

// After holds whose commits failed one after the other, the hold that the store
// has is in force, and not one whose caller got an error.
func TestHoldsThatFail(t *testing.T) {
	for _, before := range []time.Duration{0, 10 * time.Hour} {
		inBubbleNamed(t, fmt.Sprint("a hold of ", before, " before"), func(t *testing.T, r *rig) {
			key := flushed.Key("a")
			if before > 0 {
				r.hold(key, before)
			}
			r.disk.shut()
			var errs [3]chan error
			for i := range errs {
				until := r.Now().Add(before + time.Duration(i+1)*time.Hour)
				errs[i] = begin(func() error { return errorOf(r.Hold(key, until)) })
			}
			require.Equal(t, before+3*time.Hour, r.check(key, 1).RetryAfter)
			r.disk.gate <- errDisk // the first
			r.disk.gate <- errDisk // the other two, in one commit
			for _, err := range errs {
				require.ErrorIs(t, <-err, ErrNotDurable)
			}
			r.held(key, before)
			r.disk.open()
			require.NoError(t, r.Flush())
			r.next(r.Limits()).held(key, before)
		})
	}
	inBubbleNamed(t, "the second fails", func(t *testing.T, r *rig) {
		key := flushed.Key("a")
		r.disk.shut()
		var errs [2]chan error
		for i := range errs {
			until := r.Now().Add(time.Duration(2-i) * time.Hour)
			errs[i] = begin(func() error { return errorOf(r.Hold(key, until)) })
		}
		r.disk.gate <- nil
		require.NoError(t, <-errs[0])
		r.disk.gate <- errDisk
		require.ErrorIs(t, <-errs[1], ErrNotDurable)
		r.held(key, 2*time.Hour)
		r.disk.open()
	})
}

// TestHoldHistories holds random histories of holds, longer holds and resets to
// a model. Commits may fail. The first call of a round is in one commit, and the
// others, which come while that one is under way, are in the next.
func TestHoldHistories(t *testing.T) {
	t.Parallel()
	for range testlength.Of(1_200, 60) {
		seed := rand.Uint64()
		inBubble(t, ten, Options{}, func(t *testing.T, r *rig) {
			rnd, key := rand.New(rand.NewPCG(seed, 0)), flushed.Key("a")
			inForce := int64(0) // end of the hold in memory
			saved := int64(0)   // and in the store
			live := func(end int64) int64 {
				if end <= r.clock.Nanos() {
					return 0
				}
				return end
			}
			for round := range 20 {
				r.clock.Advance(time.Duration(rnd.IntN(3000)) * time.Millisecond)
				require.NoError(t, r.Flush())
				inForce, saved = live(inForce), live(saved)
				r.disk.shut()
				type call struct {
					name   string
					commit int // 0: none
					err    chan error
				}
				var calls []call
				var last [3]int64 // the hold that each commit saves
				commits := 0
				for range 1 + rnd.IntN(4) {
					var c call
					d := time.Duration(rnd.IntN(6)-1) * time.Second
					end := live(r.clock.Nanos() + int64(d))
					saves := commits > 0 || inForce != 0
					switch rnd.IntN(3) {
					case 0:
						if rnd.IntN(2) == 0 {
							d, end = -time.Hour, 0
						}
						saves = commits > 0 || end != inForce
						c.name, inForce = fmt.Sprint("SetHold ", d), end
						c.err = begin(func() error { return r.SetHold(key, r.Now().Add(d)) })
					case 1:
						want := max(end, inForce)
						saves = want != 0 && (commits > 0 || want != inForce)
						c.name, inForce = fmt.Sprint("Hold ", d), want
						c.err = begin(func() error {
							until, err := r.Hold(key, r.Now().Add(d))
							if err == nil && (until.IsZero() != (want == 0) || want != 0 && until.UnixNano() != want) {
								err = fmt.Errorf("until %v, want %d", until, want)
							}
							return err
						})
					default:
						c.name, inForce = "Reset", 0
						c.err = begin(func() error { return r.Reset(key) })
					}
					if saves {
						commits = min(commits+1, 2)
						c.commit = commits
						last[commits] = inForce
					}
					calls = append(calls, c)
				}
				var failed [3]bool
				for n := 1; n <= commits; n++ {
					if failed[n] = rnd.IntN(2) == 0; failed[n] {
						r.disk.gate <- errDisk
						continue
					}
					r.disk.gate <- nil
					saved = last[n]
				}
				synctest.Wait()
				if commits > 0 && failed[commits] {
					inForce = saved
				}
				for _, c := range calls {
					if err := <-c.err; failed[c.commit] {
						require.ErrorIs(t, err, ErrNotDurable, "seed %d, round %d: %s", seed, round, c.name)
					} else {
						require.NoError(t, err, "seed %d, round %d: %s", seed, round, c.name)
					}
				}
				require.Equal(t, saved, live(r.stored(holdKey(key))), "seed %d, round %d", seed, round)
				require.Equal(t, inForce, live(r.clock.Nanos()+int64(r.check(key, 1).RetryAfter)),
					"seed %d, round %d", seed, round)
				r.disk.open()
			}
		})
	}
}

// A turn that a hold moves stays as durable as its own limit says.
func TestHoldMovesTurns(t *testing.T) {
	for level := Memory; level <= Synced; level++ {
		r := newLevels(t, ten)
		req := Request{Key: Name(level).Key("a"), Cost: 10, Limit: ten.withLevel(Synced)}
		require.True(t, r.spendAll(req).Allowed)
		place := r.place(req)
		r.hold(req.Key, time.Minute)
		r.clock.Advance(time.Minute)
		require.Zero(t, place.Delay())
		require.GreaterOrEqual(t, r.stored(req.Key), r.clock.Nanos()+10e9, "%v: a crash leaves an empty bucket", level)
	}
}

func requireNoGates(t *testing.T, l *Limiter) {
	t.Helper()
	eachGate(l, func(key Key, _ *cache.Gate) { t.Errorf("%v still has a gate", key) })
}

// eachGate calls f with each gate, whose shard is locked.
func eachGate(l *Limiter, f func(key Key, g *cache.Gate)) {
	for _, name := range l.limits.Load().order {
		l.cache.Fresh(uint16(name), func(id string) {
			s, _ := l.cache.Shard(uint16(name), id)
			if g := s.GateLocked(cache.Key{Name: uint16(name), ID: id}); g != nil {
				f(name.Key(id), g)
			}
		})
	}
}
