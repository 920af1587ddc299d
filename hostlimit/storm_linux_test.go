package hostlimit

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
)

var stormTime = flag.Duration("storm", 0, "how long TestStorm lasts")

const stormVar = "STINT_TEST_HOST_STORM"

func init() { children[stormVar] = beInStorm }

// stormLimit is the limit of each level.
var stormLimit = stint.Limit{Burst: 200, Count: 200, Period: time.Second}

var stormLevels = []stint.Durability{stint.Flushed, stint.Leased, stint.Synced}

// stormLimits returns the limits of a process. The limit beside those of the
// test differs.
func stormLimits(other int64) *stint.Limits {
	names := stint.Names{9: {Label: "Other", Limit: stint.PerHour(other)}}
	for i, level := range stormLevels {
		limit := stormLimit
		limit.Durability = level
		names[stint.Name(1+i)] = stint.NameSpec{Label: level.String(), Limit: limit}
	}
	limits, err := stint.NewLimits(names)
	if err != nil {
		panic(err)
	}
	return limits
}

// beInStorm spends until its input ends. It writes each admission to its output:
// the level, and the instants before and after the call. Orders come as lines.
func beInStorm(path string) {
	l, err := Open(path, stormLimits(5), &Options{LimiterOptions: stint.Options{LockTimeout: 20 * time.Second,
		FlushInterval: 50 * time.Millisecond}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "open:", err)
		os.Exit(1)
	}
	stop := make(chan struct{})
	var writing sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	var callers sync.WaitGroup
	for i := range stormLevels {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				before := time.Now()
				d, err := l.Spend(stint.Name(1+i).Key("a"), 1)
				after := time.Now()
				pause := min(d.RetryAfter, 20*time.Millisecond)
				switch {
				case d.Allowed:
					var b [17]byte
					b[0] = byte(i)
					binary.BigEndian.PutUint64(b[1:], uint64(before.UnixNano()))
					binary.BigEndian.PutUint64(b[9:], uint64(after.UnixNano()))
					writing.Lock()
					out.Write(b[:])
					writing.Unlock()
				case isAny(err, ErrNoAnswer, ErrNoOwner, stint.ErrNotDurable):
					if errors.Is(err, stint.ErrNotDurable) {
						writing.Lock()
						out.Write(append([]byte{stormNotDurable}, make([]byte, 16)...))
						writing.Unlock()
					}
					pause = 5 * time.Millisecond
				case err != nil:
					fmt.Fprintln(os.Stderr, "spend:", err)
				}
				if pause > 0 {
					<-time.After(pause)
				}
			}
		})
	}
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		switch orders.Text() {
		case "full": // no file may grow
			syscall.Setrlimit(1, &syscall.Rlimit{Cur: 4096, Max: ^uint64(0)})
		case "free":
			syscall.Setrlimit(1, &syscall.Rlimit{Cur: ^uint64(0), Max: ^uint64(0)})
		case "limits":
			if err := l.SetLimits(stormLimits(1 + rand.Int64N(9))); err != nil {
				fmt.Fprintln(os.Stderr, "limits:", err)
			}
		case "role":
			writing.Lock()
			out.Write(append([]byte{stormRole + byte(l.Role())}, make([]byte, 16)...))
			out.Flush()
			writing.Unlock()
		}
	}
	close(stop)
	callers.Wait()
	err = l.Close()
	out.Flush()
	if err != nil && !errors.Is(err, stint.ErrGone) { // it has not noticed yet that another file is at the path
		fmt.Fprintln(os.Stderr, "close:", err)
		os.Exit(1)
	}
}

// The first byte of what is no admission.
const (
	stormNotDurable = 99
	stormRole       = 100
)

// admission is what a process of the storm says of one token.
type admission struct{ before, after int64 }

type stormProcess struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}

	mu   sync.Mutex
	of   [3][]admission
	role Role
	lost int // calls that were not durable
	said chan struct{}
}

func startStorm(t *testing.T, path string) *stormProcess {
	t.Helper()
	p := &stormProcess{cmd: subprocess.Command(t.Context(), os.Args[0]), ended: make(chan struct{}), said: make(chan struct{}, 1)}
	var out io.Reader
	p.in, out = startChild(t, p.cmd, stormVar, path)
	go func() {
		defer close(p.ended)
		r := bufio.NewReader(out)
		var b [17]byte
		for {
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return
			}
			p.mu.Lock()
			switch {
			case b[0] == stormNotDurable:
				p.lost++
			case b[0] >= stormRole:
				p.role = Role(b[0] - stormRole)
				select {
				case p.said <- struct{}{}:
				default:
				}
			default:
				at := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[i:])) }
				p.of[b[0]] = append(p.of[b[0]], admission{at(1), at(9)})
			}
			p.mu.Unlock()
		}
	}()
	return p
}

func (p *stormProcess) order(what string) { fmt.Fprintln(p.in, what) }

func (p *stormProcess) isOwner() bool {
	p.order("role")
	select {
	case <-p.said:
	case <-time.After(10 * time.Second):
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.role == RoleOwner
}

// Twelve processes start and stop, the file is removed and renamed, processes
// are stopped, disks are full, and limits change. In any window, the tokens of
// all processes together are at most a burst and what came back, also if
// processes that compute leave them little of the processors.
func TestStorm(t *testing.T) {
	t.Parallel()
	t.Run("alone", storm)
	t.Run("beside processes that compute", func(t *testing.T) {
		compute(t, testlength.Of(2, 1))
		storm(t)
	})
}

const computeVar = "STINT_TEST_HOST_COMPUTE"

func init() {
	children[computeVar] = func(string) {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		for {
			sha256.Sum256(nil)
		}
	}
}

// compute starts processes that do nothing but compute until the end of the test.
func compute(t *testing.T, processes int) {
	for range processes {
		c := subprocess.Command(t.Context(), os.Args[0])
		in, _ := startChild(t, c, computeVar, "yes") // it ends with this process, however that ends
		t.Cleanup(func() {
			in.Close()
			c.Wait()
		})
	}
}

func storm(t *testing.T) {
	lasts := max(*stormTime, testlength.Of(20*time.Second, time.Second))
	path := filePath(t)
	running := make([]*stormProcess, testlength.Of(12, 3))
	for i := range running {
		running[i] = startStorm(t, path)
	}
	var all [3][]admission
	acts := map[string]int{}
	var log []string // of acts, if the law does not hold
	end := func(p *stormProcess) {
		require.NoError(t, p.in.Close())
		select {
		case <-p.ended:
		case <-time.After(time.Minute):
			p.cmd.Process.Signal(syscall.SIGQUIT)
			t.Fatal("it does not end")
		}
		require.NoError(t, p.cmd.Wait())
		acts["not durable"] += p.lost
		for i, of := range p.of {
			all[i] = append(all[i], of...)
		}
	}
	pause := func(most time.Duration) { <-time.After(rand.N(most)) }
	backAgain := func() {
		eventually(t, func() bool { _, err := os.Stat(path); return err == nil }, "the file comes back")
	}
	for begun := time.Now(); time.Since(begun) < lasts; pause(100 * time.Millisecond) {
		p := running[rand.IntN(len(running))]
		if rand.IntN(2) == 0 { // the owner
			if i := slices.IndexFunc(running, (*stormProcess).isOwner); i >= 0 {
				p = running[i]
			}
		}
		act := rand.IntN(6)
		log = append(log, fmt.Sprintf("%d: act %d on %d, owner %v", time.Now().UnixNano()/1e6, act, p.cmd.Process.Pid, p.role))
		switch act {
		case 0, 1:
			acts["ends"]++
			i := slices.Index(running, p)
			running[i] = startStorm(t, path)
			end(p)
		case 2:
			acts["stops"]++
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
			pause(1500 * time.Millisecond)
			if rand.IntN(3) == 0 {
				acts["removals while stopped"]++
				os.Remove(path)
			}
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
			backAgain()
		case 3:
			acts["full disks"]++
			p.order("full")
			pause(300 * time.Millisecond)
			p.order("free")
		case 4:
			acts["new limits"]++
			p.order("limits")
		case 5:
			acts["removals"]++
			if rand.IntN(2) == 0 {
				os.Remove(path)
			} else {
				os.Rename(path, path+".moved")
			}
			if rand.IntN(2) == 0 {
				i := rand.IntN(len(running))
				next := startStorm(t, path) // while there is no file
				backAgain()
				end(running[i])
				running[i] = next
			}
			backAgain()
		}
	}
	for _, p := range running {
		end(p)
	}
	t.Logf("%v for %v", acts, lasts)
	most := 0.0 // of all levels: a level by itself says less about the cause
	for i, level := range stormLevels {
		require.NotEmpty(t, all[i])
		over, at := overLimit(all[i], stormLimit)
		first, last := all[i][0].before, all[i][len(all[i])-1].after
		t.Logf("%v: %d tokens, %.0f %% of what there was, %.2f over the limit of a window", level, len(all[i]),
			100*float64(len(all[i]))/float64(stormLimit.Burst+(last-first)/int64(stormLimit.Interval())), over)
		if over > 0 {
			t.Logf("at %d\n%s", at/1e6, strings.Join(log, "\n"))
		}
		most = max(most, over)
	}
	require.Zero(t, most)
}

// overLimit returns by how many tokens the admissions in some window are over
// the limit, and when the worst window ends. The instant of a decision is within
// its call, so a window has the calls that begin and end in it. overLimit sorts
// the admissions by their end.
func overLimit(all []admission, limit stint.Limit) (over float64, at int64) {
	slices.SortFunc(all, func(a, b admission) int { return cmp.Compare(a.after, b.after) })
	begins := make([]int64, len(all))
	for i, a := range all {
		begins[i] = a.before
	}
	slices.Sort(begins)
	interval, worst := int64(limit.Interval()), int64(0)
	const empty = math.MaxInt64 / 4 // less that, while a window has no call
	first := begins[0]
	for i := range begins {
		begins[i] -= first
	}
	windows, used := newMaxTree(begins, empty), 0
	for _, a := range all { // windows that begin at a.before or earlier have one more
		n, _ := slices.BinarySearch(begins, a.before-first+1)
		for ; used < n; used++ {
			windows.add(used, -empty)
			windows.add(used+1, empty)
		}
		windows.add(n, interval)
		if o := windows.most() - limit.Burst*interval - (a.after - first); o > worst {
			worst, at = o, a.after
		}
	}
	return float64(worst) / float64(interval), at
}

// maxTree finds the largest of some numbers while others are added to the first
// of them.
type maxTree struct {
	size  int
	nodes []struct{ max, add int64 } // max with add, which is for the whole node
}

func newMaxTree(of []int64, less int64) *maxTree {
	size := 1
	for size < len(of) {
		size *= 2
	}
	m := &maxTree{size, make([]struct{ max, add int64 }, 2*size)}
	for i := range m.nodes {
		m.nodes[i].max = math.MinInt64 / 2
	}
	for i, v := range of {
		m.nodes[size+i].max = v - less
	}
	for i := size - 1; i > 0; i-- {
		m.nodes[i].max = max(m.nodes[2*i].max, m.nodes[2*i+1].max)
	}
	return m
}

func (m *maxTree) most() int64 { return m.nodes[1].max }

// add adds d to the first n numbers.
func (m *maxTree) add(n int, d int64) { m.addTo(1, m.size, n, d) }

func (m *maxTree) addTo(node, size, n int, d int64) {
	at := &m.nodes[node]
	switch {
	case n <= 0:
		return
	case n >= size:
		at.max, at.add = at.max+d, at.add+d
		return
	}
	m.addTo(2*node, size/2, n, d)
	m.addTo(2*node+1, size/2, n-size/2, d)
	at.max = max(m.nodes[2*node].max, m.nodes[2*node+1].max) + at.add
}

// overLimit finds admissions that are over a limit, and no others.
func TestOverLimit(t *testing.T) {
	var all []admission
	for i := range int64(2000) { // a burst, and what comes back in 9 s
		at := max(0, i-199) * int64(stormLimit.Interval())
		all = append(all, admission{at, at})
	}
	over, _ := overLimit(all, stormLimit)
	require.Zero(t, over)
	slow := slices.Clone(all) // one more, that may have been before or after all of them
	over, _ = overLimit(append(slow, admission{-1e9, 20e9}), stormLimit)
	require.Zero(t, over)
	all[1000].before -= int64(stormLimit.Interval()) / 4
	all[1000].after -= int64(stormLimit.Interval()) / 4
	over, at := overLimit(all, stormLimit)
	require.InDelta(t, 0.25, over, 1e-9)
	require.Equal(t, all[1000].after, at)
	for range 20 { // two owners, for a tenth of a second
		all = append(all, admission{5e9, 5e9})
	}
	over, _ = overLimit(all, stormLimit)
	require.InDelta(t, 20, over, 1)

	for range 200 { // against the definition
		limit := stint.Limit{Burst: 1 + rand.Int64N(4), Count: 1, Period: time.Duration(1 + rand.Int64N(9))}
		some := make([]admission, 1+rand.IntN(20))
		for i := range some {
			some[i].before = rand.Int64N(30)
			some[i].after = some[i].before + rand.Int64N(9)
		}
		want := 0.0
		for _, a := range some {
			for _, b := range some {
				n := 0
				for _, c := range some {
					if c.before >= a.before && c.after <= b.after {
						n++
					}
				}
				if n > 0 {
					want = max(want, float64(n)-float64(limit.Burst)-float64(b.after-a.before)/float64(limit.Period))
				}
			}
		}
		over, _ := overLimit(some, limit)
		require.InDelta(t, want, over, 1e-9, "%v %v", limit, some)
	}
}
