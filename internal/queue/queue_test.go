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
	require.False(t, q.Leave(a, 40, 39, r), "it has gone")
	require.True(t, q.Leave(b, 40, 39, r))
	require.EqualValues(t, 39, c.At, "it moves up: the bucket has its token")
	require.EqualValues(t, 50, q.Tail(40, r))
	require.True(t, q.Delay(1000))
	require.False(t, q.Delay(1000))
	require.EqualValues(t, 1010, q.Tail(40, r))
	turns := q.Take()
	require.Zero(t, q.Len())
	require.Zero(t, q.Last())
	require.EqualValues(t, 40, q.Advance(40, 2000, r))
	q.Put(turns, 40, 2000, r)
	require.Equal(t, 1, q.Len())
}

// If turns leave, the others go as early as if those had never come, and no
// later than before.
func TestLeave(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		r := Rate{Interval: 1 + rnd.Int64N(20)}
		r.Tolerance = r.Interval * (1 + rnd.Int64N(6))
		var all, others Queue
		join := func(q *Queue, cost, now int64) *Turn {
			turn := &Turn{Cost: cost}
			turn.At = max(now, q.Last(), r.charged(max(now, q.Tail(r.Tolerance, r)), cost)-r.Tolerance)
			q.Join(turn)
			return turn
		}
		var left, stay, want []*Turn
		for range 1 + rnd.IntN(12) {
			cost, leaves := rnd.Int64N(r.Tolerance/r.Interval+1), rnd.IntN(2) == 0
			turn := join(&all, cost, 0)
			if leaves {
				left = append(left, turn)
			} else {
				stay, want = append(stay, turn), append(want, join(&others, cost, 0))
			}
		}
		rnd.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		for _, turn := range left {
			before := make([]int64, len(stay))
			for i, u := range stay {
				before[i] = u.At
			}
			require.True(t, all.Leave(turn, r.Tolerance, 0, r), "seed %d", seed)
			for i, u := range stay {
				require.LessOrEqual(t, u.At, before[i], "seed %d", seed)
			}
		}
		for i := range stay {
			require.Equal(t, want[i].At, stay[i].At, "seed %d: turn %d", seed, i)
		}
		require.Equal(t, others.Tail(r.Tolerance, r), all.Tail(r.Tolerance, r), "seed %d", seed)
	}
}

// A turn that moves up goes no earlier than start, and not before those in front
// of it. Turns of another rate keep theirs.
func TestMoveUpStart(t *testing.T) {
	r, slow := Rate{Interval: 10, Tolerance: 10}, Rate{Interval: 30, Tolerance: 30}
	a, b, c, d := &Turn{At: 10, Cost: 1}, &Turn{At: 20, Cost: 1}, &Turn{At: 60, Cost: 1, Rate: slow}, &Turn{At: 90, Cost: 1}
	var q Queue
	for _, turn := range []*Turn{a, b, c, d} {
		q.Join(turn)
	}
	require.True(t, q.Leave(a, 10, 15, r))
	require.EqualValues(t, []int64{15, 25, 55}, []int64{b.At, c.At, d.At})
	require.EqualValues(t, 65, q.Tail(10, r))
	require.True(t, q.Leave(b, 10, 40, r))
	require.EqualValues(t, []int64{25, 55}, []int64{c.At, d.At}, "no later than they were told")
}

// The first caller that sleeps hears that its turn comes sooner, and when its turn
// has come, the next one hears.
func TestSooner(t *testing.T) {
	r := Rate{Interval: 10, Tolerance: 10}
	var q Queue
	var turns []*Turn
	for i := range int64(4) {
		turn := &Turn{At: 10 * (i + 1), Cost: 1}
		if i > 0 { // the first one does not sleep
			turn.Sooner, turn.Seen = make(chan struct{}, 1), turn.At
		}
		turns = append(turns, turn)
		q.Join(turn)
	}
	heard := func() (n []int) {
		for i, turn := range turns {
			select {
			case <-turn.Sooner:
				n = append(n, i)
			default:
			}
		}
		return n
	}
	tat := q.Advance(10, 9, r)
	require.Empty(t, heard())
	q.Leave(turns[0], tat, 9, r)
	require.Equal(t, []int{1}, heard())
	tat = q.Advance(tat, 10, r)
	require.Equal(t, []int{2}, heard())
	q.Leave(turns[3], tat, 10, r)
	require.Empty(t, heard(), "nothing has changed for the others")
	tat = q.Advance(tat, 20, r)
	require.Zero(t, q.Len())
	require.EqualValues(t, 30, tat)

	a, b := &Turn{At: 40, Cost: 1}, &Turn{At: 50, Cost: 1, Sooner: make(chan struct{}, 1), Seen: 50}
	c := &Turn{At: 60, Cost: 1, Sooner: make(chan struct{}, 1), Seen: 60}
	turns = []*Turn{a, b, c}
	for _, turn := range turns {
		q.Join(turn)
	}
	q.Leave(a, 40, 30, r)
	require.Equal(t, []int{1}, heard())
	taken := q.Take()
	require.Equal(t, []int{2}, heard(), "a turn that leaves the queue is told by nobody else")
	q.Leave(b, 40, 30, r)
	q.Put(taken, 40, 30, r)
	require.Equal(t, []int{2}, heard())
	require.EqualValues(t, 40, c.At)
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
					require.Equal(t, was, q.Leave(turn, tat, now, r), "seed %d", seed)
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
					q.Put(q.Take(), tat, now, r)
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
		q.Leave(last, 10, 10, r)
	}
}

func TestFarTurns(t *testing.T) {
	r := Rate{Interval: math.MaxInt64 / 4, Tolerance: math.MaxInt64 / 2}
	q := Queue{turns: []*Turn{{At: math.MaxInt64 - 1, Cost: math.MaxInt64}, {At: math.MaxInt64, Cost: 1}}}
	require.Equal(t, int64(math.MaxInt64), q.Tail(5, r))
	require.True(t, q.Delay(math.MaxInt64))
	require.Equal(t, int64(math.MaxInt64), q.Advance(5, math.MaxInt64, r))
}
