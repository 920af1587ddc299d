package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const end int64 = 1 << 62

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead time.Duration // of the wall clock
		c := New(nil, end)
		c.SetWall(func() time.Time { return time.Now().Add(ahead) })
		begun := c.Now()
		for _, step := range []struct {
			moved, follows, reported time.Duration
			forward, backward        int64
		}{
			{0, 0, 0, 0, 0},
			{250*time.Millisecond - 1, 250*time.Millisecond - 1, 0, 0, 0}, // drift
			{-time.Hour, 0, -time.Hour, 0, 1},
			{time.Hour, 0, time.Hour, 1, 1}, // back again
			{24 * time.Hour, 24 * time.Hour, 24 * time.Hour, 2, 1},
		} {
			next := c.NextStep()
			before := c.Now()
			ahead += step.moved
			require.Equal(t, step.reported, c.Follow())
			require.Equal(t, before+int64(step.follows), c.Now())
			forward, backward := c.Steps()
			require.Equal(t, []int64{step.forward, step.backward}, []int64{forward, backward})
			select {
			case <-next:
				require.Positive(t, step.reported)
			default:
				require.LessOrEqual(t, step.reported, time.Duration(0))
			}
		}
		<-time.After(time.Second)
		require.Equal(t, begun+int64(ahead+time.Second), c.Now())
	})
}

func TestInstant(t *testing.T) {
	c := New(func() time.Time { return time.Unix(-5, 0) }, end)
	require.Zero(t, c.Now())
	require.Zero(t, c.Follow(), "a simulated clock has no steps")
	require.Equal(t, end, c.Instant(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
	require.EqualValues(t, 7, c.Instant(time.Unix(0, 7)))
}
