package stint

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Buckets that are full are removed while a flush looks for those to save, and others move up into their places.
func TestFlushFindsWhatMoves(t *testing.T) {
	store := NewMemStore()
	r := rigOn(t, store, testLimits(t), Options{MaxResident: 1 << 15})
	const n = 5000
	key := func(name Name, what string, i int) Key { return name.Key(fmt.Sprint(what, i)) }
	for i := range n {
		r.spend(key(perID, "clean", i), 1)
	}
	require.NoError(t, r.Flush())
	for i := range n {
		r.spend(key(single, "past", i), 1)
		r.spend(key(perID, "dirty", i), 1)
	}
	r.clock.advance(2 * time.Second)
	require.NoError(t, r.flusher.flush(false))
	for i := range n {
		require.Positive(t, load(t, store, key(perID, "dirty", i)), i)
	}
}

// A bucket that is full again, which the store knows nothing of, is not saved, also where a hold keeps it in memory.
func TestFlushOfAHeldBucketThatIsFull(t *testing.T) {
	r := newRig(t)
	key := perID.Key("a")
	r.spend(key, 1)
	require.EqualValues(t, 1, r.Stats().Dirty)
	r.hold(key, time.Hour)
	r.clock.advance(time.Hour - 1)
	require.NoError(t, r.Flush())
	require.EqualValues(t, 1, r.Stats().Resident)
	require.Zero(t, r.Stats().Dirty)
}

// A flush that could save only a part of what was dirty has failed.
func TestHalfAFlushFails(t *testing.T) {
	store := &faultyStore{Store: NewMemStore()}
	events := make(chan Event, 10)
	r := rigOn(t, store, testLimits(t), Options{OnEvent: func(e Event) { events <- e }})
	for i := range maxSave + 1000 {
		r.spend(perID.Key(fmt.Sprint(i)), 1)
	}
	store.failAt.Store(store.ops.Load() + 1)
	require.ErrorIs(t, r.Flush(), errDisk)
	require.ErrorIs(t, r.Health(), errDisk)
	require.ErrorIs(t, r.Stats().Flush.Err, errDisk)
	require.Positive(t, r.Stats().Dirty)
	require.NoError(t, r.Flush())
	require.NoError(t, r.Health())
	require.Zero(t, r.Stats().Dirty)
	require.Equal(t, FlushFailed, (<-events).Kind)
	require.Equal(t, FlushRecovered, (<-events).Kind)
}
