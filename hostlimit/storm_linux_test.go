package hostlimit

import (
	"bufio"
	"cmp"
	"context"
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

// beInStorm spends until its input ends. It writes to its output, as a byte and two
// instants, how each call ended, and what the test must know of the process. Orders
// come as lines.
func beInStorm(path string) {
	var writing sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	say := func(what byte, before, after time.Time) {
		b := binary.BigEndian.AppendUint64([]byte{what}, uint64(before.UnixNano()))
		b = binary.BigEndian.AppendUint64(b, uint64(after.UnixNano()))
		writing.Lock()
		defer writing.Unlock()
		if out.Write(b); what >= stormFull {
			out.Flush()
		}
	}
	l, err := Open(path, stormLimits(5), &Options{
		LimiterOptions: stint.Options{LockTimeout: 20 * time.Second, FlushInterval: 50 * time.Millisecond},
		OnEvent:        func(e Event) { say(stormRole+byte(e.Role), time.Now(), time.Now()) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "open:", err)
		os.Exit(1)
	}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for i := range stormLevels {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				key := stint.Name(1 + i).Key("a")
				before := time.Now()
				d, err := stint.Decision{}, error(nil)
				if rand.IntN(4) > 0 {
					d, err = l.Spend(key, 1)
				} else { // it may leave the middle of the queue
					ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
					time.AfterFunc(rand.N(150*time.Millisecond), cancel)
					_, err = l.Wait(ctx, key.Cost(1))
					if d.Allowed = err == nil; errors.Is(err, context.Canceled) {
						err = nil
					}
					cancel()
				}
				after := time.Now()
				pause := min(d.RetryAfter, 20*time.Millisecond)
				switch {
				case isAny(err, ErrNoAnswer, ErrNoOwner, stint.ErrNotDurable):
					pause = 5 * time.Millisecond
				case err != nil:
					fmt.Fprintln(os.Stderr, "spend:", err)
				}
				switch what := byte(i); {
				case d.Allowed:
					say(what, before, after)
				case d.RetryAfter > 0:
					say(stormDenied+what, before, after)
				default:
					say(stormWanted+what, before, after)
				}
				if pause > 0 {
					<-time.After(pause)
				}
			}
		})
	}
	var full time.Time
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		switch orders.Text() {
		case "full": // no file may grow
			full = time.Now()
			syscall.Setrlimit(1, &syscall.Rlimit{Cur: 4096, Max: ^uint64(0)})
		case "free":
			syscall.Setrlimit(1, &syscall.Rlimit{Cur: ^uint64(0), Max: ^uint64(0)})
			say(stormFull, full, time.Now())
		case "limits":
			if err := l.SetLimits(stormLimits(1 + rand.Int64N(9))); err != nil {
				fmt.Fprintln(os.Stderr, "limits:", err)
			}
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

// The first byte of what a process of the storm says. An admission has the index of
// its level.
const (
	stormDenied = 3  // and the index of the level: a Spend was denied
	stormWanted = 6  // and the index of the level: another call took nothing
	stormFull   = 9  // the disk was full
	stormRole   = 10 // and a Role, from now on
)

// span is the time of a call, or of a state. A call of a process of the storm asks
// for one token.
type span struct{ before, after int64 }

// calls are those that took a token, the denied ones of Spend, and others that took
// none.
type calls struct{ admitted, denied, wanted []span }

func (c *calls) add(more *calls) {
	c.admitted = append(c.admitted, more.admitted...)
	c.denied = append(c.denied, more.denied...)
	c.wanted = append(c.wanted, more.wanted...)
}

type stormProcess struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}

	mu                  sync.Mutex
	calls               [3]calls // of each level
	role                Role
	owns, full, stopped []span
}

func startStorm(t *testing.T, path string) *stormProcess {
	t.Helper()
	p := &stormProcess{cmd: subprocess.Command(t.Context(), os.Args[0]), ended: make(chan struct{})}
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
			p.note(b[0], span{int64(binary.BigEndian.Uint64(b[1:])), int64(binary.BigEndian.Uint64(b[9:]))})
		}
	}()
	return p
}

// note notes what the process says.
func (p *stormProcess) note(what byte, at span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case what < stormDenied:
		p.calls[what].add(&calls{admitted: []span{at}})
	case what < stormWanted:
		p.calls[what-stormDenied].add(&calls{denied: []span{at}})
	case what < stormFull:
		p.calls[what-stormWanted].add(&calls{wanted: []span{at}})
	case what == stormFull:
		p.full = append(p.full, at)
	default:
		if p.role == RoleOwner {
			p.owns[len(p.owns)-1].after = at.before
		}
		if p.role = Role(what - stormRole); p.role == RoleOwner {
			p.owns = append(p.owns, span{at.before, math.MaxInt64})
		}
	}
}

func (p *stormProcess) order(what string) { fmt.Fprintln(p.in, what) }

func (p *stormProcess) isOwner() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.role == RoleOwner
}

// Twelve processes start and stop, the file is removed and renamed, processes
// are stopped, disks are full, and limits change. In any window, the tokens of
// all processes together are at most a burst and what came back, also if
// processes that compute leave them little of the processors. And at least 95 % of
// what the limit admits is used while somebody wants it, and the owner can answer: it
// is not stopped and, at Leased and Synced, the file is there and the disk not full.
//
// No process is killed here. A kill of the owner may withhold the rest of a lease, an
// eighth of the burst, and a token of each call under way; at Flushed it may admit
// once more what the last flush did not save.
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
	var all [3]calls
	var stopped, notDurable []span // when the owner was stopped, and when it could save nothing
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
		for i := range stormLevels {
			all[i].add(&p.calls[i])
		}
		stopped = append(stopped, common(p.stopped, p.owns)...)
		notDurable = append(notDurable, common(p.full, p.owns)...)
	}
	pause := func(most time.Duration) { <-time.After(rand.N(most)) }
	away := func(move func() error) (backAgain func()) {
		begun := time.Now()
		move()
		return func() {
			eventually(t, func() bool { _, err := os.Stat(path); return err == nil }, "the file comes back")
			notDurable = append(notDurable, span{begun.UnixNano(), time.Now().UnixNano()})
		}
	}
	for begun := time.Now(); time.Since(begun) < lasts; pause(100 * time.Millisecond) {
		p := running[rand.IntN(len(running))]
		if rand.IntN(2) == 0 { // the owner
			if i := slices.IndexFunc(running, (*stormProcess).isOwner); i >= 0 {
				p = running[i]
			}
		}
		act := rand.IntN(6)
		log = append(log, fmt.Sprintf("%d: act %d on %d, owner %v", time.Now().UnixNano()/1e6, act, p.cmd.Process.Pid, p.isOwner()))
		switch act {
		case 0, 1:
			acts["ends"]++
			i := slices.Index(running, p)
			running[i] = startStorm(t, path)
			end(p)
		case 2:
			acts["stops"]++
			begun := time.Now()
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
			pause(1500 * time.Millisecond)
			backAgain := func() {}
			if rand.IntN(3) == 0 {
				acts["removals while stopped"]++
				backAgain = away(func() error { return os.Remove(path) })
			}
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
			p.stopped = append(p.stopped, span{begun.UnixNano(), time.Now().UnixNano()})
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
			move := func() error { return os.Remove(path) }
			if rand.IntN(2) == 0 {
				move = func() error { return os.Rename(path, path+".moved") }
			}
			backAgain := away(move)
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
	most, least := 0.0, 1.0 // of all levels: a level by itself says less about the cause
	for i, level := range stormLevels {
		require.NotEmpty(t, all[i].admitted)
		over, at := overLimit(all[i].admitted, stormLimit)
		out := stopped
		if level >= stint.Leased {
			out = append(slices.Clone(stopped), notDurable...)
		}
		used, unused := float64(len(all[i].admitted)), lost(all[i], out, stormLimit, len(running))
		t.Logf("%v: %.0f tokens, %.1f %% of what the limit admits to those who want it, %.2f over the limit of a window",
			level, used, 100*used/(used+unused), over)
		if unused > float64(stormLimit.Burst) { // a short test has few tokens
			least = min(least, used/(used+unused))
		}
		if over > 0 {
			t.Logf("at %d\n%s", at/1e6, strings.Join(log, "\n"))
		}
		most = max(most, over)
	}
	require.Zero(t, most)
	require.GreaterOrEqual(t, least, 0.95)
}

// common returns the parts of spans that are in some of the others, which do not
// overlap.
func common(spans, others []span) (parts []span) {
	for _, a := range spans {
		for _, b := range others {
			if from, to := max(a.before, b.before), min(a.after, b.after); from < to {
				parts = append(parts, span{from, to})
			}
		}
	}
	return parts
}

// lost returns how many tokens nobody got although somebody wanted them. They came
// back to a full bucket for a tenth of a second after a call that took none, except in
// spans in which no call could be answered. Or they were there whenever a Spend was
// denied for a tenth of a second, and are more than the calls under way; what calls
// without an answer withheld is left out. lost sorts its arguments.
func lost(all calls, out []span, limit stint.Limit, underWay int) float64 {
	const while = int64(100 * time.Millisecond)
	wanted := slices.Concat(all.wanted, all.denied)
	for _, of := range [][]span{all.admitted, all.denied, wanted} {
		slices.SortFunc(of, func(a, b span) int { return cmp.Compare(a.after, b.after) })
	}
	slices.SortFunc(out, func(a, b span) int { return cmp.Compare(a.before, b.before) })
	var want, answers []span
	for _, s := range wanted {
		if n := len(want); n > 0 && s.after <= want[n-1].after {
			want[n-1].after = s.after + while
		} else {
			want = append(want, span{s.after, s.after + while})
		}
	}
	from := int64(0)
	for _, s := range append(out, span{math.MaxInt64, math.MaxInt64}) {
		answers = append(answers, span{from, s.before}) // it may be empty
		from = max(from, s.after)
	}
	want = common(want, answers)
	interval := int64(limit.Interval())
	tat, over := all.admitted[0].after, int64(0)
	last, first, least := int64(0), int64(0), int64(0) // denials that begin a tenth of a second, and the tokens at each since
	for denied := all.denied; len(all.admitted) > 0; {
		a := all.admitted[0]
		isDenied := len(denied) > 0 && denied[0].after < a.after
		if isDenied {
			a, denied = denied[0], denied[1:]
		}
		for _, s := range common(want, []span{{tat, a.before}}) { // the bucket was full
			over += s.after - s.before
			tat = max(tat, s.after)
		}
		if !isDenied {
			tat, all.admitted = max(tat, a.after)+interval, all.admitted[1:]
			continue
		}
		tokens := min(limit.Burst*interval, limit.Burst*interval+a.before-tat)
		if a.after-first > while {
			if held := least - int64(underWay)*interval; a.after-first < 2*while && held > 0 {
				if tat += held; len(common(out, []span{{last, a.after}})) == 0 {
					over += held // and not what an outage withholds
				}
			}
			last, first, least = first, a.after, tokens
		}
		least = min(least, tokens)
	}
	return float64(over) / float64(interval)
}

// overLimit returns by how many tokens the admissions in some window are over
// the limit, and when the worst window ends. The instant of a decision is within
// its call, so a window has the calls that begin and end in it. overLimit sorts
// the admissions by their end.
func overLimit(all []span, limit stint.Limit) (over float64, at int64) {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.after, b.after) })
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

// lost counts tokens that nobody got, and no others.
func TestLost(t *testing.T) {
	every := func(d, from, to int64) (of []span) {
		for ; from < to; from += d {
			of = append(of, span{from, from})
		}
		return of
	}
	interval := int64(stormLimit.Interval())
	lostOf := func(admitted []span, out ...span) float64 {
		return lost(calls{admitted: admitted, wanted: every(50e6, 0, 10e9)}, out, stormLimit, 12)
	}
	require.Zero(t, lostOf(every(interval, 0, 10e9)))
	require.InDelta(t, 1000, lostOf(every(2*interval, 0, 10e9)), 1, "half of what comes back")
	require.InDelta(t, 600, lostOf(every(2*interval, 0, 10e9), span{5e9, 9e9}, span{6e9, 7e9}), 1)
	require.Zero(t, lost(calls{admitted: every(2*interval, 0, 10e9)}, nil, stormLimit, 12), "nobody wants them")
	gap := append(every(interval, 0, 4e9), every(interval, 6e9, 10e9)...)
	require.InDelta(t, 400, lostOf(gap), 1)
	burst := append(every(1e6, 0, 200e6), gap...) // its tokens come back in the gap
	require.InDelta(t, 200, lostOf(burst), 1)
	few := append(every(1e6, 0, 150e6), every(interval, 150e6, 10e9)...) // denied while 80 tokens are there
	require.InDelta(t, 80-12, lost(calls{admitted: few, denied: every(10e6, 200e6, 10e9)}, nil, stormLimit, 12), 2)
}

// overLimit finds admissions that are over a limit, and no others.
func TestOverLimit(t *testing.T) {
	var all []span
	for i := range int64(2000) { // a burst, and what comes back in 9 s
		at := max(0, i-199) * int64(stormLimit.Interval())
		all = append(all, span{at, at})
	}
	over, _ := overLimit(all, stormLimit)
	require.Zero(t, over)
	slow := slices.Clone(all) // one more, that may have been before or after all of them
	over, _ = overLimit(append(slow, span{-1e9, 20e9}), stormLimit)
	require.Zero(t, over)
	all[1000].before -= int64(stormLimit.Interval()) / 4
	all[1000].after -= int64(stormLimit.Interval()) / 4
	over, at := overLimit(all, stormLimit)
	require.InDelta(t, 0.25, over, 1e-9)
	require.Equal(t, all[1000].after, at)
	for range 20 { // two owners, for a tenth of a second
		all = append(all, span{5e9, 5e9})
	}
	over, _ = overLimit(all, stormLimit)
	require.InDelta(t, 20, over, 1)

	for range 200 { // against the definition
		limit := stint.Limit{Burst: 1 + rand.Int64N(4), Count: 1, Period: time.Duration(1 + rand.Int64N(9))}
		some := make([]span, 1+rand.IntN(20))
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
