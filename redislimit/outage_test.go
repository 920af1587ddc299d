package redislimit

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
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

// lateness measures how late the machine is: a goroutine that wants to run every
// millisecond notes when it was late.
type lateness struct {
	at, by []time.Duration // since begun
	begun  time.Time
}

func (l *lateness) run(done chan struct{}) {
	const every = time.Millisecond
	timer := time.NewTimer(every)
	defer timer.Stop()
	for due := time.Since(l.begun) + every; ; due = time.Since(l.begun) + every {
		select {
		case <-timer.C:
		case <-done:
			return
		}
		if now := time.Since(l.begun); now-due > every {
			l.at, l.by = append(l.at, now), append(l.by, now-due)
		}
		timer.Reset(every)
	}
}

// within returns the longest lateness that ended in a stretch, or shortly after.
func (l *lateness) within(from, to time.Duration) (most time.Duration) {
	for i, _ := slices.BinarySearch(l.at, from); i < len(l.at) && l.at[i]-l.by[i] <= to; i++ {
		most = max(most, l.by[i])
	}
	return most
}

// A server is killed or stopped again and again, under 64 callers of a machine that
// has a Limiter of its own for that time. Each call ends, with a decision unless it
// was one of the first to get no answer. Its own Limiter has spent exactly what it
// admitted, and the server nothing of it. No goroutine is left.
func TestOutages(t *testing.T) {
	outages := testlength.Of(200, 6)
	s := startServer(t)
	before := runtime.NumGoroutine()
	const timeout = 100 * time.Millisecond
	limit, share := stint.PerHour(1_000_000_000), stint.PerHour(100_000_000)
	mine, err := stint.Open(filepath.Join(t.TempDir(), "own.db"), testLimits(t, share), &stint.Options{Now: newTestClock().now})
	require.NoError(t, err)
	l := openAt(t, s.url, testLimits(t, limit), Options{Timeout: timeout, Away: mine})
	done := make(chan struct{})
	var callers sync.WaitGroup
	var decided, away, noAnswer atomic.Int64
	took := make([][]time.Duration, 64)
	late := &lateness{begun: time.Now()}
	callers.Go(func() { late.run(done) })
	var over [64][][2]time.Duration // beginning and end of calls that took longer than the bound
	const bound = timeout + 10*time.Millisecond
	for i := range took {
		callers.Go(func() {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				begin := time.Now()
				d, err := l.Spend(perID.Key(string(rune('a'+i%8))), 1)
				end := time.Now()
				took[i] = append(took[i], end.Sub(begin))
				if end.Sub(begin) > bound {
					over[i] = append(over[i], [2]time.Duration{begin.Sub(late.begun), end.Sub(late.begun)})
				}
				switch {
				case err == nil && d.Allowed:
					decided.Add(1)
					if d.Limit == share {
						away.Add(1)
					}
				case errors.Is(err, ErrNoAnswer), errors.Is(err, ErrAway), errors.Is(err, ErrBusy):
					noAnswer.Add(1)
				default:
					t.Error(d, err)
					return
				}
			}
		})
	}
	goesOn := func() {
		was := decided.Load()
		require.Eventually(t, func() bool { return decided.Load() > was+200 }, time.Minute, time.Millisecond)
	}
	starts := 0
	for i := range outages {
		goesOn()
		if i%2 == 0 {
			s.kill()
		} else {
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
		}
		require.Eventually(t, l.isAway, time.Minute, time.Millisecond)
		goesOn()
		require.ErrorIs(t, l.Health(), ErrAway)
		if i%2 == 0 {
			starts++
			s.start()
		} else {
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
		}
		l.comesBack(t)
	}
	close(done)
	callers.Wait()
	st := l.Stats()
	require.NoError(t, l.Close())
	require.Equal(t, away.Load(), st.AwayDecisions)
	spent := int64(0)
	for i := range 8 {
		b, err := mine.Bucket(perID.Key(string(rune('a' + i))))
		require.NoError(t, err)
		spent += share.Burst - b.Remaining
	}
	require.Equal(t, away.Load(), spent)
	require.NoError(t, mine.Close())
	all := slices.Concat(took...)
	slices.Sort(all)
	at := func(part float64) time.Duration { return all[int(part*float64(len(all)-1))].Round(time.Microsecond) }
	longer, unexplained := slices.Concat(over[:]...), 0
	for _, call := range longer {
		if call[1]-call[0]-late.within(call[0], call[1]) > bound {
			unexplained++
		}
	}
	t.Logf("%d calls: median %v, 99 %% %v, 99.9 %% %v, 99.99 %% %v, longest %v; %d took more than %v, "+
		"and %d of them by more than this machine's timers were late", len(all), at(0.5), at(0.99), at(0.999), at(0.9999), at(1),
		len(longer), bound, unexplained)
	t.Logf("%d decided, %d of them here, %d without an answer; away %d times, for %v", decided.Load(), st.AwayDecisions,
		noAnswer.Load(), st.Outages, st.Away)
	require.Less(t, at(1), 20*time.Second, "a call hangs")
	require.GreaterOrEqual(t, st.Outages, int64(outages))
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+starts }, time.Minute,
		10*time.Millisecond, "goroutines are left") // startServer has one for each start
}

// wrongLine is a line to a server whose clock is wrong.
type wrongLine struct {
	line
	server wrongClock
}

func (c wrongLine) Eval(ctx context.Context, command, script string, keys, args []string) (any, error) {
	if err := c.cut.Load(); err != nil {
		return nil, *err
	}
	return c.server.Eval(ctx, command, script, keys, args)
}

// Stats.Away does not contain the difference of the clocks, which this machine
// learns when the server is back.
func TestAwayTime(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		client := clientAt(t, s.url, 20*time.Second)
		c := wrongLine{newLine(), wrongClock{client, by}}
		c.rueidisClient = client
		c.fail(errCut)
		l := newOn(t, c, testLimits(t, stint.PerHour(2)), Options{Prefix: prefix, Away: AwayOpen})
		l.spend(t, perID.Key(by.String()), 1)
		c.mend()
		l.comesBack(t)
		l.spend(t, perID.Key(by.String()), 1)
		require.InDelta(t, by, time.Until(l.Now()), float64(30*time.Minute), "it is known now")
		require.Positive(t, l.Stats().Away, by)
		require.Less(t, l.Stats().Away, 30*time.Minute, by)
		require.NoError(t, l.Close())
	}
}
