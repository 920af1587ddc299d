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

// A hold ends the grants that a lease has. They go back with the next question.
func TestHeld(t *testing.T) {
	t.Parallel()
	limit, server := stint.PerHour(80), new(model.Lease)
	interval, tolerance := int64(limit.Interval()), int64(limit.Tolerance())
	b := newLease(limit.Burst, tolerance, time.Minute, 0)
	q := b.ask(0)
	a := server.Step(1e18, 0, q.args(interval, tolerance))
	b.receive(&q, &a, 0)
	left := b.left(0)
	require.Positive(t, left)
	q = b.ask(0)
	a.Granted, a.Hold = 0, a.Now+1e9
	b.receive(&q, &a, 0)
	require.Zero(t, b.left(0))
	require.Equal(t, left, b.ask(0).back[0].left)
}
