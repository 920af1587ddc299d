package hostlimit

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
)

const workerVar = "STINT_TEST_HOST_WORKER"

// children has what other processes of the tests do, by the variable with their
// orders.
var children = map[string]func(told string){workerVar: work}

func TestMain(m *testing.M) {
	for name, be := range children {
		if told := os.Getenv(name); told != "" {
			be(told)
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// startChild starts a command, which does what children has, with orders.
func startChild(t testing.TB, cmd *exec.Cmd, name, told string) (in io.WriteCloser, out io.Reader) {
	t.Helper()
	cmd.Env, cmd.Stderr = append(os.Environ(), name+"="+told), os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err = cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return in, out
}

// workerOptions are the options of a process that spends until its input is
// closed.
type workerOptions struct {
	Path    string
	Callers int
	Limit   stint.Limit
	ID      string
	Lossy   bool // ErrNoAnswer and ErrNoOwner are expected
}

// message is one line of a worker's output, as JSON.
type message struct {
	Event    string // "ready", "owner", "guest", "lost", "again" or "done"
	Took     time.Duration
	Admitted int64
	Unknown  int64 // calls without an answer
	Err      string
}

// work spends with several callers. If file 3 is open, it writes a byte to it
// for each acknowledged token.
func work(told string) {
	var o workerOptions
	if err := json.Unmarshal([]byte(told), &o); err != nil {
		panic(err)
	}
	var printing sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(m message) {
		printing.Lock()
		defer printing.Unlock()
		out.Encode(m)
	}
	limits, err := stint.NewLimits(stint.Names{perID: {Label: "PerID", Limit: o.Limit}})
	if err != nil {
		panic(err)
	}
	var lostAt atomic.Int64
	begun := time.Now()
	role := RoleOwner // of the last event; they come one at a time
	l, err := Open(o.Path, limits, &Options{
		TakeoverTimeout: time.Minute, // the machine may be busy, or an emulator
		LimiterOptions: stint.Options{FlushInterval: 20 * time.Millisecond, LockTimeout: time.Minute,
			CommitTimeout: time.Minute},
		OnEvent: func(e Event) {
			m := message{Event: e.Role.String()}
			switch {
			case e.Role == RoleNone && role == RoleNone:
				m.Event = "takeover failed"
			case e.Role == RoleNone:
				m.Event = "lost"
				lostAt.Store(int64(time.Since(begun)))
			case e.Err != nil:
				m.Event = "guest refused"
			}
			if role = e.Role; e.Err != nil {
				m.Err = e.Err.Error()
			}
			say(m)
		},
	})
	if err != nil {
		say(message{Event: "done", Err: err.Error()})
		return
	}
	acks := os.NewFile(3, "acks")
	if _, err := acks.Stat(); err != nil {
		acks = nil
	}
	stop := make(chan struct{})
	var admitted, unknown atomic.Int64
	failures := make(chan error, o.Callers)
	var callers sync.WaitGroup
	for range o.Callers {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				d, err := l.Spend(perID.Key(o.ID), 1)
				switch {
				case o.Lossy && errors.Is(err, ErrNoAnswer):
					unknown.Add(1)
				case o.Lossy && errors.Is(err, ErrNoOwner):
				case err != nil:
					failures <- err
					return
				case d.Allowed:
					admitted.Add(1)
					if acks != nil {
						acks.Write([]byte{1})
					}
					if at := lostAt.Swap(0); at != 0 {
						say(message{Event: "again", Took: time.Since(begun) - time.Duration(at)})
					}
				default:
					timer := time.NewTimer(d.RetryAfter)
					select {
					case <-timer.C:
					case <-stop:
					}
				}
			}
		})
	}
	say(message{Event: "ready"})
	io.Copy(io.Discard, os.Stdin)
	close(stop)
	callers.Wait()
	last := message{Event: "done", Admitted: admitted.Load(), Unknown: unknown.Load()}
	select {
	case err := <-failures:
		last.Err = err.Error()
	default:
	}
	if err := l.Close(); err != nil && last.Err == "" {
		last.Err = "close: " + err.Error()
	}
	say(last)
}

// worker is a process that runs work.
type worker struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	acked atomic.Int64 // tokens that it has acknowledged

	mu    sync.Mutex
	seen  []message
	came  chan struct{} // signalled after each message
	acks  sync.WaitGroup
	ended chan struct{}
}

func startWorker(t testing.TB, o workerOptions, acks bool) *worker {
	t.Helper()
	w := &worker{t: t, cmd: subprocess.Command(t.Context(), os.Args[0]), came: make(chan struct{}, 1),
		ended: make(chan struct{})}
	told, err := json.Marshal(o)
	require.NoError(t, err)
	var theirs *os.File
	if acks {
		var ours *os.File
		ours, theirs, err = os.Pipe()
		require.NoError(t, err)
		w.cmd.ExtraFiles = []*os.File{theirs}
		w.acks.Go(func() {
			defer ours.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := ours.Read(buf)
				w.acked.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	var out io.Reader
	w.stdin, out = startChild(t, w.cmd, workerVar, string(told))
	if theirs != nil {
		theirs.Close()
	}
	t.Cleanup(func() { w.cmd.Process.Kill() })
	go func() {
		defer close(w.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var m message
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
				m = message{Event: "garbage", Err: lines.Text()}
			}
			w.mu.Lock()
			w.seen = append(w.seen, m)
			w.mu.Unlock()
			select {
			case w.came <- struct{}{}:
			default:
			}
		}
	}()
	return w
}

// startOwner starts an owner in another process, and returns a guest of it, too.
func startOwner(t *testing.T) (path string, owner *worker, guest *Limiter) {
	t.Helper()
	path = filePath(t)
	owner = startWorker(t, workerOptions{Path: path, Limit: whole, ID: "a"}, false)
	owner.waitFor("owner", 1)
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: whole}})
	return path, owner, openOn(t, path, limits, nil)
}

// messages returns what the worker has said.
func (w *worker) messages() []message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// waitFor waits until the worker has said something for the nth time.
func (w *worker) waitFor(event string, nth int) message {
	w.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		n := 0
		for _, m := range w.messages() {
			if m.Event == event {
				if n++; n == nth {
					return m
				}
			}
			if m.Event == "done" && event != "done" {
				w.t.Fatalf("it ended instead of %q: %+v", event, m)
			}
		}
		select {
		case <-w.came:
		case <-timeout:
			w.t.Fatalf("%q came less than %d times: %+v", event, nth, w.messages())
		}
	}
}

// isOwner reports whether the worker is the owner, by its last message about its
// role.
func (w *worker) isOwner() bool {
	owner := false
	for _, m := range w.messages() {
		switch m.Event {
		case "owner":
			owner = true
		case "guest", "lost":
			owner = false
		}
	}
	return owner
}

// stop ends the worker, and returns its last message.
func (w *worker) stop() message {
	w.t.Helper()
	require.NoError(w.t, w.stdin.Close())
	return w.end()
}

func (w *worker) end() message {
	w.t.Helper()
	select {
	case <-w.ended:
	case <-time.After(30 * time.Second):
		w.t.Fatalf("it does not end: %+v", w.messages())
	}
	w.acks.Wait()
	require.NoError(w.t, w.cmd.Wait())
	all := w.messages()
	require.NotEmpty(w.t, all)
	last := all[len(all)-1]
	require.Equal(w.t, "done", last.Event)
	return last
}

// kill ends the process without warning.
func (w *worker) kill() {
	w.t.Helper()
	require.NoError(w.t, w.cmd.Process.Kill())
	<-w.ended
	w.acks.Wait()
	w.cmd.Wait()
}

// spentOf opens the file, and returns the tokens that a bucket lacks.
func spentOf(t *testing.T, path, id string, limit stint.Limit) int64 {
	t.Helper()
	limits := newLimits(t, stint.Names{perID: {Label: "PerID", Limit: limit}})
	l := openAlone(t, path, limits, nil)
	defer l.Close()
	d := check(t, l, perID.Key(id))
	return int64(d.ResetAfter / limit.Interval())
}

func median(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[len(of)/2]
}
