package redislimit

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// Three machines lose the server for ten seconds, under three times the demand that
// the limit admits. Each has a Limiter of its own in a file, with the limit divided
// by three. During the outage each admits what that Limiter admits, to the token, and
// the server's bucket is as if there had been no outage. A restart of one machine
// during that time changes nothing.
func TestPartition(t *testing.T) {
	t.Parallel()
	limit := stint.Limit{Burst: 60, Count: 10, Period: time.Second}
	for _, moves := range []string{"evenly", "in turns"} {
		t.Run(moves, func(t *testing.T) {
			t.Parallel()
			var runs [2][3]int64
			for run, restart := range []bool{false, true} {
				p := newPartition(t, limit)
				p.pass(20*time.Second, moves)
				p.cutAll()
				before := p.clock.now()
				p.pass(5*time.Second, moves)
				if restart {
					p.restart(1)
				}
				p.pass(5*time.Second, moves)
				outage := p.clock.now().Sub(before)
				p.mendAll()
				p.pass(20*time.Second, moves)
				elapsed := p.clock.now().Sub(p.begin)
				away := p.away[0] + p.away[1] + p.away[2]
				t.Logf("admitted %d at the server, %d away", p.there, p.away)
				require.LessOrEqual(t, away, limit.Burst+int64(outage/limit.Interval()), "the machines have one limit together")
				require.LessOrEqual(t, p.there, limit.Burst+int64(elapsed/limit.Interval()), "the server knows nothing of it")
				require.GreaterOrEqual(t, p.there, int64(elapsed/limit.Interval()), "and its bucket has filled up meanwhile")
				runs[run] = p.away
				for _, l := range p.nodes {
					require.NoError(t, l.Close())
				}
			}
			require.Equal(t, runs[0], runs[1], "the restart changes nothing")
		})
	}
}

// partition is three machines that share a bucket, by one clock.
type partition struct {
	*testing.T
	clock   *testClock
	limits  *stint.Limits
	shares  *stint.Limits
	prefix  string
	paths   [3]string
	lines   [3]line
	own     [3]*stint.Limiter
	nodes   [3]*Limiter
	alone   [3]*stint.Limiter // each decides as the one of own, and is never restarted
	begin   time.Time
	steps   int
	there   int64
	away    [3]int64
	without bool // the server is away
}

func newPartition(t *testing.T, limit stint.Limit) *partition {
	p := &partition{T: t, clock: newTestClock(), limits: testLimits(t, limit), shares: testLimits(t, limit.DividedBy(3)),
		prefix: newPrefix(t)}
	p.begin = p.clock.now()
	for i := range p.nodes {
		p.lines[i], p.paths[i] = newLine(), filepath.Join(t.TempDir(), "own.db")
		p.alone[i] = ownOf(t, p.shares, p.clock.now)
		p.open(i)
	}
	return p
}

func (p *partition) open(i int) {
	var err error
	p.own[i], err = stint.Open(p.paths[i], p.shares, &stint.Options{Now: p.clock.now})
	require.NoError(p, err)
	p.Cleanup(func() { p.own[i].Close() })
	p.nodes[i] = p.lines[i].node(p.T, p.limits, Options{Prefix: p.prefix, Now: p.clock.now, Away: p.own[i], RepeatDenials: -1})
}

// pass lets each machine try three spends in the time in which three tokens return.
// The machines alternate or, if moves is "in turns", each spends three times in a
// row.
func (p *partition) pass(d time.Duration, moves string) {
	for end := p.clock.now().Add(d); p.clock.now().Before(end); p.steps++ {
		for i := range 9 {
			at := i % 3
			if moves == "in turns" {
				at = i / 3
			}
			at = (at + p.steps) % 3
			d := p.nodes[at].spend(p, perID.Key("a"), 1)
			switch {
			case p.without:
				want, err := p.alone[at].Spend(perID.Key("a"), 1)
				require.NoError(p, err)
				require.Equal(p, want, d)
				p.away[at] += d.Taken
			default:
				p.there += d.Taken
			}
		}
		p.clock.pass(300 * time.Millisecond)
	}
}

func (p *partition) cutAll() {
	for i := range p.lines {
		p.lines[i].fail(errCut)
	}
	p.without = true
}

func (p *partition) mendAll() {
	for i, l := range p.nodes {
		p.lines[i].mend()
		l.comesBack(p.T)
	}
	p.without = false
}

// restart closes a machine and opens it again, while the server is away.
func (p *partition) restart(i int) {
	require.ErrorIs(p, p.nodes[i].Health(), ErrAway)
	require.NoError(p, p.nodes[i].Close())
	require.NoError(p, p.own[i].Close())
	p.open(i)
	require.ErrorIs(p, p.nodes[i].Health(), ErrAway)
}

// TestPartitionRealTime is TestPartition with a real clock. The server stops for
// ten seconds, and the machines notice by themselves.
func TestPartitionRealTime(t *testing.T) {
	if !testlength.Long {
		t.Skip("skipped, because it takes 20 seconds; -tags long runs it")
	}
	t.Parallel()
	s := startServer(t)
	limit := stint.Limit{Burst: 300, Count: 100, Period: time.Second}
	limits, key := testLimits(t, limit), perID.Key("a")
	var there, away, failed atomic.Int64
	var nodes [3]*Limiter
	var own [3]*stint.Limiter
	begin := time.Now()
	for i := range nodes {
		var err error
		own[i], err = stint.Open(filepath.Join(t.TempDir(), "own.db"), testLimits(t, limit.DividedBy(3)), nil)
		require.NoError(t, err)
		nodes[i] = s.limiter(t, limits, func(o *Options) { o.Timeout, o.Away = 200*time.Millisecond, own[i] })
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
					switch d, err := l.Spend(key, 1); {
					case err != nil:
						failed.Add(1)
					case d.Limit == limit:
						there.Add(d.Taken)
					default:
						away.Add(d.Taken)
					}
				}
			})
		}
	}
	wait := func(d time.Duration) { <-time.After(d) }
	wait(5 * time.Second)
	stopped := time.Now()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	for _, l := range nodes {
		require.Eventually(t, l.isAway, time.Minute, time.Millisecond)
	}
	wait(10 * time.Second)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	for _, l := range nodes {
		l.comesBack(t)
	}
	outage := time.Since(stopped)
	wait(5 * time.Second)
	close(done)
	callers.Wait()
	law := func(of time.Duration) int64 { return limit.Burst + int64(of/limit.Interval()) }
	t.Logf("admitted %d at the server of at most %d, %d away of at most %d; %d without an answer, away %d times, for %v",
		there.Load(), law(time.Since(begin)), away.Load(), law(outage), failed.Load(), nodes[0].Stats().Outages,
		nodes[0].Stats().Away)
	require.LessOrEqual(t, there.Load(), law(time.Since(begin)))
	require.LessOrEqual(t, away.Load(), law(outage))
	require.Greater(t, away.Load(), int64(outage/limit.Interval()), "the machines' own bursts are there, too")
	for i := range own {
		require.NoError(t, own[i].Close())
	}
}
