package queue

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueue(t *testing.T) {
	r := Rate{Interval: 10, Tolerance: 100}
	a, b, c := &Turn{At: 20, Cost: 2}, &Turn{At: 40, Cost: 2}, &Turn{At: 50, Cost: 1}
	q := Queue{turns: []*Turn{a, b}}
	q.Join(c)
	require.Equal(t, 3, q.Len())
	require.EqualValues(t, 5, q.Tokens())
	require.EqualValues(t, 50, q.Last())
	for now, want := range map[int64]int{19: 3, 20: 2, 49: 1, 50: 0} {
		require.Equal(t, want, q.Waiting(now), now)
	}
	require.EqualValues(t, 150, q.Tail(120, r), "the bucket is empty at the last turn")
	require.EqualValues(t, 70, q.Tail(0, r))
	require.EqualValues(t, 40, q.Advance(0, 39, r), "the first turn has come")
	require.False(t, q.Leave(a), "it has gone")
	require.True(t, q.Leave(b))
	require.EqualValues(t, 60, q.Tail(40, r))
	require.True(t, q.Delay(1000))
	require.False(t, q.Delay(1000))
	require.EqualValues(t, 1010, q.Tail(40, r))
	turns := q.Take()
	require.Zero(t, q.Len())
	require.Zero(t, q.Last())
	require.EqualValues(t, 40, q.Advance(40, 2000, r))
	q.Put(turns)
	require.Equal(t, 1, q.Len())
}

// TestAdvance charges turns at random instants: the tail stays as it is.
func TestAdvance(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r := Rate{Interval: 1 + rnd.Int64N(100)}
		r.Tolerance = r.Interval * (1 + rnd.Int64N(20))
		var q Queue
		tat, at := rnd.Int64N(1000), int64(0)
		for range rnd.IntN(10) {
			at += rnd.Int64N(300)
			q.Join(&Turn{At: at, Cost: rnd.Int64N(25)})
		}
		tail := q.Tail(tat, r)
		for now := int64(0); q.Len() > 0; now += rnd.Int64N(200) {
			tat = q.Advance(tat, now, r)
			require.Equal(t, tail, q.Tail(tat, r), "seed %d", seed)
		}
		require.Equal(t, tail, tat, "seed %d", seed)
	}
}

func TestFarTurns(t *testing.T) {
	r := Rate{Interval: math.MaxInt64 / 4, Tolerance: math.MaxInt64 / 2}
	q := Queue{turns: []*Turn{{At: math.MaxInt64 - 1, Cost: math.MaxInt64}, {At: math.MaxInt64, Cost: 1}}}
	require.Equal(t, int64(math.MaxInt64), q.Tail(5, r))
	require.True(t, q.Delay(math.MaxInt64))
	require.Equal(t, int64(math.MaxInt64), q.Advance(5, math.MaxInt64, r))
}
