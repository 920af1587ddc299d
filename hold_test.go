package stint

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// held requires that the key is held for a time, whatever it is asked.
func (r *rig) held(key Key, want time.Duration) {
	r.t.Helper()
	for _, d := range []Decision{r.check(key, 1), r.spend(key, 1), r.check(key, 0), r.spendAll(Request{Key: key, Cost: 1})} {
		require.Equal(r.t, want, d.RetryAfter)
	}
	require.True(r.t, r.refund(key, 0).Allowed)
}

func TestHold(t *testing.T) {
	key, b, shared := perID.Key("a"), perID.Key("b"), everyone.Key("")

	t.Run("replaced, restarted, reset and over", func(t *testing.T) {
		r := newRig(t)
		r.hold(key, time.Hour)
		r.hold(shared, 2*time.Hour)
		r.held(key, time.Hour)
		r.held(shared, 2*time.Hour)
		require.EqualValues(t, 5, r.left(key), "a hold spends nothing")
		require.EqualValues(t, 4, r.spend(b, 1).Remaining, "and holds no other bucket")
		r.hold(key, 10*time.Minute)
		r.held(key, 10*time.Minute)
		r.hold(key, 90*time.Minute)
		for range 2 {
			require.NoError(t, r.Close())
			r.clock.advance(time.Minute)
			r = r.next(r.Limits())
		}
		r.held(key, 88*time.Minute)
		require.True(t, r.clock.Now().Add(88*time.Minute).Equal(r.listed(perID)[key].HeldUntil))
		r.held(shared, 118*time.Minute)
		require.NoError(t, r.Reset(key))
		r.take(key, 1)
		require.NoError(t, r.Hold(shared, r.Now()), "a time that is not after now ends it")
		r.take(shared, 1)
		require.NoError(t, r.Hold(perID.Key("never held"), time.Time{}))

		r.hold(key, time.Minute)
		r.hold(off.Key("a"), time.Minute)
		r.clock.advance(time.Minute - 1)
		r.held(key, 1)
		require.NoError(t, r.Flush())
		require.Len(t, collect(t, r.disk.All(Unknown)), 2)
		r.clock.advance(1)
		r.take(key, 1)
		require.NoError(t, r.Flush())
		require.Empty(t, collect(t, r.disk.All(Unknown)))
		r.directory.each(func(s *shard) { require.Empty(t, s.gates) })
	})
	t.Run("Held", func(t *testing.T) {
		r, queued := newRig(t), single.Key("queued")
		listed := func() map[Key]Held {
			all := map[Key]Held{}
			for h := range r.Held() {
				all[h.Key] = h
			}
			return all
		}
		r.hold(key, time.Hour)
		r.hold(shared, time.Minute)
		r.spend(b, 5)
		r.hold(b, time.Minute)
		require.NoError(t, r.Reset(b))
		r.take(queued, 1)
		r.reserve(queued, 1)
		r.reserve(queued, 1)
		until := r.clock.Now().Add(time.Hour)
		want := Held{Key: key, Until: listed()[key].Until}
		require.True(t, until.Equal(want.Until))
		require.Equal(t, map[Key]Held{key: want, shared: listed()[shared], queued: {Key: queued, Waiting: 2}}, listed())
		for range r.Held() {
			break
		}
		r.clock.advance(time.Second)
		require.Equal(t, 1, listed()[queued].Waiting, "the first has gone")
		require.NoError(t, r.Close())
		require.Empty(t, listed())
		r.clock.advance(time.Minute)
		r = r.next(r.Limits())
		require.Equal(t, map[Key]Held{key: want}, listed(), "from the store; holds that are over are not in force")
		require.Zero(t, r.Stats().Resident, "it loads no bucket")
	})
	t.Run("of two waits, the longer", func(t *testing.T) {
		r, key := newRig(t), single.Key("a")
		r.take(key, 1)
		r.hold(key, time.Second/2)
		require.Equal(t, time.Second, r.spend(key, 1).RetryAfter)
		require.Equal(t, time.Second/2, r.spend(key, 0).RetryAfter)
		r.hold(key, 2*time.Second)
		require.Equal(t, 2*time.Second, r.spend(key, 1).RetryAfter)
	})
	t.Run("SpendAll", func(t *testing.T) {
		r := newRig(t)
		r.hold(key, time.Hour)
		for mode, allowed := range map[Mode]bool{CheckAndSpend: false, CheckOnly: false, SpendOnly: true} {
			before := r.left(b)
			d := r.spendAll(Request{Key: b, Cost: 2}, Request{key, 1, mode})
			require.Equal(t, allowed, d.Allowed)
			require.Equal(t, allowed, r.left(b) == before-2)
			if !allowed {
				require.Equal(t, key, d.Key)
				require.Equal(t, time.Hour, d.RetryAfter)
			}
		}
		require.EqualValues(t, 5, r.left(key))
	})
	t.Run("far ahead and long ago", func(t *testing.T) {
		r := newRig(t)
		require.NoError(t, r.Hold(key, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
		require.False(t, r.spend(key, 1).Allowed)
		require.NoError(t, r.Hold(key, time.Date(-9999, 1, 1, 0, 0, 0, 0, time.UTC)))
		r.take(key, 1)
	})
	t.Run("failed save", func(t *testing.T) {
		r := newRig(t)
		r.take(key, 1)
		r.disk.fail(errDisk)
		require.ErrorIs(t, r.Hold(key, r.Now().Add(time.Hour)), errDisk)
		r.take(key, 1)
		r.disk.fail(nil)
		r.hold(key, time.Hour)
		r.disk.fail(errDisk)
		require.ErrorIs(t, r.Reset(key), errDisk)
		require.False(t, r.spend(key, 1).Allowed, "the hold is still in force")
		r.disk.fail(nil)
	})
	for _, end := range []string{"flush", "reset", "close"} {
		inBubbleNamed(t, "failed save that is on file/"+end, func(t *testing.T, r *rig) {
			key := flushed.Key("a")
			r.disk.shut()
			go r.Hold(key, r.Now().Add(time.Hour))
			synctest.Wait()
			r.disk.gate <- errLate
			r.disk.open()
			synctest.Wait()
			r.take(key, 1)
			switch end {
			case "flush":
				r.disk.fail(errDisk, "save")
				require.Error(t, r.flusher.flush(false))
				r.disk.fail(nil)
				require.NoError(t, r.flusher.flush(false))
			case "reset":
				require.NoError(t, r.Reset(key))
			case "close":
				require.NoError(t, r.Close())
			}
			require.Zero(t, r.stored(holdKey(key)))
		})
	}
	// Queued requests go when the hold is over. A crash must not forget that.
	for _, name := range []Name{leased, synced} {
		t.Run(fmt.Sprint("moves the queue on file/", Durability(name)), func(t *testing.T) {
			r, key := newLevels(t, Limit{Burst: 100, Count: 100, Period: time.Minute}), name.Key("a")
			r.take(key, 100)
			place := r.reserve(key, 10)
			require.Equal(t, 6*time.Second, place.Delay())
			r.hold(key, time.Hour)
			require.Equal(t, time.Hour, place.Delay())
			require.GreaterOrEqual(t, r.stored(key), r.tat(1)+int64(6*time.Second))
			r.clock.advance(time.Hour)
			r.spend(key, 1)
		})
	}
	inBubbleNamed(t, "late hold moves the queue", func(t *testing.T, r *rig) {
		key := synced.Key("a")
		r.take(key, 10)
		place := r.reserve(key, 5)
		r.disk.shut()
		require.ErrorIs(t, r.Hold(key, r.Now().Add(time.Hour)), ErrNotDurable)
		require.Equal(t, time.Hour, place.Delay(), "it is in force at once")
		r.disk.open()
		synctest.Wait()
		require.Equal(t, time.Hour, place.Delay())
		require.Equal(t, r.tat(1)+int64(5*time.Second), r.stored(key))
		require.Zero(t, r.Stats().Dirty)
		r.clock.advance(100 * time.Hour)
		for range 2 * sweepRounds {
			require.NoError(t, r.flusher.flush(false))
		}
		require.Zero(t, r.Stats().Resident)
	})
	t.Run("held buckets may leave memory", func(t *testing.T) {
		r := rigOn(t, NewMemStore(), testLimits(t), Options{MaxResident: 4})
		held := func(i int) Key { return perID.Key(fmt.Sprint("held-", i)) }
		for i := range 12 {
			r.spend(held(i), 2)
			r.hold(held(i), time.Hour)
		}
		for i := range 8 {
			r.spend(perID.Key(fmt.Sprint("other-", i)), 1)
		}
		require.LessOrEqual(t, r.Stats().Resident, int64(4+1))
		for i := range 12 {
			d := r.spend(held(i), 1)
			require.Equal(t, time.Hour, d.RetryAfter)
			require.EqualValues(t, 3, d.Remaining)
		}
	})
}
