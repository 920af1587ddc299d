package stint

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A flood of ids that memory has no room for: none of those that were there first is forgotten, memory stays within its
// bound, and the file stops growing once the flood's ids expire.
func TestFlood(t *testing.T) {
	decisions, ids, resident := int64(1_000_000), 200_000, 10_000
	if !long {
		decisions, ids, resident = decisions/10, ids/10, resident/10
	}
	const flood, quota Name = 1, 2
	const expiry = 20 * time.Second
	var nanos atomic.Int64
	nanos.Store(damagedStart.UnixNano())
	tick := int64(5*expiry) / decisions // ids begin to expire after a fifth of it
	limits := limitsOf(t, Names{flood: {Label: "flood"}, quota: {Label: "quota"}},
		map[Name]Limit{flood: {Burst: 5, Count: 5, Period: expiry}, quota: PerDay(10)})
	l, err := Open(storePath(t), limits, &Options{
		MaxResident: resident, FlushInterval: time.Hour, CommitTimeout: time.Hour, Now: func() time.Time { return time.Unix(0, nanos.Load()) },
	})
	require.NoError(t, err)
	defer l.Close()

	spent, held := quota.Key("spent"), quota.Key("held")
	d, err := l.Spend(spent, 10)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.NoError(t, l.Hold(held, l.opts.Now().Add(24*time.Hour)))

	flush := func() { // as the flusher does at each tick
		require.NoError(t, l.flusher.flush(false))
		require.NoError(t, l.store.Maintain(l.opts.Now()))
	}
	var sizes []int64
	most := int64(0)
	const parts, workers = 50, 4
	for part := range parts {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(part), uint64(w)))
				for range decisions / parts / workers {
					nanos.Add(tick)
					key := flood.Key("client-" + strconv.Itoa(rnd.IntN(ids)))
					if _, err := l.Spend(key, 1); err != nil {
						t.Errorf("%v: %v", key, err)
						return
					}
				}
			})
		}
		wg.Wait()
		flush()
		st := l.Stats()
		most = max(most, st.Resident)
		sizes = append(sizes, st.File.Bytes)
	}
	st := l.Stats()
	t.Logf("at most %d resident, %d evictions, %d loads; the file: %d, %d, %d bytes, %d journaled, %d checkpoints, %d swept",
		most, st.Evictions, st.Loads, sizes[parts/5], sizes[parts/2], sizes[parts-1], st.File.Journaled, st.File.Checkpoints, st.File.Swept)
	require.LessOrEqual(t, most, int64(resident+resident/20))
	require.Positive(t, st.Evictions)
	require.LessOrEqual(t, sizes[parts-1], 2*sizes[parts/2]+16<<20)

	nanos.Add(int64(2 * expiry)) // the flood is over
	flush()
	require.NoError(t, l.store.(*BoltStore).Compact()) // applies the journal
	for range 128 {
		flush()
	}
	left := 0
	for _, name := range []Name{flood, quota, Unknown} {
		for _, err := range l.store.All(name) {
			require.NoError(t, err)
			left++
		}
	}
	require.Equal(t, 2, left, "only the two that were there first")
	require.NoError(t, l.store.(*BoltStore).Compact())
	require.Less(t, l.Stats().File.Bytes, int64(4<<20))
	for _, key := range []Key{spent, held} {
		d, err := l.Spend(key, 1)
		require.NoError(t, err)
		require.False(t, d.Allowed, "%v was forgotten", key)
	}
	require.NoError(t, l.Health())
}
