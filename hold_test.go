package stint

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
	t.Run("replaced, restarted, reset and over", func(t *testing.T) {
		r := newRig(t)
		r.hold(key, time.Hour)
		r.hold(shared, 2*time.Hour)
		r.held(key, time.Hour)
		r.hold(key, 90*time.Minute)
		for range 2 {
			require.NoError(t, r.Close())
			r.clock.advance(time.Minute)
			r = r.next(r.Limits())
		}
		r.held(key, 88*time.Minute)
		r.held(shared, 118*time.Minute)
		require.NoError(t, r.Reset(key))
		require.NoError(t, r.Hold(shared, r.Now()), "a time that is not after now ends it")
		r.take(shared, 1)

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
	t.Run("far ahead and long ago", func(t *testing.T) {
		r := newRig(t)
		require.NoError(t, r.Hold(key, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
		require.False(t, r.spend(key, 1).Allowed)
		require.NoError(t, r.Hold(key, time.Date(-9999, 1, 1, 0, 0, 0, 0, time.UTC)))
		r.take(key, 1)
	})
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
		r.clock.advance(100 * time.Hour)
		for range 2 * sweepRounds {
			require.NoError(t, r.flusher.flush(false))
		}
		require.Zero(t, r.Stats().Resident)
	})
}
