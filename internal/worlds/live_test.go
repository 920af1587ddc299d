package worlds

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/liveheap"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
)

// TestLive: memory and file follow the buckets that live, not the ids that come.
// 2,000 new ids come in a second, by a simulated clock, and each lives for a
// minute, in the long test for ten minutes of that time.
func TestLive(t *testing.T) {
	const perSecond, lives, mib = 2000, 60, 1 << 20
	seconds := 200
	if testlength.Long {
		seconds = 600
	}
	clock := modeltest.NewClock()
	path := Path(t)
	file := OpenFile(t, path, storeNames, Unsynced())
	limits := LimitsOf(t, storeNames, map[stint.Name]stint.Limit{1: stint.PerMinute(3)})
	l, err := stint.New(file, limits, &stint.Options{Now: clock.Now})
	require.NoError(t, err)
	live := int64(lives * perSecond)
	before := liveheap.Bytes()
	var thirds [3]struct {
		file int64
		heap []int64
	}
	for second := range seconds {
		for i := range perSecond {
			_, err := l.Spend(stint.Name(1).Key(fmt.Sprintf("client %d", second*perSecond+i)), 3)
			require.NoError(t, err)
		}
		require.NoError(t, l.Flush())
		require.NoError(t, file.Maintain(clock.Now()))
		clock.Advance(time.Second)
		info, err := os.Stat(path)
		require.NoError(t, err)
		third := &thirds[3*second/seconds]
		third.file = max(third.file, info.Size())
		if second > 2*lives && second%(seconds/30) == seconds/30-1 {
			heap := liveheap.Bytes() - before
			third.heap = append(third.heap, heap)
			t.Logf("second %d: %d KiB of memory, a file of %d KiB, %d buckets in memory and %d in the journal", second+1,
				heap>>10, info.Size()>>10, l.Stats().Resident, l.Stats().File.Journaled)
		}
		if second > 2*lives { // a checkpoint that is due has not always begun: this second may take a millisecond
			require.Eventually(t, func() bool { return l.Stats().File.Journaled < 3*live }, time.Minute, time.Millisecond,
				"buckets in the journal")
		}
	}
	if testlength.Long {
		const bucket = 55 // bytes in memory
		// Beside a checkpoint there are two indexes of the journal; the median is without.
		median := func(heap []int64) int64 { return slices.Sorted(slices.Values(heap))[len(heap)/2] }
		middle, last := thirds[1], thirds[2]
		require.Less(t, slices.Max(last.heap), 3*bucket*live+16*mib)
		require.LessOrEqual(t, last.file, int64(36*mib))
		require.LessOrEqual(t, last.file, middle.file+4*mib, "it grows no more")
		require.LessOrEqual(t, median(last.heap), median(middle.heap)+4*mib)
	}
	require.NoError(t, l.Close())
}
