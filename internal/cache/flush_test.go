package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
)

// A flush that is half done saves no part of a call on several buckets, because
// all of its buckets are in the commit, those with a lease too.
func TestFlushDoesNotSplit(t *testing.T) {
	r := newRig(t, gcra.Leased, 1<<20)
	left, right := Key{1, "0"}, Key{}
	one, _ := r.shardOf(left)
	for i := 1; right.ID == ""; i++ {
		if s, _ := r.Shard(1, fmt.Sprint(i)); s != one {
			right = Key{1, fmt.Sprint(i)}
		}
	}
	other, _ := r.shardOf(right)
	r.put(left.ID)
	r.put(right.ID)

	r.flusher.mu.Lock() // as a flush does
	c := collector{now: r.now(), all: true}
	one.LockFast()
	c.collectLocked(one)
	one.UnlockFast()
	done := make(chan error)
	go func() {
		locked := []*Shard{one, other}
		if one.Order > other.Order {
			locked = []*Shard{other, one}
		}
		for _, s := range locked {
			s.Lock()
		}
		var changes []Change
		for _, key := range []Key{left, right} {
			s, h := r.shardOf(key)
			i, _ := s.findLocked(key, h)
			from := s.At(i).TAT()
			s.Write(i, from+int64(time.Minute))
			changes = append(changes, Change{Key: key, Shard: s, Hash: h, From: from, To: from + int64(time.Minute)})
		}
		in := r.SubmitLocked(changes, r.now())
		for _, s := range locked {
			s.UnlockFast()
		}
		done <- r.Await(context.Background(), time.Now(), in)
	}()
	for joined := false; !joined; runtime.Gosched() {
		one.LockFast()
		joined = len(one.pending) > 0
		one.UnlockFast()
	}
	other.LockFast()
	c.collectLocked(other)
	other.UnlockFast()
	require.Equal(t, []format.Entry{{Name: 1, ID: left.ID, TAT: r.now() + int64(time.Minute)}}, c.changes)
	r.flusher.mu.Unlock()
	require.NoError(t, <-done)
	require.NoError(t, r.Close())
	for _, key := range []Key{left, right} {
		require.Equal(t, r.now()+2*int64(time.Minute), r.stored[key])
	}
}

// A flush leaves a hold to the commit that has it: if that fails, the store must have
// the hold before it.
func TestFlushLeavesHoldInCommit(t *testing.T) {
	r := newRig(t, gcra.Flushed, 1<<20)
	key := Key{1, "a"}
	s, h := r.shardOf(key)
	swept := func(commits int) int {
		s.Lock()
		g := s.makeGateLocked(key, h)
		g.Hold, g.unsaved, g.commits = r.now()+int64(time.Hour), true, commits
		s.Unlock()
		r.flusher.mu.Lock()
		defer r.flusher.mu.Unlock()
		c := collector{now: r.now()}
		r.flusher.sweep(&c)
		return len(c.changes)
	}
	require.Zero(t, swept(1))
	require.Equal(t, 1, swept(0))
}

// A flush that comes upon a bucket in one commit after another returns the error of
// the second commit, which may have had to save what was spent before the flush.
func TestFlushReportsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, gcra.Leased, 1<<20)
		r.put("a")
		commit := func() {
			s, h := r.Shard(1, "a")
			s.Lock()
			defer s.UnlockFast()
			i, _ := s.Find(1, "a", h)
			in, ch := r.commits.Lock(false), renewalOf(s, h, s.At(i))
			r.putLocked(in, &ch, s.At(i), r.now()+int64(time.Hour))
			r.commits.Unlock()
		}
		disk, commits := errors.New("no disk"), 0
		r.flusher.store.Save = func(entries []format.Entry) error {
			if len(entries) < 2 { // a flush without buckets
				return nil
			}
			if commits++; commits == 2 {
				return disk
			}
			commit()
			return nil
		}
		commit()
		require.ErrorIs(t, r.flusher.flushAndWait(), disk)
		require.Equal(t, 2, commits)
		r.flusher.store.Save = r.save
	})
}

// TestShared: calls that come before a flush begins share it, and those that come
// during it share the next one.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn, runs := make(chan error), 0
		s := shared{run: func() error { runs++; return <-goOn }}
		first := s.flush(false)
		synctest.Wait()
		require.Same(t, first, s.flush(true))
		second := s.flush(false)
		require.NotSame(t, first, second)
		require.Same(t, second, s.flush(false))
		require.Same(t, first, s.flush(true))
		goOn <- nil
		<-first.done
		synctest.Wait()
		require.Same(t, second, s.flush(true))
		goOn <- context.Canceled
		<-second.done
		require.NoError(t, first.err)
		require.ErrorIs(t, second.err, context.Canceled)
		require.Equal(t, 2, runs)
		require.NotSame(t, second, s.flush(true))
		goOn <- nil
	})
}

// TestCounts: whatever the number of Names, each decision is counted once, and a
// shard has no more than a bounded number of counts.
func TestCounts(t *testing.T) {
	for seed := range uint64(200) {
		r, rng := newRig(t, gcra.Flushed, 1<<20), rand.New(rand.NewPCG(seed, 0))
		s, _ := r.Shard(1, "a")
		want := make(map[uint16][2]int64)
		most := []int{3, 10, 100, 10_000}[seed%4]
		for range 2 * min(most, 500) {
			name, denied := uint16(1+rng.IntN(most)), rng.UintN(2)
			s.LockFast()
			s.CountLocked(name)[denied]++
			s.UnlockFast()
			c := want[name]
			c[denied]++
			want[name] = c
		}
		require.LessOrEqual(t, len(s.more), mostCounts)
		got := make(map[uint16][2]int64)
		r.Counts(func(name uint16, allowed, denied int64) { got[name] = [2]int64{allowed, denied} })
		require.Equal(t, want, got)
	}
}

// TestCountsMeanwhile: a count that leaves its shard while Counts adds up is neither
// missed nor there twice.
func TestCountsMeanwhile(t *testing.T) {
	r := newRig(t, gcra.Flushed, 1<<20)
	s, _ := r.Shard(1, "a")
	for round := range int64(1000) {
		s.LockFast()
		s.CountLocked(1)[0]++
		s.UnlockFast()
		var moving sync.WaitGroup
		moving.Go(func() {
			for i := range uint16(4) { // they share their places in the shard with 1
				s.LockFast()
				s.CountLocked(1 + i%3*2*mostCounts)
				s.UnlockFast()
			}
		})
		sum := int64(0)
		r.Counts(func(_ uint16, allowed, _ int64) { sum += allowed })
		require.Equal(t, round+1, sum)
		moving.Wait()
	}
}

// A count that a failed commit takes back may have left its shard.
func TestCountTakenBack(t *testing.T) {
	r := newRig(t, gcra.Flushed, 1<<20)
	s, _ := r.Shard(1, "a")
	for name := range uint16(1000) {
		s.CountLocked(name + 1)[0]++
	}
	s.CountLocked(1)[0]--
	r.Counts(func(name uint16, allowed, denied int64) {
		if name == 1 {
			require.Zero(t, allowed)
		} else {
			require.EqualValues(t, 1, allowed)
		}
		require.Zero(t, denied)
	})
}
