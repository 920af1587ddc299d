package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/model"
)

// A question carries what all waiting callers need, and its answer serves all of
// them, although a lease is smaller.
func TestAsk(t *testing.T) {
	t.Parallel()
	limit := stint.PerHour(80) // a lease is at most 10
	interval, tolerance := int64(limit.Interval()), int64(limit.Tolerance())
	b := newLease(limit.Burst, tolerance, time.Minute, 0)
	for _, cost := range []int64{3, 9, 1, 12} {
		b.waiting = append(b.waiting, &waiter{cost: cost})
	}
	q := b.ask(0)
	require.Equal(t, []int64{3, 25, 4}, []int64{q.first, q.need, int64(b.asking)})
	server := new(model.Lease)
	a := server.Step(1e18, 0, q.args(interval, tolerance))
	decided := b.receive(&q, &a, 0)
	require.Len(t, decided, 4)
	for _, w := range decided {
		require.True(t, w.served)
	}
	require.Zero(t, b.left(0))

	// If the bucket has too few tokens, the callers are served in order.
	for _, cost := range []int64{50, 4, 4} {
		b.waiting = append(b.waiting, &waiter{cost: cost})
	}
	q = b.ask(0)
	a = server.Step(1e18, 0, q.args(interval, tolerance))
	decided = b.receive(&q, &a, 0)
	require.Equal(t, []bool{true, true, false}, []bool{decided[0].served, decided[1].served, decided[2].served})
}
