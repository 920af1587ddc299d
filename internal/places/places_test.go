package places

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// requireEmpty: nothing runs or waits, and no entry is left.
func requireEmpty[K comparable](t *testing.T, table *Table[K]) {
	t.Helper()
	for key, state := range table.All() {
		t.Errorf("%v is left: %+v", key, state)
	}
	for i := range table.chains {
		require.Nil(t, table.chains[i].first)
	}
}

// However many goroutines ask, and however they leave, no more run than may,
// and nothing is left at the end.
func TestEnter(t *testing.T) {
	rounds := 3_000
	if testing.Short() {
		rounds = 300
	}
	const callers, most = 64, 8
	table := NewTable[string]()
	var inside [3]atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(c)))
			for range rounds {
				i := rng.IntN(len(inside))
				ctx, cancel := context.WithCancel(t.Context())
				b := Bound{Most: most}
				switch rng.IntN(3) {
				case 0:
					b.Wait, b.Queue = time.Hour, callers
				case 1:
					b.Wait, b.Queue = time.Duration(rng.IntN(100))*time.Microsecond, 2
					if rng.IntN(2) == 0 {
						time.AfterFunc(time.Duration(rng.IntN(50))*time.Microsecond, cancel)
					}
				}
				if place, _ := table.Enter(ctx, strconv.Itoa(i), b); place.Taken() {
					if n := inside[i].Add(1); n > most {
						t.Errorf("%d inside", n)
					}
					if rng.IntN(4) == 0 {
						runtime.Gosched()
					}
					inside[i].Add(-1)
					place.Leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	requireEmpty(t, table)
}

// Waiters get their places in the order in which they came. None passes the
// queue, even if its own bound is higher.
func TestEnterInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 1000
		table := NewTable[int]()
		inside := make(chan Place[int], 8+waiters)
		for range 8 {
			place, _ := table.Force(1)
			inside <- place
		}
		var order []int
		var mu sync.Mutex
		for i := range waiters {
			go func() {
				place, _ := table.Enter(t.Context(), 1, Bound{Most: 8, Wait: time.Hour, Queue: waiters})
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				inside <- place
			}()
			synctest.Wait()
		}
		require.Empty(t, order)
		place, state := table.Enter(t.Context(), 1, Bound{Most: 1e6})
		require.False(t, place.Taken(), "none passes the queue")
		require.Equal(t, State{8, waiters}, state)
		for range 8 + waiters {
			(<-inside).Leave()
			synctest.Wait()
		}
		require.Len(t, order, waiters)
		for i, at := range order {
			require.Equal(t, i, at)
		}
		requireEmpty(t, table)
	})
}

// Waiting ends with the context and with the time, and a full queue takes no
// more. The request takes no place then, and those behind it move up.
func TestEnterEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[int]()
		running, _ := table.Force(1)
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan Place[int], 3)
		enter := func(ctx context.Context, b Bound) {
			go func() {
				place, _ := table.Enter(ctx, 1, b)
				results <- place
			}()
			synctest.Wait()
		}
		enter(ctx, Bound{Most: 1, Wait: time.Hour, Queue: 3})
		enter(t.Context(), Bound{Most: 1, Wait: time.Minute, Queue: 3})
		enter(t.Context(), Bound{Most: 2, Wait: time.Hour, Queue: 3})
		none, state := table.Enter(t.Context(), 1, Bound{Most: 2, Wait: time.Hour, Queue: 3})
		require.False(t, none.Taken(), "three wait already")
		require.Equal(t, State{1, 3}, state)

		cancel()
		require.False(t, (<-results).Taken())
		require.False(t, (<-results).Taken(), "after a minute")
		last := <-results
		require.True(t, last.Taken(), "the last one may enter beside one that runs")
		last.Leave()
		running.Leave()
		requireEmpty(t, table)

		place, _ := table.Enter(ctx, 1, Bound{Most: 1})
		require.True(t, place.Taken(), "a place that is free needs no wait")
		none, _ = table.Enter(ctx, 1, Bound{Most: 1, Wait: time.Hour, Queue: 1})
		require.False(t, none.Taken(), "the context has ended")
		place.Leave()
		none, _ = table.Enter(t.Context(), 1, Bound{Most: 0, Wait: time.Hour, Queue: 1})
		require.False(t, none.Taken(), "no request may run")
		requireEmpty(t, table)
	})
}

// A context that ends at the instant of the turn gives the place to the next.
func TestEnterEndsAtTheTurn(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			table := NewTable[int]()
			running, _ := table.Force(1)
			ctx, cancel := context.WithCancel(t.Context())
			results := [2]chan Place[int]{make(chan Place[int]), make(chan Place[int])}
			for i, ctx := range []context.Context{ctx, t.Context()} {
				go func() {
					place, _ := table.Enter(ctx, 1, Bound{Most: 1, Wait: time.Hour, Queue: 2})
					results[i] <- place
				}()
				synctest.Wait()
			}
			go cancel()
			go running.Leave()
			if place := <-results[0]; place.Taken() {
				place.Leave()
			}
			(<-results[1]).Leave()
			requireEmpty(t, table)
		})
	}
}

// The memory of keys is that of those that run, not of those that were seen.
func TestTableMemory(t *testing.T) {
	keys := 1_000_000
	if testing.Short() {
		keys = 100_000
	}
	table := NewTable[stint.Key]()
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := memory()
	var running [100]Place[stint.Key]
	for i := range keys {
		place, _ := table.Enter(t.Context(), stint.Key{Name: 1, ID: strconv.Itoa(i)}, Bound{Most: 1})
		if i >= len(running) {
			running[i%len(running)].Leave()
		}
		running[i%len(running)] = place
	}
	after := memory()
	require.Less(t, int64(after-before), int64(512<<10), "100 run, of %d keys", keys)
	for _, place := range running {
		place.Leave()
	}
	requireEmpty(t, table)

	peak := make([]Place[stint.Key], 20_000)
	for i := range peak {
		peak[i], _ = table.Force(stint.Key{Name: 2, ID: strconv.Itoa(i)})
	}
	for _, place := range peak {
		place.Leave()
	}
	peak = nil
	require.Less(t, int64(memory()-before), int64(512<<10), "a peak is not kept")
	runtime.KeepAlive(table)
}

func BenchmarkEnterAndLeave(b *testing.B) {
	table := NewTable[Bucket]()
	key := Bucket{Key: stint.Key{Name: 1, ID: "203.0.113.77"}, Limiter: (*stint.Limiter)(nil)}
	b.ReportAllocs()
	ctx := b.Context()
	for b.Loop() {
		place, _ := table.Enter(ctx, key, Bound{Most: 8})
		place.Leave()
	}
}
