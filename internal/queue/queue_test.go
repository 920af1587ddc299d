package queue

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueue(t *testing.T) {
	r := Rate{Interval: 10, Tolerance: 100}
	a, b, c := &Turn{At: 20, Cost: 2}, &Turn{At: 40, Cost: 2}, &Turn{At: 50, Cost: 1}
	var q Queue
	for _, turn := range []*Turn{a, b, c} {
		q.Join(turn)
	}
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

// A turn with a smaller limit of its own gives nothing back.
func TestSmallerLimit(t *testing.T) {
	q, r := Queue{}, Rate{Interval: 10, Tolerance: 100}
	q.Join(&Turn{At: 50, Cost: 1, Rate: Rate{Interval: 10, Tolerance: 10}})
	require.EqualValues(t, 60, q.Tail(40, r))
	require.EqualValues(t, 100, q.Tail(100, r), "the TAT was raised since")
	require.EqualValues(t, 100, q.Advance(100, 50, r))
}

// TestTails joins, leaves, charges and delays at random. The remembered tails are
// those of a queue that remembers none.
func TestTails(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		rates := []Rate{{Interval: 10, Tolerance: 10}, {Interval: 10, Tolerance: 200}, {Interval: 7, Tolerance: 35}}
		r := rates[rnd.IntN(3)]
		var q Queue
		var turns []*Turn
		tat, now, last := rnd.Int64N(1000), int64(0), int64(0)
		for range 60 {
			switch rnd.IntN(8) {
			case 0, 1, 2:
				last = max(last, q.Last()) + rnd.Int64N(30)
				turn := &Turn{At: last, Cost: rnd.Int64N(5)}
				if rnd.IntN(5) == 0 {
					turn.Rate = rates[rnd.IntN(3)]
				}
				q.Join(turn)
				turns = append(turns, turn)
			case 3, 4:
				if len(turns) > 0 {
					turn := turns[rnd.IntN(len(turns))]
					was := slices.Contains(q.turns, turn)
					require.Equal(t, was, q.Leave(turn), "seed %d", seed)
					require.NotContains(t, q.turns, turn)
				}
			case 5:
				now += rnd.Int64N(60)
				tat = q.Advance(tat, now, r)
			case 6:
				switch rnd.IntN(4) {
				case 0:
					q.Delay(now + rnd.Int64N(100))
				case 1:
					tat = rnd.Int64N(2000)
				case 2:
					r = rates[rnd.IntN(3)]
				case 3:
					q.Put(q.Take())
				}
			}
			if rnd.IntN(3) > 0 {
				fresh := Queue{turns: make([]*Turn, len(q.turns))}
				for i, turn := range q.turns {
					fresh.turns[i] = &Turn{At: turn.At, Cost: turn.Cost, Rate: turn.Rate}
				}
				require.Equal(t, fresh.Tail(tat, r), q.Tail(tat, r), "seed %d", seed)
				tokens := int64(0)
				for _, turn := range q.turns {
					tokens += turn.Cost
				}
				require.Equal(t, tokens, q.Tokens(), "seed %d", seed)
			}
		}
	}
}

// BenchmarkLongQueue joins a queue of 100,000 turns, whose last then leaves. The
// length of the queue does not matter.
func BenchmarkLongQueue(b *testing.B) {
	r := Rate{Interval: 10, Tolerance: 10}
	var q Queue
	for n := range int64(100_000) {
		q.Join(&Turn{At: 10 * (n + 1), Cost: 1})
	}
	for b.Loop() {
		last := &Turn{At: q.Tail(10, r), Cost: 1}
		q.Join(last)
		q.Leave(last)
	}
}

func TestFarTurns(t *testing.T) {
	r := Rate{Interval: math.MaxInt64 / 4, Tolerance: math.MaxInt64 / 2}
	q := Queue{turns: []*Turn{{At: math.MaxInt64 - 1, Cost: math.MaxInt64}, {At: math.MaxInt64, Cost: 1}}}
	require.Equal(t, int64(math.MaxInt64), q.Tail(5, r))
	require.True(t, q.Delay(math.MaxInt64))
	require.Equal(t, int64(math.MaxInt64), q.Advance(5, math.MaxInt64, r))
}
