package redislimit

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// Three nodes lose the server for ten seconds, under three times the demand that
// the limit admits. Together they admit at most what one bucket would, plus the
// spent tokens that they had not seen. A restart of one node during that time
// changes nothing.
func TestPartition(t *testing.T) {
	t.Parallel()
	limit := stint.Limit{Burst: 60, Count: 10, Period: time.Second}
	for _, moves := range []string{"evenly", "in turns", "one by one"} {
		t.Run(moves, func(t *testing.T) {
			t.Parallel()
			var admitted [2][]int
			for run, restart := range []bool{false, true} {
				p := newPartition(t, limit)
				p.pass(20*time.Second, moves)
				gap := time.Duration(0)
				if moves == "one by one" {
					gap = 600 * time.Millisecond
				}
				unseen := p.cutAll(gap, moves)
				p.pass(5*time.Second, moves)
				if restart {
					p.restart(1)
				}
				p.pass(5*time.Second, moves)
				p.mendAll()
				p.pass(20*time.Second, moves)
				most := limit.Burst + int64(p.clock.now().Sub(p.begin)/limit.Interval())
				t.Logf("admitted %d of at most %d and %.2f unseen", p.admitted, most, unseen)
				require.LessOrEqual(t, float64(p.admitted), float64(most)+unseen)
				require.GreaterOrEqual(t, float64(p.admitted), 0.95*float64(most))
				admitted[run] = p.each
				for _, l := range p.nodes {
					require.NoError(t, l.Close())
				}
			}
			require.Equal(t, admitted[0], admitted[1], "the restart changes nothing")
		})
	}
}

// partition is three nodes that share a bucket, by one clock.
type partition struct {
	*testing.T
	clock    *testClock
	limits   *stint.Limits
	opts     [3]Options
	lines    [3]line
	nodes    [3]*Limiter
	begin    time.Time
	steps    int
	admitted int
	each     []int // admitted in each step
}

func newPartition(t *testing.T, limit stint.Limit) *partition {
	p := &partition{T: t, clock: newTestClock(), limits: testLimits(t, limit)}
	_, prefix := commonServer(t)
	p.begin = p.clock.now()
	for i := range p.nodes {
		p.lines[i] = newLine()
		p.opts[i] = Options{Prefix: prefix, Now: p.clock.now, Nodes: len(p.nodes), Local: filepath.Join(t.TempDir(), "n")}
		p.nodes[i] = p.lines[i].node(t, p.limits, p.opts[i])
	}
	return p
}

// pass lets each node try three spends in the time in which three tokens return.
// The nodes alternate or, if moves is "in turns", each spends three times in a
// row.
func (p *partition) pass(d time.Duration, moves string) {
	for end := p.clock.now().Add(d); p.clock.now().Before(end); p.steps++ {
		n := 0
		for i := range 9 {
			at := i % 3
			if moves == "in turns" {
				at = i / 3
			}
			if p.nodes[(at+p.steps)%3].spend(p, perID.Key("a"), 1).Allowed {
				n++
			}
		}
		p.each = append(p.each, n)
		p.admitted += n
		p.clock.pass(300 * time.Millisecond)
	}
}

// cutAll cuts the lines one after the other. It returns the spent tokens that
// some nodes have not seen when the last line is cut.
func (p *partition) cutAll(gap time.Duration, moves string) (unseen float64) {
	for i := range p.lines {
		p.lines[i].fail(fmt.Errorf("%w: cut", ErrAway))
		if i < 2 {
			p.pass(gap, moves)
		}
		if i == 1 {
			p.nodes[2].check(p, perID.Key("a"), 0)
		}
	}
	limit, _ := p.limits.For(perID.Key("a"))
	var seen [3]int64
	for i, l := range p.nodes {
		var err error
		seen[i], err = l.node.TAT(perID.Key("a"))
		require.NoError(p, err)
		require.Positive(p, seen[i])
	}
	for _, tat := range seen[:2] {
		unseen += float64(seen[2]-tat) / 3 / float64(limit.Interval())
	}
	return unseen
}

func (p *partition) mendAll() {
	for i, l := range p.nodes {
		p.lines[i].mend()
		l.comesBack(p.T)
	}
}

// restart closes a node and opens it again, while the server is away.
func (p *partition) restart(i int) {
	require.ErrorIs(p, p.nodes[i].Health(), ErrAway)
	require.NoError(p, p.nodes[i].Close())
	p.nodes[i] = p.lines[i].node(p.T, p.limits, p.opts[i])
	require.ErrorIs(p, p.nodes[i].Health(), ErrAway)
}

// TestPartitionRealTime is TestPartition with a real clock. The server stops for
// ten seconds, and the nodes notice by themselves. Until all nodes are back, the
// server does not know all that they have spent. What they admit too much
// because of this is not counted.
func TestPartitionRealTime(t *testing.T) {
	if !testlength.Long {
		t.Skip("skipped, because it takes 20 seconds; -tags long runs it")
	}
	t.Parallel()
	s := startServer(t)
	limit := stint.Limit{Burst: 300, Count: 100, Period: time.Second}
	limits, key := testLimits(t, limit), perID.Key("a")
	var admitted, failed atomic.Int64
	var nodes [3]*Limiter
	var mu sync.Mutex
	var backs []time.Time
	var admittedThen []int64
	begin := time.Now()
	for i := range nodes {
		nodes[i] = s.limiter(t, limits, func(o *Options) {
			o.Nodes, o.Timeout, o.Local = len(nodes), 200*time.Millisecond, filepath.Join(t.TempDir(), "local.db")
			o.OnEvent = func(e Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Err == nil {
					backs, admittedThen = append(backs, time.Now()), append(admittedThen, admitted.Load())
				}
			}
		})
	}
	done := make(chan struct{})
	var callers sync.WaitGroup
	for _, l := range nodes {
		for range 4 {
			callers.Go(func() {
				tick := time.NewTicker(40 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-done:
						return
					case <-tick.C:
					}
					if d, err := l.Spend(key, 1); err != nil {
						failed.Add(1)
					} else if d.Allowed {
						admitted.Add(1)
					}
				}
			})
		}
	}
	wait := func(d time.Duration) { <-time.After(d) }
	wait(5 * time.Second)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	var seen []int64
	for _, l := range nodes {
		require.Eventually(t, l.isAway, time.Minute, time.Millisecond)
		tat, err := l.node.TAT(key)
		require.NoError(t, err)
		seen = append(seen, tat)
	}
	unseen := 0.0
	for _, tat := range seen {
		unseen += float64(slices.Max(seen)-tat) / float64(len(seen)) / float64(limit.Interval())
	}
	wait(10 * time.Second)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	for _, l := range nodes {
		l.comesBack(t)
	}
	wait(5 * time.Second)
	close(done)
	callers.Wait()
	mu.Lock()
	defer mu.Unlock()
	last := len(backs) - 1
	between := backs[last].Sub(backs[0])
	more := max(0, float64(admittedThen[last]-admittedThen[0])-between.Seconds()*100)
	most := float64(limit.Burst) + time.Since(begin).Seconds()*100
	t.Logf("admitted %d: at most %.0f, %.2f unseen, and %.0f more in the %v in which only some were back",
		admitted.Load(), most, unseen, more, between)
	t.Logf("%d without an answer, away %d times, for %v", failed.Load(), nodes[0].Stats().Outages, nodes[0].Stats().Away)
	// The nodes know the server's time to a few milliseconds.
	require.LessOrEqual(t, float64(admitted.Load())-more, most+unseen+3)
	require.Positive(t, admitted.Load())
}
