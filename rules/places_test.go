package rules

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

var one = bucket{key: ofA.Key("x")}

// requireEmpty: nothing runs or waits, and no entry is left.
func requireEmpty(t *testing.T, table *places) {
	t.Helper()
	for i := range table.chains {
		require.Nil(t, table.chains[i].first)
	}
}

// Waiters get their places in the order in which they came. None passes the
// queue, even if its own bound is higher.
func TestEnterInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 1000
		table := newPlaces()
		inside := make(chan *entry, 8+waiters)
		for range 8 {
			place, _ := table.force(one)
			inside <- place
		}
		var order []int
		var mu sync.Mutex
		for i := range waiters {
			go func() {
				place, _ := table.enter(t.Context(), one, bound{most: 8, wait: time.Hour, queue: waiters})
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				inside <- place
			}()
			synctest.Wait()
		}
		require.Empty(t, order)
		place, state := table.enter(t.Context(), one, bound{most: 1e6})
		require.Nil(t, place, "none passes the queue")
		require.Equal(t, Running{one.key, 8, waiters}, state)
		for range 8 + waiters {
			(<-inside).leave()
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
		table := newPlaces()
		running, _ := table.force(one)
		ctx, cancel := context.WithCancel(t.Context())
		enter := func(ctx context.Context, b bound) (result chan *entry) {
			result = make(chan *entry)
			go func() {
				place, _ := table.enter(ctx, one, b)
				result <- place
			}()
			synctest.Wait()
			return result
		}
		canceled := enter(ctx, bound{most: 1, wait: time.Hour, queue: 3})
		late := enter(t.Context(), bound{most: 1, wait: time.Minute, queue: 3})
		behind := enter(t.Context(), bound{most: 2, wait: time.Hour, queue: 3})
		none, state := table.enter(t.Context(), one, bound{most: 2, wait: time.Hour, queue: 3})
		require.Nil(t, none, "three wait already")
		require.Equal(t, Running{one.key, 1, 3}, state)

		cancel()
		require.Nil(t, <-canceled)
		require.Nil(t, <-late, "after a minute")
		last := <-behind
		require.NotNil(t, last, "the last one may enter beside one that runs")
		last.leave()
		running.leave()
		requireEmpty(t, table)

		place, _ := table.enter(ctx, one, bound{most: 1})
		require.NotNil(t, place, "a place that is free needs no wait")
		none, _ = table.enter(ctx, one, bound{most: 1, wait: time.Hour, queue: 1})
		require.Nil(t, none, "the context has ended")
		place.leave()
		none, _ = table.enter(t.Context(), one, bound{most: 0, wait: time.Hour, queue: 1})
		require.Nil(t, none, "no request may run")
		requireEmpty(t, table)
	})
}

// A context that ends at the instant of the turn gives the place to the next.
func TestEnterEndsAtTheTurn(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			table := newPlaces()
			running, _ := table.force(one)
			ctx, cancel := context.WithCancel(t.Context())
			results := [2]chan *entry{make(chan *entry), make(chan *entry)}
			for i, ctx := range []context.Context{ctx, t.Context()} {
				go func() {
					place, _ := table.enter(ctx, one, bound{most: 1, wait: time.Hour, queue: 2})
					results[i] <- place
				}()
				synctest.Wait()
			}
			c := running.chain
			c.mu.Lock()
			cancel()
			for range 10 { // the first one sees that its context has ended, and waits for the lock
				runtime.Gosched()
			}
			running.running--
			running.admitLocked()
			c.mu.Unlock()
			if place := <-results[0]; place != nil {
				place.leave()
			}
			(<-results[1]).leave()
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
	table := newPlaces()
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := memory()
	var running [100]*entry
	for i := range keys {
		place, _ := table.enter(t.Context(), bucket{key: ofA.Key(strconv.Itoa(i))}, bound{most: 1})
		if i >= len(running) {
			running[i%len(running)].leave()
		}
		running[i%len(running)] = place
	}
	after := memory()
	require.Less(t, int64(after-before), int64(512<<10), "100 run, of %d keys", keys)
	peak := slices.Grow(running[:], 20_000)
	for i := range 20_000 {
		place, _ := table.force(bucket{key: ofB.Key(strconv.Itoa(i))})
		peak = append(peak, place)
	}
	for _, place := range peak {
		place.leave()
	}
	requireEmpty(t, table)
	peak = nil
	require.Less(t, int64(memory()-before), int64(512<<10), "a peak is not kept")
	runtime.KeepAlive(table)
}

func BenchmarkEnterAndLeave(b *testing.B) {
	table := newPlaces()
	key := bucket{(*stint.Limiter)(nil), ofA.Key("203.0.113.77")}
	b.ReportAllocs()
	ctx := b.Context()
	for b.Loop() {
		place, _ := table.enter(ctx, key, bound{most: 8})
		place.leave()
	}
}
