package hostlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/testlength"
)

// slowStore is a store whose loads of ids that begin with "slow" wait.
type slowStore struct {
	stint.Store
	waiting atomic.Int64
	loads   <-chan struct{}
	goOn    func() // lets the loads go on
}

func (s *slowStore) Load(key stint.Key) (int64, error) {
	if strings.HasPrefix(key.ID, "slow") {
		s.waiting.Add(1)
		<-s.loads
	}
	return s.Store.Load(key)
}

func newSlowStore() *slowStore {
	loads := make(chan struct{})
	return &slowStore{Store: stint.NewMemStore(), loads: loads, goOn: sync.OnceFunc(func() { close(loads) })}
}

// serveSlow serves a Limiter with a slow store.
func serveSlow(t *testing.T) (path string, store *slowStore) {
	t.Helper()
	store = newSlowStore()
	l, err := stint.New(store, limitsWith(t, nil), nil)
	require.NoError(t, err)
	path = filePath(t)
	s, err := Serve(l, path, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		store.goOn() // a test that failed may have left them
		require.NoError(t, s.Close())
		require.NoError(t, l.Close())
	})
	return path, store
}

// heldSaves is a Store whose saves wait.
type heldSaves struct {
	stint.Store
	goOn chan struct{}
}

func (s heldSaves) Save(changes []stint.Change) error {
	<-s.goOn
	return s.Store.Save(changes)
}

// The owner waits for no commit of a call whose context had ended before it came.
func TestContextEndedBefore(t *testing.T) {
	store := heldSaves{stint.NewMemStore(), make(chan struct{})}
	l, err := stint.New(store, limitsWith(t, nil), &stint.Options{Durability: stint.Synced})
	require.NoError(t, err)
	defer l.Close()
	path := filePath(t)
	s, err := Serve(l, path, nil)
	require.NoError(t, err)
	defer s.Close()
	defer close(store.goOn)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = dialOn(t, path, nil, nil).Do(ctx, []stint.Request{perID.Key("a").Cost(1)}, nil)
	require.ErrorIs(t, err, stint.ErrNotDurable)
	require.ErrorIs(t, err, context.Canceled)
}

// While a disk does not answer, the owner does: no call of a guest ends with
// ErrNoAnswer, and calls that need no disk go on.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	path, store := serveSlow(t)
	const timeout = 2 * time.Second // the machine may be busy
	g := dialOn(t, path, nil, &Options{TakeoverTimeout: timeout})
	quick := perID.Key("quick")
	_, err := g.SpendAll(stint.Request{Key: quick, Cost: 1, Limit: stint.PerHour(1_000_000)})
	require.NoError(t, err)
	flushed := stint.PerHour(100)
	flushed.Durability = stint.Flushed
	const callers = 1200
	errs := make(chan error, callers)
	for i := range callers {
		go func() {
			_, err := g.SpendAll(stint.Request{Key: perID.Key(fmt.Sprint("slow", i)), Cost: 1, Limit: flushed})
			errs <- err
		}()
	}
	for store.waiting.Load() < maxBusy/2 { // the others wait in the guest for their places
		<-time.After(time.Millisecond)
	}
	other := dialOn(t, path, nil, &Options{TakeoverTimeout: timeout})
	for begun := time.Now(); time.Since(begun) < timeout*3/2; <-time.After(10 * time.Millisecond) {
		spend(t, other, quick, 0)
	}
	select {
	case err := <-errs:
		t.Fatal("a call ended while the disk was silent: ", err)
	default:
	}
	store.goOn()
	for range callers {
		require.NoError(t, <-errs)
	}
}

// The reader carries out only spends that wait for no commit, or it would make
// one commit for each of those that come together.
func TestWhatTheReaderCarriesOut(t *testing.T) {
	at := func(level stint.Durability, tokens int64) stint.Limit {
		limit := stint.PerHour(tokens)
		limit.Durability = level
		return limit
	}
	here := func(level, ofRequest stint.Durability) bool {
		limits := newLimits(t, stint.Names{perID: testNames[perID]})
		l := inMemory(t, stint.NewMemStore(), limits, &stint.Options{Durability: level})
		nc, _ := net.Pipe()
		c := newServerConn(&Server{limiter: l, ctx: t.Context()}, nc)
		reqs := []stint.Request{{Key: perID.Key("b"), Limit: stint.Unlimited}, {Key: perID.Key("a"), Limit: at(ofRequest, 90)}}
		_, each, err := c.begin(&wire.Call{Op: wire.OpEach, Requests: reqs})
		require.NoError(t, err)
		_, is, err := c.begin(&wire.Call{Op: wire.OpSpend, Number: 1, Requests: reqs, MayEnd: true})
		require.NoError(t, err)
		if c.relief != nil {
			c.relief.Stop()
		}
		require.Equal(t, each, is)
		require.Equal(t, !is, c.contexts[1].end != nil, "the guest may end its wait for the commit")
		return is
	}
	require.True(t, here(stint.Synced, stint.Flushed))
	require.False(t, here(stint.Flushed, stint.Leased))
	require.True(t, here(stint.Flushed, 0))
	require.False(t, here(stint.Synced, 0))
}

// A guest that closes does not know what became of the calls that it leaves. It
// closes a moment later if that lets them end.
func TestCloseWithCallsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSlowStore()
		owner := inMemory(t, store, limitsWith(t, nil), nil)
		defer store.goOn()
		ours, theirs := net.Pipe()
		go newServerConn(&Server{limiter: owner, ctx: t.Context()}, theirs).serve(nil)
		c, err := newConn(ours, nil, time.Minute, func(*conn, error) {})
		require.NoError(t, err)
		g := guestOn(t, c)
		slow, wait := make(chan error, 1), make(chan error, 1)
		go func() { slow <- errorOf(g.Spend(perID.Key("slow"), 1)) }()
		spend(t, g, perID.Key("b"), 100)
		go func() { wait <- errorOf(g.Wait(t.Context(), perID.Key("b").Cost(1))) }()
		for store.waiting.Load() == 0 || !waits(g, perID.Key("b")) {
			<-time.After(time.Millisecond)
		}
		begun := time.Now()
		require.NoError(t, g.Close())
		require.Equal(t, drainTime, time.Since(begun))
		require.ErrorIs(t, <-slow, ErrNoAnswer)
		require.ErrorIs(t, <-wait, stint.ErrClosed, "its tokens are back")
		require.ErrorIs(t, errorOf(g.Spend(perID.Key("b"), 1)), stint.ErrClosed)
	})
}

// The owner may still carry out a call whose caller is gone, because its context
// has ended. So the next call waits, and the owner does not refuse it.
func TestPlacesOfCallersThatAreGone(t *testing.T) {
	path, store := serveSlow(t)
	g := dialOn(t, path, nil, &Options{TakeoverTimeout: 20 * time.Second})
	spend(t, g, perID.Key("b"), 1)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	for range maxBusy {
		go func() {
			_, err := g.Do(ctx, []stint.Request{perID.Key("slow").Cost(1)}, nil)
			errs <- err
		}()
	}
	eventually(t, func() bool { return store.waiting.Load() == maxBusy }, "all wait for the disk")
	cancel()
	for range maxBusy {
		require.ErrorIs(t, <-errs, context.Canceled)
	}
	go func() {
		_, err := g.Spend(perID.Key("b"), 1)
		errs <- err
	}()
	select {
	case err := <-errs:
		t.Fatal("a call ended while the disk was silent: ", err)
	case <-time.After(20 * time.Millisecond):
	}
	store.goOn()
	require.NoError(t, <-errs)
}

func waits(g *Limiter, key stint.Key) bool {
	for h := range g.Held() {
		if h.Key == key && h.Waiting > 0 {
			return true
		}
	}
	return false
}

// deafOwner returns a connection to an owner that says hello and then nothing.
func deafOwner(t *testing.T, timeout time.Duration) *conn {
	c, err := connectTo(frame(wire.OpReply, 0, welcomeBody(wire.Welcome{PID: 1})), timeout)
	require.NoError(t, err)
	return c
}

// The end of a context ends a Wait, and a spend's wait for its commit, even if
// the owner is stopped.
func TestContextOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guestOn(t, deafOwner(t, time.Minute))
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, errorOf(g.Wait(ctx, perID.Key("a").Cost(1))), context.DeadlineExceeded)
		require.Equal(t, time.Second+abortTime, time.Since(begun))
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := g.Do(ctx, []stint.Request{perID.Key("a").Cost(1)}, nil)
		require.ErrorIs(t, err, stint.ErrNotDurable)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// welcomed returns a connection to an owner that only welcomes, the owner's end of
// it, and the frames that come there.
func welcomed(
	t *testing.T, timeout time.Duration, lost func(*conn, error),
) (c *conn, theirs net.Conn, came chan wire.Frame) {
	t.Helper()
	ours, theirs := net.Pipe()
	came = make(chan wire.Frame, 10)
	go eachFrame(theirs, func(f *wire.Frame) { came <- *f })
	go theirs.Write(frame(wire.OpReply, 0, welcomeBody(wire.Welcome{PID: 1})))
	c, err := newConn(ours, nil, timeout, lost)
	require.NoError(t, err)
	return c, theirs, came
}

// The answer to a hello has to end in time, also once a part of it has come.
func TestHalfAWelcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{time.Second, wire.FrameTime + time.Minute} {
			begun := time.Now()
			_, err := connectTo([]byte{0}, timeout)
			require.Equal(t, min(timeout, wire.FrameTime), time.Since(begun))
			require.ErrorIs(t, err, ErrNoOwner)
			require.ErrorIs(t, err, ErrNoAnswer)
		}
	})
}

// A hello has to end in time, also once a part of it has come.
func TestHalfAHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		time.AfterFunc(wire.FrameTime-time.Second, func() { theirs.Write([]byte{0}) })
		c := newServerConn(&Server{}, ours)
		defer c.end()
		begun := time.Now()
		require.ErrorIs(t, c.hello(), os.ErrDeadlineExceeded)
		require.Equal(t, wire.FrameTime, time.Since(begun))
	})
}

// If the turn of a Wait comes after its caller has given up, the guest returns
// the tokens.
func TestTurnOfACallerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, theirs, came := welcomed(t, time.Minute, func(*conn, error) {})
		g := guestOn(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, errorOf(g.Wait(ctx, perID.Key("a").Cost(3))), context.DeadlineExceeded)
		synctest.Wait()
		require.Equal(t, wire.OpHello, (<-came).Op)
		wait := <-came
		require.Equal(t, wire.OpWait, wait.Op)
		require.Equal(t, wire.OpAbort, (<-came).Op)
		turn := wire.Call{Op: wire.OpWait}
		turn.Decision.SetAt(time.Now().Add(-time.Minute))
		theirs.Write(answerFrame(wait.ID, turn))
		synctest.Wait()
		require.Len(t, came, 1)
		refund := <-came
		var of wire.Call
		require.NoError(t, of.Read(refund.Op, &refund.Body))
		require.Equal(t, wire.OpRefund, of.Op)
		require.Len(t, of.Requests, 1)
		require.True(t, turn.Decision.At().Equal(of.Requests[0].Spent), "not the tokens that have come back since")
		theirs.Write(frame(wire.OpReply, refund.ID, errorBody(stint.ErrQueueFull)))
	})
}

// An owner that is silent while calls wait is given up after the timeout.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guestOn(t, deafOwner(t, time.Second))
		time.Sleep(time.Hour) // without calls it may be silent
		begun := time.Now()
		require.ErrorIs(t, errorOf(g.Spend(perID.Key("a"), 1)), ErrNoAnswer)
		require.LessOrEqual(t, time.Since(begun), 1500*time.Millisecond)
		require.GreaterOrEqual(t, time.Since(begun), time.Second)
	})
}

// However long a process is stopped for, its ticker has one tick when it goes on.
// That is no silence of the owner.
func TestStoppedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go io.Copy(io.Discard, theirs)
		call := &pending{Call: &wire.Call{Op: wire.OpWait}, done: make(chan error, 1)}
		c := &conn{nc: ours, out: wire.NewOutbox(ours), timeout: time.Second, quit: make(chan struct{}),
			calls: map[uint32]*pending{1: call}, lost: func(*conn, error) {}}
		defer c.close()
		steps := make(chan time.Time)
		go c.watch(steps)
		for range 10 {
			time.Sleep(time.Hour)
			steps <- time.Now()
			synctest.Wait()
			require.Empty(t, call.done)
			c.heard.Store(true) // a frame that came before, or an answer to the ping
			steps <- time.Now()
		}
		for range watchSteps + 1 {
			require.Empty(t, call.done)
			steps <- time.Now()
			synctest.Wait()
		}
		require.ErrorIs(t, <-call.done, ErrNoAnswer)
	})
}

// News of the owner's clock may come late, such as after this process was
// stopped. The guest asks again, and an answer that comes late, too, leaves what
// agrees with it.
func TestLateClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		const ahead = 24 * time.Hour
		tell := func(late, asked time.Duration) {
			time.Sleep(2 * loneTime) // read reads
			now := time.Now().Add(ahead - late)
			theirs.Write(frame(wire.OpReply, 0, welcomeBody(wire.Welcome{Now: now, Asked: asked})))
			synctest.Wait()
		}
		came := make(chan time.Duration, 10)
		go eachFrame(theirs, func(f *wire.Frame) {
			if f.Op == wire.OpPing {
				var asked time.Duration
				f.Body.Ping(&asked)
				came <- asked
			}
		})
		go tell(ahead, 0)
		c, err := newConn(ours, nil, time.Minute, func(*conn, error) {})
		require.NoError(t, err)
		defer c.close()
		behind := func() time.Duration { return time.Now().Add(ahead).Sub(c.now()) }
		require.Equal(t, ahead, behind())
		tell(time.Hour, 0)
		require.Equal(t, time.Hour, behind())
		require.Len(t, came, 1)
		asked := <-came
		require.Equal(t, time.Since(c.base), asked)
		tell(0, asked)
		require.Zero(t, behind())
		time.Sleep(time.Hour)
		tell(time.Minute, asked)
		require.Zero(t, behind(), "the owner may have answered a minute ago")
		tell(3*time.Hour, time.Since(c.base))
		require.InDelta(t, 3*time.Hour, behind(), float64(2*loneTime), "its clock was set back")
		require.Empty(t, came)
	})
}

// A lone caller reads its own answer, and those of calls that join it. What it
// leaves, and what comes while there is no call, read hands over.
func TestWhoReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan error, 1)
		c, theirs, came := welcomed(t, time.Minute, func(_ *conn, err error) { lost <- err })
		send := func(o wire.Op, id uint32, f func(*wire.Body)) {
			require.NoError(t, errorOf(theirs.Write(frame(o, id, f))))
		}
		<-came // the hello
		g := guestOn(t, c)
		call := func(do func() error) (id uint32, over chan error) {
			over = make(chan error, 1)
			go func() { over <- do() }()
			synctest.Wait()
			return (<-came).ID, over
		}
		spend := func() error { _, err := g.Spend(perID.Key("a"), 1); return err }
		answer := func(id uint32, over chan error) {
			send(wire.OpReply, id, errorBody(stint.ErrQueueFull))
			require.ErrorIs(t, <-over, stint.ErrQueueFull)
			synctest.Wait()
		}
		reads := func() (lone, reading bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.lone, c.reading
		}
		for _, others := range []func() error{spend, g.Flush} {
			answer(call(spend)) // read by read, which waits for it
			_, reading := reads()
			require.False(t, reading)
			first, firstOver := call(spend)
			lone, _ := reads()
			require.True(t, lone)
			second, secondOver := call(others)
			third, thirdOver := call(others)
			answer(second, secondOver)
			answer(first, firstOver)
			fourth, fourthOver := call(others)
			answer(third, thirdOver)
			answer(fourth, fourthOver)
			answer(call(g.Flush)) // which never reads
			time.Sleep(2 * loneTime)
			synctest.Wait()
			lone, reading = reads()
			require.False(t, lone)
			require.True(t, reading, "read reads while there is no call")
		}
		send(wire.OpBye, 0, nil)
		require.ErrorIs(t, <-lost, errMoved)
	})
}

// between returns a Limiter with the backend b, which finds no other, and the backend
// of an owner.
func between(t *testing.T, b *backend) (l *Limiter, owner *backend) {
	t.Helper()
	o, err := (&Options{TakeoverTimeout: time.Second}).withDefaults()
	require.NoError(t, err)
	l = &Limiter{opts: o, changed: make(chan struct{}), closed: make(chan struct{})}
	l.methods = methods{l}
	l.limits.Store(declare(limitsWith(t, nil)))
	l.put(b)
	own := inMemory(t, stint.NewMemStore(), l.Limits(), nil)
	return l, &backend{limiter: own, server: &Server{limiter: own}}
}

// Calls wait for an owner for TakeoverTimeout, and anew after each owner that
// came and went.
func TestOwnersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, own := between(t, nil)
		gone := &backend{conn: &conn{err: errMoved, slots: make(chan struct{}, 1)}}
		done := make(chan error)
		go func() {
			_, err := l.Spend(perID.Key("a"), 1)
			done <- err
		}()
		change := func(b *backend) {
			synctest.Wait()
			l.mu.Lock()
			l.put(b)
			close(l.changed)
			l.changed = make(chan struct{})
			l.mu.Unlock()
		}
		for range 5 {
			time.Sleep(900 * time.Millisecond)
			change(gone)
		}
		time.Sleep(900 * time.Millisecond)
		change(own)
		require.NoError(t, <-done)
		l.put(nil)
		begun := time.Now()
		require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 1)), ErrNoOwner)
		require.Equal(t, time.Second, time.Since(begun))
	})
}

// A Wait that an owner leaves undone waits for the next owner, however long it has
// been in the queue.
func TestWaitAtOwnerThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, theirs, came := welcomed(t, time.Hour, func(*conn, error) {})
		defer c.close()
		l, own := between(t, &backend{conn: c})
		done := make(chan error, 1)
		go func() { done <- errorOf(l.Wait(t.Context(), perID.Key("a").Cost(1))) }()
		<-came // the hello
		wait := <-came
		require.Equal(t, wire.OpWait, wait.Op)
		<-time.After(time.Minute)
		theirs.Write(frame(wire.OpReply, wait.ID, errorBody(errMoved)))
		<-time.After(900 * time.Millisecond)
		synctest.Wait()
		require.Empty(t, done)
		l.put(own)
		close(l.changed)
		require.NoError(t, <-done)
	})
}

// An OnEvent that does not return holds up no decision, and no take-over.
func TestSlowOnEvent(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	goOn := make(chan struct{})
	owner := openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, &Options{OnEvent: func(Event) { <-goOn }})
	require.NoError(t, owner.Close())
	spend(t, guest, perID.Key("a"), 1)
	require.Equal(t, RoleOwner, guest.Role())
	close(goOn)
	require.NoError(t, guest.Close())
}

// The owner keeps nothing of a Wait with a deadline that is over.
func TestWaitsLeaveNothing(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, map[stint.Name]stint.Limit{perID: {Burst: 1 << 30, Count: 1000, Period: time.Second}})
	openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, nil)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	wait := func(n int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for range n {
			require.NoError(t, errorOf(guest.Wait(ctx, perID.Key("a").Cost(1))))
		}
	}
	wait(100)
	before := heap()
	n := testlength.Of(10_000, 4000)
	wait(n)
	require.Less(t, heap()-before, int64(60*n), "it was 120 bytes each")
}

// Any method may be called while a Limiter closes.
func TestCloseAtAnyInstant(t *testing.T) {
	t.Parallel()
	path, limits := filePath(t), limitsWith(t, nil)
	owner := openOn(t, path, limits, nil)
	key := perID.Key("a")
	for range testlength.Of(150, 15) {
		guest := openOn(t, path, limits, nil)
		fine := func(err error) {
			if err != nil && !isAny(err, stint.ErrClosed, ErrNoAnswer, ErrNoOwner, stint.ErrQueueFull) {
				t.Error(err)
			}
		}
		calls := []func(){
			func() { _, err := guest.Spend(key, 1); fine(err) },
			func() { _, err := guest.Bucket(key); fine(err) },
			func() {
				for _, err := range guest.Buckets(perID) {
					fine(err)
				}
			},
			func() {
				for range guest.Held() {
				}
			},
			func() { fine(guest.Stats().Err) },
			func() { _, err := guest.Snapshot(io.Discard); fine(err) },
			func() {
				p, err := guest.Reserve(key.Cost(1))
				if fine(err); err == nil {
					p.Delay()
					p.Cancel()
				}
			},
			func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if _, err := guest.Wait(ctx, key.Cost(1)); !errors.Is(err, context.DeadlineExceeded) {
					fine(err)
				}
			},
			func() { fine(guest.SetLimits(limits)) },
			func() { guest.Now() },
		}
		var all sync.WaitGroup
		for _, call := range calls {
			all.Go(func() {
				for range 20 {
					call()
				}
			})
		}
		for range rand.IntN(2000) {
			runtime.Gosched()
		}
		require.NoError(t, guest.Close())
		all.Wait()
	}
	require.NoError(t, owner.Health())
}

// Tens of thousands of Names fit, and the owner keeps none of a guest's that it
// has itself.
func TestManyNames(t *testing.T) {
	t.Parallel()
	count := testlength.Of(40_000, 20_000) // in more than one message
	names := make(stint.Names)
	for n := range count {
		names[stint.Name(n+1)] = stint.NameSpec{Label: fmt.Sprintf("Label %d", n+1), Limit: stint.PerHour(5)}
	}
	limits := newLimits(t, names)
	path := filePath(t)
	owner := openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, &Options{TakeoverTimeout: time.Minute}) // the hello is long
	require.Equal(t, RoleGuest, guest.Role())
	spend(t, guest, stint.Name(count).Key("a"), 1)
	require.Len(t, guest.Stats().Limits, count)
	for _, c := range connsOf(owner.now.Load().server) {
		require.Zero(t, c.newNames)
	}
}

// lastPlace is a place in a queue that notes when it is left.
type lastPlace struct {
	id   int64
	left *[]int64
}

func (p lastPlace) Delay() time.Duration { return time.Hour }
func (p lastPlace) Cancel() error {
	*p.left = append(*p.left, p.id)
	return nil
}

// The last turns of a guest leave first: a request that joins in between gets a
// place that is free, and not one at the end.
func TestGiveBack(t *testing.T) {
	c := &serverConn{server: &Server{ctx: t.Context()}, places: make(map[int64]stint.Reservation)}
	var left, want []int64
	for id := int64(100); id > 0; id-- {
		c.places[id] = lastPlace{id, &left}
		want = append(want, id)
	}
	c.giveBack()
	require.Equal(t, want, left)
}

// A place that was under way when its guest was lost goes back at once.
func TestReserveForLostGuest(t *testing.T) {
	lim, err := stint.New(stint.NewMemStore(), limitsWith(t, nil), nil)
	require.NoError(t, err)
	defer lim.Close()
	key := perID.Key("a")
	require.NoError(t, errorOf(lim.Spend(key, 100)))
	for _, lost := range []bool{true, false} {
		c := &serverConn{server: &Server{limiter: lim, ctx: t.Context()}, ctx: t.Context(), most: fewReservations}
		if !lost {
			c.places = make(map[int64]stint.Reservation)
		}
		require.NoError(t, c.reserve(&wire.Call{Op: wire.OpReserve, Requests: []stint.Request{key.Cost(1)}}))
		held := slices.Collect(lim.Held())
		require.Equal(t, lost, len(held) == 0)
	}
}

// A guest that dies leaves its queues, at the end first, so the place at the end is
// free again. Places of others stay, and no owner reports the guest as refused.
func TestGuestLeavesQueues(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	events := newRecorder()
	owner := openOn(t, path, limits, &Options{OnEvent: events.record})
	key := perID.Key("a")
	spend(t, owner, key, 100)
	next, guest := openOn(t, path, limits, nil), openOn(t, path, limits, nil)
	first := reserve(t, next, key.Cost(1))
	delay := first.Delay()
	waits := make(chan error)
	go func() { waits <- errorOf(guest.Wait(t.Context(), key.Cost(1))) }()
	queued := func() (n int) {
		for h := range owner.Held() {
			n = h.Waiting
		}
		return n
	}
	eventually(t, func() bool { return queued() == 2 }, "the other one waits, too")
	for range 1000 {
		require.NoError(t, errorOf(guest.Reserve(key.Cost(1))))
	}
	guest.now.Load().conn.nc.Close() // as if it were killed
	require.ErrorIs(t, <-waits, ErrNoAnswer)
	eventually(t, func() bool { return queued() <= 1 }, "it has left")
	require.Positive(t, first.Delay(), "the place of a guest that lives")
	require.LessOrEqual(t, reserve(t, owner, key.Cost(1)).Delay(), delay+time.Hour/100+time.Second)
	require.NoError(t, guest.Close())
	require.NoError(t, owner.Close())
	close(events.came)
	for e := range events.came {
		require.False(t, e.Role == RoleOwner && e.Err != nil, "%v", e.Err)
	}
}

// Spends share what earlier ones have left. Each gets its own answer, whatever
// becomes of the connection.
func TestAnswersOfSpends(t *testing.T) {
	t.Parallel()
	path, limits := filePath(t), limitsWith(t, map[stint.Name]stint.Limit{perID: {Burst: 1 << 19, Count: 1, Period: time.Hour}})
	openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, nil)
	const callers = 16
	var all sync.WaitGroup
	var over atomic.Int64
	for c := range callers {
		all.Go(func() {
			defer over.Add(1)
			key, left := perID.Key(fmt.Sprint("caller ", c)), int64(1<<19)
			unsure := int64(0) // tokens of calls without an answer; the owner may still read those
			for i := range int64(testlength.Of(10_000, 500)) {
				cost := 1 + i%7
				d, err := guest.Spend(key, cost)
				if errors.Is(err, ErrNoAnswer) {
					unsure += cost
					continue
				}
				left -= cost
				if late := left - d.Remaining; err != nil || d.Key != key || !d.Allowed || late < 0 || late > unsure {
					t.Errorf("%v, want %d left, or up to %d less, %v: %v", d, left, unsure, key, err)
					return
				}
				unsure -= left - d.Remaining
				left = d.Remaining
			}
		})
	}
	for over.Load() < callers {
		if b := guest.now.Load(); b != nil && b.conn != nil {
			b.conn.nc.Close()
		}
		for range rand.IntN(100_000) {
			runtime.Gosched()
		}
	}
	all.Wait()
}

// An owner that sends a part of an answer that has none loses its guest.
func TestPartOfASpend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, theirs, came := welcomed(t, time.Minute, func(*conn, error) {})
		<-came // the hello
		go func() { theirs.Write(frame(wire.OpPart, (<-came).ID, nil)) }()
		_, err := guestOn(t, c).Spend(perID.Key("a"), 1)
		require.ErrorIs(t, err, ErrNoAnswer)
		require.ErrorIs(t, err, wire.ErrMessage)
	})
}
