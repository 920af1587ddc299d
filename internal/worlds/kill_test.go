package worlds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
)

// These tests read the file of a killed process. The operating system lives on,
// and so does all that was written. So they test the order of commits and
// acknowledgements, and not what a power cut does.

const (
	killEnv     = "STINT_TEST_KILLED_PROCESS"
	killWorkers = 3 // beside the model's calls, so that calls share commits
	killBurst   = 1 << 40
	killBegin   = 1 << 39 // tokens that a worker's bucket lacks from the start
	workerName  = 100     // Name of the workers' buckets
)

// killOptions are those of the process that is killed.
type killOptions struct {
	Path     string
	Limits   modeltest.Limits
	Level    modeltest.Level
	Resident int
	Now      int64
}

// withWorkers adds the limit of the workers' buckets. A lease of so large a
// limit would last for ever.
func withWorkers(ls modeltest.Limits, level modeltest.Level) modeltest.Limits {
	if level == modeltest.Leased {
		level = modeltest.Synced
	}
	names := maps.Clone(ls.Names)
	names[workerName] = &modeltest.Limit{Burst: killBurst, Count: 1, Period: time.Millisecond, Level: level}
	return modeltest.Limits{Names: names, Overrides: ls.Overrides}
}

// workerKey returns the key of a worker: long, to fill the log.
func workerKey(w int) stint.Key {
	return stint.Name(workerName).Key(fmt.Sprint("worker-", w, strings.Repeat("-", 480)))
}

// TestKilledProcess is the process that is killed. It answers calls, each in a
// line, while its workers spend. A worker writes its number to another pipe
// when a token is acknowledged.
func TestKilledProcess(t *testing.T) {
	var opts killOptions
	if err := json.Unmarshal([]byte(os.Getenv(killEnv)), &opts); err != nil {
		t.Skip("TestProcessKill runs it")
	}
	clock := modeltest.NewClock()
	clock.Set(opts.Now)
	s := &limiterSystem{clock: clock, limits: limitsOfModel(withWorkers(opts.Limits, opts.Level))}
	file := OpenFile(t, opts.Path, s.limits.Names(), nil)
	var err error
	s.compact = file.Compact
	s.Limiter, err = stint.New(file, s.limits, &stint.Options{
		FlushInterval: 2 * time.Millisecond, CommitTimeout: time.Hour, MaxResident: opts.Resident, Now: clock.Now,
	})
	require.NoError(t, err)
	acknowledged := os.NewFile(3, "acknowledged")
	for w := range killWorkers {
		go func() {
			pace := time.NewTicker(100 * time.Microsecond)
			for {
				d, err := s.Spend(workerKey(w), 1)
				switch {
				case errors.Is(err, stint.ErrClosed):
					return
				case err != nil || !d.Allowed:
					panic(fmt.Sprint(d, err))
				}
				acknowledged.Write([]byte{byte(w)})
				if opts.Level < modeltest.Leased {
					<-pace.C // nothing else slows it down
				}
			}
		}()
	}
	calls, replies := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c modeltest.Call
		if err := calls.Decode(&c); err != nil {
			return
		}
		if c.Limits != nil {
			more := withWorkers(*c.Limits, opts.Level)
			c.Limits = &more
		}
		replies.Encode(s.Do(c))
		if c.Op == modeltest.Close {
			os.Exit(0)
		}
	}
}

// killed is a System in a process that is killed in one of its calls.
type killed struct {
	t       *testing.T
	rnd     *rand.Rand
	cmd     *exec.Cmd
	calls   *json.Encoder
	replies *json.Decoder
	left    int // calls until it is killed
	dead    bool
	ended   bool
	workers sync.WaitGroup
	counted [killWorkers]int64 // tokens of the workers, acknowledged
}

func startKilled(t *testing.T, rnd *rand.Rand, opts killOptions, calls int) *killed {
	k := &killed{t: t, rnd: rnd, left: calls}
	k.cmd = subprocess.Self(context.WithoutCancel(t.Context()), "-test.run=^TestKilledProcess$")
	told, err := json.Marshal(opts)
	require.NoError(t, err)
	k.cmd.Env = append(os.Environ(), killEnv+"="+string(told))
	k.cmd.Stderr = os.Stderr
	stdin, err := k.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := k.cmd.StdoutPipe()
	require.NoError(t, err)
	reads, writes, err := os.Pipe()
	require.NoError(t, err)
	k.cmd.ExtraFiles = []*os.File{writes}
	require.NoError(t, k.cmd.Start())
	require.NoError(t, writes.Close())
	k.calls, k.replies = json.NewEncoder(stdin), json.NewDecoder(bufio.NewReader(stdout))
	k.workers.Go(func() {
		defer reads.Close()
		buf := make([]byte, 1<<12)
		for {
			n, err := reads.Read(buf)
			for _, w := range buf[:n] {
				k.counted[w]++
			}
			if err != nil {
				return
			}
		}
	})
	return k
}

func (k *killed) Do(c modeltest.Call) (r modeltest.Reply) {
	if k.dead {
		return modeltest.Reply{Failure: modeltest.Crashed}
	}
	require.NoError(k.t, k.calls.Encode(c))
	if (c.Op == modeltest.Compact || c.Op == modeltest.Hold) && k.left > 0 && k.rnd.IntN(4) == 0 {
		k.left = 1 + k.rnd.IntN(2) // nothing has been saved in a new file, or the delays are not known
	}
	if k.left--; k.left == 0 {
		for range k.rnd.IntN(1 << k.rnd.IntN(14)) {
			runtime.Gosched()
		}
		k.Crash()
	}
	if err := k.replies.Decode(&r); err != nil {
		require.True(k.t, k.dead, "the process ended: %v", err)
		r = modeltest.Reply{Failure: modeltest.Crashed}
	}
	return r
}

// Crash kills the process, unless it has ended.
func (k *killed) Crash() {
	if !k.dead {
		k.dead = true
		k.cmd.Process.Kill() // an error if it has ended
	}
}

// end waits until the process is gone.
func (k *killed) end() {
	if !k.ended {
		k.ended = true
		k.Crash()
		k.workers.Wait()
		k.cmd.Wait() // an error if it was killed
	}
}

// A process is killed again and again, and each time the next goes on with the
// file that it left, or with a copy. The file has what the level of durability
// promises.
func TestProcessKill(t *testing.T) {
	t.Parallel()
	kills, calls := testlength.Of(100, 1), testlength.Of(1_500, 500)
	for level := modeltest.Memory; level <= modeltest.Synced; level++ {
		t.Run(stint.Durability(level).String(), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
			path := filepath.Join(t.TempDir(), "killed.db")
			levels := []modeltest.Level{level}
			if level == modeltest.Synced { // Flushed takes part in its commits
				levels = append(levels, modeltest.Flushed)
			}
			var process *killed
			spent := [killWorkers]int64{}
			env := modeltest.Env{Levels: levels, File: true, MaxResident: []int{0, 12}[rnd.IntN(2)],
				Dead: func() bool { return process.dead }}
			now := int64(1_800_000_000e9)
			done := 0
			env.Open = func(ls modeltest.Limits) modeltest.System {
				if process != nil {
					process.end()
					if process.left == 0 {
						done++
					}
					for w, n := range process.counted {
						spent[w] += n
					}
					if _, err := os.Stat(path); err == nil && rnd.IntN(3) > 0 {
						path = CopyOf(t, path)
					}
				}
				workersKept(t, path, ls, level, now, &spent)
				left := 1 + rnd.IntN(calls)
				if done >= kills { // the last one lives to the end
					left = 0
				}
				process = startKilled(t, rnd, killOptions{path, ls, level, env.MaxResident, now}, left)
				return process
			}
			w := modeltest.NewWorld(t, env, rnd.Uint64())
			for done < kills {
				w.Step()
			}
			w.End()
			process.end()
			t.Logf("%d kills, %v; the workers spent %v", done, w.Counts, spent)
		})
	}
}

// workersKept requires that the file has the workers' acknowledged tokens.
func workersKept(t *testing.T, path string, ls modeltest.Limits, level modeltest.Level, now int64,
	spent *[killWorkers]int64) {
	clock := modeltest.NewClock()
	clock.Set(now)
	l, err := stint.Open(path, limitsOfModel(withWorkers(ls, level)),
		&stint.Options{Now: clock.Now, FlushInterval: time.Hour})
	require.NoError(t, err)
	for w := range spent {
		d, err := l.Check(workerKey(w), 0)
		require.NoError(t, err)
		if d.ResetAfter == 0 { // the first process is about to begin
			d, err := l.Spend(workerKey(w), killBegin)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.Zero(t, spent[w])
			continue
		}
		found := int64(d.ResetAfter/time.Millisecond) - killBegin
		if level >= modeltest.Leased {
			require.GreaterOrEqual(t, found, spent[w], "worker %d", w)
		}
		require.LessOrEqual(t, found, spent[w]+1, "worker %d", w)
		spent[w] = found
	}
	require.NoError(t, l.Close())
}
