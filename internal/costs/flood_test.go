package costs

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/internal/worlds"
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
	const flood, quota stint.Name = 1, 2
	const expiry = 20 * time.Second
	clock := modeltest.NewClock()
	tick := 5 * expiry / time.Duration(decisions) // ids begin to expire after a fifth of the flood
	limits := worlds.LimitsOf(t, stint.Names{flood: {Label: "flood"}, quota: {Label: "quota"}},
		map[stint.Name]stint.Limit{flood: {Burst: 5, Count: 5, Period: expiry}, quota: stint.PerDay(10)})
	file := worlds.OpenFile(t, worlds.Path(t), limits.Names(), worlds.Unsynced())
	l, err := stint.New(file, limits, &stint.Options{
		MaxResident: resident, FlushInterval: time.Hour, CommitTimeout: time.Hour, Now: clock.Now,
	})
	require.NoError(t, err)
	defer l.Close()
	spent, held := quota.Key("spent"), quota.Key("held")
	d, err := l.Spend(spent, 10)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	_, err = l.Hold(held, clock.Now().Add(24*time.Hour))
	require.NoError(t, err)

	flush := func() { // as the flusher does at each tick
		require.NoError(t, l.Flush())
		require.NoError(t, file.Maintain(clock.Now()))
	}
	var sizes []int64
	const parts, workers = 50, 4
	for part := range parts {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(part), uint64(w)))
				for range decisions / parts / workers {
					clock.Advance(tick)
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
		require.LessOrEqual(t, st.Resident, int64(resident+resident/20))
		sizes = append(sizes, st.File.Bytes)
	}
	st := l.Stats()
	t.Logf("%d evictions, %d loads; the file: %d, %d, %d bytes, %d journaled", st.Evictions,
		st.Loads, sizes[parts/5], sizes[parts/2], sizes[parts-1], st.File.Journaled)
	require.Positive(t, st.Evictions)
	require.LessOrEqual(t, sizes[parts-1], 2*sizes[parts/2]+16<<20)

	clock.Advance(2 * expiry) // the flood is over
	flush()
	require.NoError(t, file.Compact()) // applies the journal
	for range 128 {
		flush()
	}
	left := 0
	for _, name := range []stint.Name{flood, quota, stint.Unknown} {
		for _, err := range file.All(name) {
			require.NoError(t, err)
			left++
		}
	}
	require.Equal(t, 2, left, "only the two that were there first")
	require.NoError(t, file.Compact())
	require.Less(t, l.Stats().File.Bytes, int64(4<<20))
	for _, key := range []stint.Key{spent, held} {
		require.False(t, l.Allow(key), "%v was forgotten", key)
	}
	require.NoError(t, l.Health())
}
