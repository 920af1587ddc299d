package groupcommit

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// rig is a Group of ints in a bubble, whose saves take a second each.
type rig struct {
	*Group[[]int]
	order sync.Mutex
	mu    sync.Mutex
	saved [][]int
	fail  error
	slow  chan struct{} // holds up the next save
}

func newRig(t *testing.T) *rig {
	r := &rig{}
	r.Group = New(5*time.Second, 5*time.Millisecond, &r.order, func(b *Batch[[]int]) error {
		require.False(t, r.order.TryLock())
		<-time.After(time.Second)
		if r.slow != nil {
			<-r.slow
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.saved = append(r.saved, b.Work)
		b.Work = nil
		return r.fail
	})
	return r
}

func run(t *testing.T, name string, test func(t *testing.T, r *rig)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			defer r.Close()
			test(t, r)
		})
	})
}

func (r *rig) put(n int, wait bool) *Batch[[]int] {
	b := r.Lock(wait)
	defer r.Unlock()
	b.Work = append(b.Work, n)
	return b
}

func TestGroup(t *testing.T) {
	run(t, "callers share a save", func(t *testing.T, r *rig) {
		begun := time.Now()
		first := r.put(0, true)
		synctest.Wait()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { require.NoError(t, r.put(i, true).Await(time.Now(), nil)) })
		}
		require.NoError(t, first.Await(time.Now(), nil))
		wg.Wait()
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.Len(t, r.saved, 2)
		require.Len(t, r.saved[1], 100)
		require.EqualValues(t, 2, r.Stats().Saves)
	})
	run(t, "a caller hurries the others", func(t *testing.T, r *rig) {
		begun := time.Now()
		r.put(1, false)
		require.NoError(t, r.put(2, true).Await(time.Now(), nil))
		require.Equal(t, time.Second, time.Since(begun))
		b := r.put(3, false)
		<-b.Done()
		require.NoError(t, b.Err())
		require.Equal(t, 2*time.Second+5*time.Millisecond, time.Since(begun))
	})
	run(t, "late", func(t *testing.T, r *rig) {
		b := r.put(1, true)
		r.Lock(false)
		require.False(t, r.Late())
		r.Unlock()
		<-time.After(21 * time.Millisecond)
		r.Lock(false)
		require.True(t, r.Late())
		r.Unlock()
		require.NoError(t, b.Await(time.Now(), nil))
	})
	run(t, "failure", func(t *testing.T, r *rig) {
		r.fail = errors.New("disk")
		require.ErrorIs(t, r.put(1, true).Await(time.Now(), nil), r.fail)
		st := r.Stats()
		require.EqualValues(t, 1, st.Failures)
		require.ErrorIs(t, st.Err, r.fail)
		require.Equal(t, time.Second, st.Longest)
		r.fail = nil
	})
	run(t, "timeout", func(t *testing.T, r *rig) {
		r.slow = make(chan struct{})
		begun := time.Now()
		first := r.put(1, true)
		<-time.After(4 * time.Second)
		second := r.put(2, true)
		require.ErrorIs(t, second.Await(time.Now(), nil), ErrTimeout)
		require.Equal(t, 9*time.Second, time.Since(begun), "each waits for its own time")
		close(r.slow)
		require.NoError(t, first.Await(time.Now(), nil), "the save succeeded late")
		require.NoError(t, second.Await(time.Now(), nil))
	})
	run(t, "stop", func(t *testing.T, r *rig) {
		r.slow = make(chan struct{})
		stop := make(chan struct{})
		first, stopped := r.put(1, true), make(chan error)
		for range 2 { // the first stops before the save is overdue, the second after
			go func() { stopped <- first.Await(time.Now(), stop) }()
			synctest.Wait()
			close(stop)
			require.ErrorIs(t, <-stopped, ErrStopped)
			stop = make(chan struct{})
			<-time.After(6 * time.Second)
		}
		close(r.slow)
		require.NoError(t, first.Await(time.Now(), nil), "the save succeeded late")
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		first := r.put(1, true)
		<-time.After(time.Millisecond) // its save is under way
		last := r.put(2, false)
		begun := time.Now()
		r.Close()
		require.Equal(t, 2*time.Second-time.Millisecond, time.Since(begun), "without a pause")
		require.NoError(t, first.Await(begun, nil))
		require.NoError(t, last.Await(begun, nil))
		require.Equal(t, [][]int{{1}, {2}}, r.saved)
	})
}

// A save waits for the callers that it expects, as long as they come, and not for
// ever while each yield takes long, because other goroutines compute.
func TestGather(t *testing.T) {
	// yields returns how often gather yields for 2 of 10 callers, if each yield
	// takes this long, and brings a caller for the first n times.
	yields := func(g *Group[int], took time.Duration, callers int) (n int) {
		g.next = &Batch[int]{callers: 2}
		g.expected = 10
		g.yield = func() {
			<-time.After(took)
			if n++; n <= callers {
				g.next.callers++
			}
		}
		g.gather()
		return n
	}
	synctest.Test(t, func(t *testing.T) {
		g := &Group[int]{}
		require.Equal(t, patience, yields(g, 0, 0))
		require.Equal(t, 8, yields(g, 0, 8), "all have come")
		require.Equal(t, 3+patience, yields(g, time.Millisecond, 3))
		require.Equal(t, 4, yields(g, gatherMost/3, 8), "not for ever")
	})
}

// Callers in other processes come again some time after their save, when all
// goroutines of this process sleep. They share a save, as those of this process
// do, and not every other save.
func TestLinger(t *testing.T) {
	// callers makes each of n callers put again some time after each save, and
	// returns the numbers of callers of the last saves.
	callers := func(r *rig, n int, after time.Duration) (shared []int) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				<-time.After(time.Duration(i%2) * 1200 * time.Millisecond) // the halves take turns
				for range 20 {
					require.NoError(t, r.put(i, true).Await(time.Now(), nil))
					<-time.After(after)
				}
			})
		}
		all.Wait()
		for _, work := range r.saved[10:20] {
			shared = append(shared, len(work))
		}
		return shared
	}
	run(t, "callers that come", func(t *testing.T, r *rig) {
		require.Greater(t, slices.Min(callers(r, 10, time.Millisecond)), 7) // linger does not wait for the last one
	})
	run(t, "callers that come too late", func(t *testing.T, r *rig) {
		require.Less(t, slices.Max(callers(r, 10, 500*time.Millisecond)), 10)
	})
	t.Run("callers that do not come", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &Group[int]{next: &Batch[int]{callers: 2}, expected: 10, yield: func() {}, full: make(chan struct{}, 1)}
			g.stats.Last = 18 * time.Millisecond
			gather := func() time.Duration {
				begun := time.Now()
				g.gather()
				return time.Since(begun)
			}
			require.Equal(t, 9*time.Millisecond, gather(), "half the time of a save")
			require.Equal(t, 9*time.Millisecond, gather())
			g.stats.Last = time.Hour
			require.Equal(t, lingerMost, gather())
			g.next.callers = 9
			require.Zero(t, gather(), "one may be gone")
			g.expected, g.next.callers = 40, 31
			require.Zero(t, gather(), "fewer than a quarter are missing")
			g.next.callers = 30
			require.Equal(t, lingerMost, gather())
			g.expected, g.next.callers = 10, 2
			g.Lock(false)
			g.Unlock()
			go func() {
				<-time.After(time.Millisecond)
				for range 8 {
					g.Lock(true)
					g.Unlock()
				}
			}()
			require.Equal(t, time.Millisecond, gather(), "all have come")
		})
	})
}
