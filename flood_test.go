package stint

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// TestFlood spends from more ids than fit into memory. The first ids are not
// forgotten, memory stays within its bound, and the file stops growing once the
// flood's ids expire.
func TestFlood(t *testing.T) {
	t.Parallel()
	decisions, ids, resident := int64(100_000), 20_000, 1_000
	if testlength.Long {
		decisions, ids, resident = decisions*10, ids*10, resident*10
	}
	const flood, quota Name = 1, 2
	const expiry = 20 * time.Second
	clock := newSimClock()
	tick := 5 * expiry / time.Duration(decisions) // ids begin to expire after a fifth of the flood
	limits := limitsOf(t, Names{flood: {Label: "flood"}, quota: {Label: "quota"}},
		map[Name]Limit{flood: {Burst: 5, Count: 5, Period: expiry}, quota: PerDay(10)})
	l, err := New(openBoltOn(t, storePath(t), limits.Names(), unsynced()), limits, &Options{
		MaxResident: resident, FlushInterval: time.Hour, CommitTimeout: time.Hour, Now: clock.Now,
	})
	require.NoError(t, err)
	r := &rig{Limiter: l, t: t, clock: clock}
	defer r.Close()
	spent, held := quota.Key("spent"), quota.Key("held")
	r.take(spent, 10)
	r.hold(held, 24*time.Hour)

	flush := func() { // as the flusher does at each tick
		require.NoError(t, r.cache.FlushDue())
		require.NoError(t, r.store.Maintain(clock.Now()))
	}
	var sizes []int64
	const parts, workers = 50, 4
	for part := range parts {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(part), uint64(w)))
				for range decisions / parts / workers {
					clock.advance(tick)
					key := flood.Key("client-" + strconv.Itoa(rnd.IntN(ids)))
					if _, err := r.Spend(key, 1); err != nil {
						t.Errorf("%v: %v", key, err)
						return
					}
				}
			})
		}
		wg.Wait()
		flush()
		st := r.Stats()
		require.LessOrEqual(t, st.Resident, int64(resident+resident/20))
		sizes = append(sizes, st.File.Bytes)
	}
	st := r.Stats()
	t.Logf("%d evictions, %d loads; the file: %d, %d, %d bytes, %d journaled, %d checkpoints, %d swept", st.Evictions,
		st.Loads, sizes[parts/5], sizes[parts/2], sizes[parts-1], st.File.Journaled, st.File.Checkpoints, st.File.Swept)
	require.Positive(t, st.Evictions)
	require.LessOrEqual(t, sizes[parts-1], 2*sizes[parts/2]+16<<20)

	clock.advance(2 * expiry) // the flood is over
	flush()
	require.NoError(t, r.store.(*boltStore).Compact()) // applies the journal
	for range 128 {
		flush()
	}
	left := 0
	for _, name := range []Name{flood, quota, Unknown} {
		left += len(collect(t, r.store.All(name)))
	}
	require.Equal(t, 2, left, "only the two that were there first")
	require.NoError(t, r.store.(*boltStore).Compact())
	require.Less(t, r.Stats().File.Bytes, int64(4<<20))
	for _, key := range []Key{spent, held} {
		require.False(t, r.spend(key, 1).Allowed, "%v was forgotten", key)
	}
	require.NoError(t, r.Health())
}
