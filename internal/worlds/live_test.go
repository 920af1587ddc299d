package worlds

import (
	"fmt"
	"os"
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
	var half [2]struct{ heap, file int64 }
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
		h := &half[2*second/seconds]
		h.file = max(h.file, info.Size())
		if second > 2*lives && second%(seconds/10) == seconds/10-1 {
			heap := liveheap.Bytes() - before
			h.heap = max(h.heap, heap)
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
		require.Less(t, half[1].heap, 3*bucket*live+16*mib)
		require.LessOrEqual(t, half[1].file, int64(32*mib))
		require.LessOrEqual(t, half[1].file, half[0].file+4*mib, "it grows no more")
		require.LessOrEqual(t, half[1].heap, half[0].heap+4*mib)
	}
	require.NoError(t, l.Close())
}
