package hostlimit

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// Processes that start and stop at random admit no more than one limit allows,
// and nearly as much.
func TestShare(t *testing.T) {
	t.Parallel()
	limit := stint.Limit{Burst: 1000, Count: 4000, Period: time.Second}
	path, processes, lasts := filePath(t), testlength.Of(16, 3), testlength.Of(30*time.Second, 600*time.Millisecond)
	o := workerOptions{Path: path, Callers: 4, Limit: limit, ID: "a"}
	begun := time.Now()
	running := make([]*worker, processes)
	for i := range running {
		running[i] = startWorker(t, o, false)
	}
	running[0].waitFor("ready", 1)
	serving := time.Now()
	admitted, stops := int64(0), 0
	finish := func(w *worker) {
		last := w.stop()
		require.Empty(t, last.Err)
		admitted += last.Admitted
	}
	tick := time.NewTicker(testlength.Of(200*time.Millisecond, 100*time.Millisecond))
	defer tick.Stop()
	for time.Since(begun) < lasts {
		<-tick.C
		i := rand.IntN(processes)
		running[i].waitFor("ready", 1)
		old := running[i]
		running[i] = startWorker(t, o, false)
		finish(old)
		stops++
	}
	served := time.Since(serving)
	for _, w := range running {
		w.waitFor("ready", 1)
		finish(w)
	}
	most := limit.Burst + int64(time.Since(begun)/limit.Interval())
	least := limit.Burst + int64(served/limit.Interval())
	t.Logf("%d admitted, at most %d, %.2f %% of what is there; %d stops", admitted, most,
		100*float64(admitted)/float64(least), stops)
	require.LessOrEqual(t, admitted, most)
	if testlength.Long { // nearly all, unless the machine is busy
		require.GreaterOrEqual(t, admitted, least/2)
	}
}

// whole is a limit whose tokens hardly come back, so that every spend can be
// counted in the file.
var whole = stint.Limit{Burst: 1 << 31, Count: 1, Period: time.Second}

// Owners are killed. No acknowledged token is forgotten, and the others go on.
func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	for _, level := range []stint.Durability{stint.Synced, stint.Leased} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			kills, took := 0, []time.Duration(nil)
			for kills < testlength.Of(500, 3) {
				n := testlength.Of(250, 3)
				if level == stint.Leased {
					n = testlength.Of(4, 3) // each may withhold an eighth of the bucket
				}
				took = append(took, killOwners(t, level, n)...)
				kills += n
			}
			t.Logf("%d kills; decided again after %v (median), %v at most, %d times", kills, median(took), took[len(took)-1],
				len(took))
		})
	}
}

// killOwners kills the owner of a new file again and again, and returns how long
// each of the others took to decide again.
func killOwners(t *testing.T, level stint.Durability, kills int) (took []time.Duration) {
	limit := whole
	limit.Durability = level
	path := filePath(t)
	o := workerOptions{Path: path, Callers: 4, Limit: limit, ID: "a", Lossy: true}
	begun := time.Now()
	running := make([]*worker, testlength.Of(8, 3))
	for i := range running {
		running[i] = startWorker(t, o, true)
	}
	for _, w := range running {
		w.waitFor("ready", 1)
	}
	acked, unknown, all := int64(0), int64(0), slices.Clone(running)
	for range kills {
		i := indexOfOwner(t, running)
		again := make([]int, len(running))
		for k, w := range running {
			again[k] = count(w, "again")
		}
		w := running[i]
		for was := w.acked.Load(); w.acked.Load() < was+20; { // it is at work
			<-time.After(time.Millisecond)
		}
		w.kill()
		acked += w.acked.Load()
		for k, w := range running {
			if k != i {
				w.waitFor("again", again[k]+1)
			}
		}
		running[i] = startWorker(t, o, true)
		all = append(all, running[i])
		running[i].waitFor("ready", 1)
	}
	for _, w := range running {
		last := w.stop()
		require.Empty(t, last.Err)
		require.Equal(t, last.Admitted, w.acked.Load())
		acked += last.Admitted
		unknown += last.Unknown
	}
	for _, w := range all {
		for _, m := range w.messages() {
			if m.Event == "again" {
				took = append(took, m.Took)
			}
			require.NotContains(t, []string{"garbage", "takeover failed"}, m.Event, m.Err)
		}
	}
	spent := spentOf(t, path, "a", limit)
	require.GreaterOrEqual(t, spent, acked-int64(time.Since(begun)/limit.Interval())-1)
	if level == stint.Synced { // at each kill every caller may have a call without an answer
		require.LessOrEqual(t, spent, acked+unknown+int64(kills*o.Callers*len(running)))
	}
	return took
}

func count(w *worker, event string) (n int) {
	for _, m := range w.messages() {
		if m.Event == event {
			n++
		}
	}
	return n
}

// indexOfOwner waits until a worker is the owner, and returns its index.
func indexOfOwner(t *testing.T, workers []*worker) int {
	t.Helper()
	for range 10_000 {
		for i, w := range workers {
			if w.isOwner() {
				return i
			}
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal("no worker is the owner")
	return 0
}

// A deployment starts the new process before the old one stops. No call fails,
// and no token comes back.
func TestDeployments(t *testing.T) {
	t.Parallel()
	path, deployments := filePath(t), testlength.Of(100, 5)
	o := workerOptions{Path: path, Callers: 4, Limit: whole, ID: "a"}
	begun := time.Now()
	old := startWorker(t, o, false)
	old.waitFor("ready", 1)
	admitted := int64(0)
	finish := func(w *worker) {
		last := w.stop()
		require.Empty(t, last.Err)
		require.Positive(t, last.Admitted)
		admitted += last.Admitted
	}
	for range deployments {
		next := startWorker(t, o, false)
		next.waitFor("ready", 1)
		finish(old)
		next.waitFor("owner", 1)
		old = next
	}
	finish(old)
	spent, back := spentOf(t, path, "a", whole), int64(time.Since(begun)/whole.Interval())+1
	t.Logf("%d deployments, %d tokens, %d in the file", deployments, admitted, spent)
	require.InDelta(t, admitted, spent, float64(back))
}
