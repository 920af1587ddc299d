package replay

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A timeline stays small, and its counts are those of the requests.
func TestTimeline(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, span := range []time.Duration{time.Second, time.Hour, 24 * time.Hour, 20 * 365 * 24 * time.Hour} {
		var line timeline
		admitted := int64(0)
		for range 10_000 {
			ok := random.IntN(3) == 0
			if ok {
				admitted++
			}
			line.add(1.5e18+random.Int64N(int64(span)), []bool{true, ok})
		}
		require.LessOrEqual(t, len(line.slices), mostSlices)
		for count, want := range []int64{10_000, 10_000, admitted} {
			before, sum := int64(-1), int64(0)
			for at, n := range line.steps(count) {
				require.True(t, at > before && at <= line.last-line.first, "%v: %d", span, at)
				before, sum = at, sum+n
			}
			require.Equal(t, want, sum)
		}
	}
}
