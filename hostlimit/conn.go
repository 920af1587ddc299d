package hostlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
)

// errMoved says that a call was not carried out, because its owner is going or
// gone.
var errMoved = wire.ErrNotDone

var errHungUp = errors.New("the process at the socket has hung up")

const (
	// abortTime is how long a call whose context has ended waits for the owner's
	// last word.
	abortTime = 100 * time.Millisecond

	// drainTime is how long Close waits for calls under way.
	drainTime = 250 * time.Millisecond

	// crowd is how many calls under way are many: then a frame waits until other
	// goroutines have run, so that one write sends the frames of many. A guest with
	// 64 callers makes 1.6 times as many decisions that way, and 1.2 to 1.3 times as
	// many beside two and four computing processes. At synced, the owner's answers
	// that wait in the same way make 1.3 times as many. With few callers there is
	// nothing to gain.
	crowd = 8

	// watchSteps is how many steps of watch the owner may be silent for.
	watchSteps = 4
)

// conn is a guest's connection to an owner. One goroutine at a time reads the
// answers of all calls: a caller that is alone reads its own, because waking it
// takes longer than the decision: it waits 22 µs in place of 33, on an idle machine
// and beside computing processes. Otherwise, and while there is no call, read does.
// Another goroutine watches whether the owner is alive.
type conn struct {
	place   place // of the owner; zero if dialConn has not made the connection
	nc      net.Conn
	out     *wire.Outbox
	frames  *wire.Reader
	timeout time.Duration            // for a sign of life
	lost    func(c *conn, err error) // called once, when calls are no longer possible

	welcome wire.Welcome

	base  time.Time
	heard atomic.Bool   // a frame has come since watch has looked
	busy  atomic.Bool   // the reader hands over a part of a copy
	slots chan struct{} // a place for each call under way except Waits
	turn  chan struct{} // receives a value if read is to read
	quit  chan struct{} // closed when the connection is over

	mu      sync.Mutex
	reading bool  // a goroutine reads, or turn has a value
	lone    bool  // a caller has read since read has looked
	offset  int64 // of the owner's clock from base
	calls   map[uint32]*pending
	last    uint32
	err     error // why the connection is over; nil before that
	leaving bool  // no more calls: the owner or this process closes
}

// pending is a call that waits for its answer.
type pending struct {
	*wire.Call
	answer    []byte     // its parts so far
	done      chan error // receives one value
	reads     bool       // the caller reads the answer
	crowd     bool       // many calls are under way
	abandoned bool       // the caller is gone
}

// dialConn connects to the owner of a file.
func dialConn(
	p place, names stint.Names, timeout time.Duration, lost func(*conn, error),
) (*conn, error) {
	nc, err := p.dial(timeout)
	if err != nil {
		return nil, err
	}
	c, err := newConn(nc, names, timeout, lost)
	if err != nil {
		return nil, err
	}
	c.place = p
	return c, nil
}

// newConn makes nc a guest's connection: it says hello to the owner.
func newConn(
	nc net.Conn, names stint.Names, timeout time.Duration, lost func(*conn, error),
) (*conn, error) {
	c := &conn{
		nc: nc, out: wire.NewOutbox(nc), frames: wire.NewReader(nc), timeout: timeout, lost: lost,
		base: time.Now(), calls: make(map[uint32]*pending),
		slots: make(chan struct{}, maxBusy), turn: make(chan struct{}, 1), quit: make(chan struct{}), reading: true,
	}
	if err := c.hello(); err != nil {
		nc.Close()
		return nil, err
	}
	go c.read()
	go c.watch(time.Tick(max(1, timeout/watchSteps)))
	for _, part := range wire.Split(names) {
		if err := c.introduce(&wire.Call{Op: wire.OpDeclare, Names: part}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// introduce makes a call before the connection is used. After an error, which is
// ErrNoOwner if the owner goes or makes a removed file anew, the connection is over.
func (c *conn) introduce(call *wire.Call) error {
	err := c.do(context.Background(), call)
	if isAny(err, errMoved, ErrNoAnswer, stint.ErrGone) {
		err = fmt.Errorf("%w: %w", ErrNoOwner, cmp.Or(c.over(), err))
	}
	if err != nil {
		c.close()
	}
	return err
}

// hello greets the owner, and waits for its answer.
func (c *conn) hello() error {
	end := time.Now().Add(c.timeout)
	c.nc.SetWriteDeadline(end)
	defer c.nc.SetWriteDeadline(time.Time{})
	c.frames.SetDeadline(end)
	defer c.frames.SetDeadline(time.Time{})
	said, err := wire.AppendFrame(nil, wire.OpHello, 0, wire.WriteHello)
	if err != nil {
		return err
	}
	c.nc.Write(said) // if that fails, the owner has refused already, and has sent the reason
	f, err := c.frames.Next()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: the process at the socket does not answer: %w", ErrNoOwner, ErrNoAnswer)
	case err != nil:
		return fmt.Errorf("%w: %w: %w", ErrNoOwner, errHungUp, err)
	case f.Op == wire.OpBye:
		return fmt.Errorf("%w: the last one is closing", ErrNoOwner)
	}
	if err = wire.ErrMessage; f.Op == wire.OpReply {
		err = f.Body.Welcome(&c.welcome)
	}
	if errors.Is(err, wire.ErrMessage) {
		return fmt.Errorf("%w: %w", ErrNoOwner, err)
	}
	if err == nil {
		c.setClock(&c.welcome)
	}
	return err
}

// setClock notes what the owner's clock shows. w may have come late, such as
// when this process was stopped: the owner's clock showed w.Now between the ping
// and this moment. What is known of it stays if it agrees with that.
func (c *conn) setClock(w *wire.Welcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	least := w.Now.UnixNano() - int64(time.Since(c.base))
	if w.Asked == 0 {
		c.offset = least
		return
	}
	c.offset = min(max(c.offset, least), w.Now.UnixNano()-int64(w.Asked))
}

// ping asks the owner for its time, which is a sign of life, too.
func (c *conn) ping() {
	c.out.Send(wire.OpPing, 0, func(b *wire.Body) {
		now := time.Since(c.base)
		b.Ping(&now)
	})
}

// now returns the time by the owner's clock.
func (c *conn) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(0, c.offset+int64(time.Since(c.base)))
}

// do makes a call. The error is errMoved if the call was not carried out, and
// ErrNoAnswer if that is not known. If ctx ends, a Wait is over, and a spend no
// longer waits for its commit.
func (c *conn) do(ctx context.Context, call *wire.Call) error {
	switch {
	case call.Op == wire.OpNow:
		call.Time = c.now()
		return nil
	case call.Op == wire.OpSnapshot && c.place != (place{}):
		return c.copy(ctx, call)
	case call.Op == wire.OpWait:
		call.Within = -1
		if deadline, ok := ctx.Deadline(); ok {
			call.Within = max(0, time.Until(deadline))
		}
	}
	if call.Op != wire.OpWait {
		select {
		case c.slots <- struct{}{}:
		case <-c.quit:
			return errMoved
		}
	}
	p := &pending{Call: call, done: make(chan error, 1)}
	id, err := c.begin(p, call.Op == wire.OpSpend && !call.MayEnd)
	if err != nil {
		c.leaveSlot(call)
		return err
	}
	err = c.out.Add(call.Op, id, call.Arguments)
	if p.crowd {
		runtime.Gosched()
	}
	if c.out.Flush(); err != nil && c.forget(id, p) {
		c.leaveSlot(call)
		if errors.Is(err, wire.ErrTooLong) {
			return err
		}
		return errMoved
	}
	if p.reads {
		c.readFor(p)
	}
	ends := ctx.Done()
	if call.Ended { // the owner knows
		ends = nil
	}
	if ends == nil {
		err = <-p.done
	} else {
		select {
		case err = <-p.done:
		case <-ends:
			err = c.abort(id, p)
		}
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return c.endOf(ctx, call, err)
	case err == nil && call.Op == wire.OpReserve:
		t := &turn{conn: c, id: call.ID}
		t.at.Store(int64(time.Since(c.base) + call.Delay))
		call.Reservation = t
	}
	return err
}

// copy makes a connection of its own for a copy of the file, so that no other
// call waits for the caller's Writer. An owner that closes may refuse it a moment
// before it says goodbye here, and one whose socket was removed makes it anew.
func (c *conn) copy(ctx context.Context, call *wire.Call) error {
	for begun := time.Now(); c.over() == nil; {
		own, err := dialConn(c.place, nil, c.timeout, func(*conn, error) {})
		switch {
		case err == nil:
			own.place = place{}
			defer own.close()
			return own.do(ctx, call)
		case !errors.Is(err, ErrNoOwner) || errors.Is(err, ErrNoAnswer) || time.Since(begun) > c.timeout:
			return err
		}
		select {
		case <-c.quit:
		case <-time.After(2 * time.Millisecond):
		}
	}
	return errMoved
}

// turn is a reservation that the owner keeps.
type turn struct {
	conn *conn
	id   int64
	at   atomic.Int64 // by the last answer, since conn.base
}

func (t *turn) Delay() time.Duration {
	call := wire.Call{Op: wire.OpDelay, ID: t.id}
	if t.conn.do(context.Background(), &call) != nil {
		return max(0, time.Duration(t.at.Load())-time.Since(t.conn.base))
	}
	t.at.Store(int64(time.Since(t.conn.base) + call.Delay))
	return call.Delay
}

func (t *turn) Cancel() error {
	return t.conn.do(context.Background(), &wire.Call{Op: wire.OpCancel, ID: t.id})
}

// begin gives a call its number, and decides who reads the answer: the caller
// only if it may, because it then waits for nothing else.
func (c *conn) begin(p *pending, mayRead bool) (id uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.leaving {
		return 0, errMoved
	}
	if !c.reading {
		c.reading = true
		if p.reads = mayRead; p.reads {
			c.lone = true
		} else {
			c.turn <- struct{}{}
		}
	}
	for {
		c.last++
		if _, taken := c.calls[c.last]; !taken && c.last != 0 { // pings have 0
			c.calls[c.last] = p
			p.crowd = len(c.calls) >= crowd
			return c.last, nil
		}
	}
}

// leaveSlot makes space for another call, after the answer to this one: the owner
// may be busy with a call whose caller is gone.
func (c *conn) leaveSlot(call *wire.Call) {
	if call.Op != wire.OpWait {
		<-c.slots
	}
}

// forget removes a call that was not sent. It returns false if fail was faster.
func (c *conn) forget(id uint32, p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.reads {
		p.reads = false
		c.turn <- struct{}{}
	}
	_, waits := c.calls[id]
	delete(c.calls, id)
	return waits
}

// abort tells the owner that the context of a call has ended, and returns how
// the call ended. It does not wait for long: the owner may be stopped.
func (c *conn) abort(id uint32, p *pending) error {
	go c.out.Send(wire.OpAbort, id, nil)
	select {
	case err := <-p.done:
		return err
	case <-time.After(abortTime):
	}
	c.mu.Lock()
	_, waits := c.calls[id]
	if waits { // the caller goes on to use its Call
		left := *p.Call
		p.Call, p.abandoned = &left, true
	}
	c.mu.Unlock()
	if !waits { // the answer is there
		return <-p.done
	}
	return context.Canceled
}

// endOf returns the error of a call that the end of a context has ended. The
// owner reports Canceled if it was told so.
func (c *conn) endOf(ctx context.Context, call *wire.Call, err error) error {
	ended := ctx.Err()
	switch {
	case ended == nil && !errors.Is(err, context.Canceled):
		return err // the deadline is too early for the queue
	case ended == nil: // by close, or because the owner closes
		return stint.ErrClosed
	case call.Op == wire.OpWait && errors.Is(err, context.Canceled):
		return ended
	case call.Op == wire.OpSpend || call.Op == wire.OpEach:
		return fmt.Errorf("%w: the context ended before the commit: %w", stint.ErrNotDurable, ended)
	}
	return err
}

// over returns why no more calls can be made, or nil.
func (c *conn) over() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.leaving {
		return errMoved
	}
	return c.err
}

// loneTime is how long read leaves the reading to lone callers after the last
// one. Until then the guest notices that the owner closes only during a call.
const loneTime = 5 * time.Millisecond

// read hands over the frames that no caller reads, until the connection is over.
func (c *conn) read() {
	for c.readFor(nil) && c.awaitTurn() {
	}
}

// awaitTurn waits until read is to read. It returns false if the connection is
// over.
func (c *conn) awaitTurn() bool {
	for idle := false; !idle; {
		select {
		case <-c.quit:
			return false
		case <-c.turn:
			return true
		case <-time.After(loneTime):
		}
		c.mu.Lock()
		idle = !c.reading && !c.lone
		c.reading, c.lone = c.reading || idle, false
		c.mu.Unlock()
	}
	return true
}

// readFor hands over frames until p has its answer, or, if p is nil, until no
// call is under way. It returns false if the connection is over.
func (c *conn) readFor(p *pending) bool {
	for over := false; !over; {
		f, err := c.frames.Next()
		if err == nil {
			c.heard.Store(true)
			err = c.handle(f)
		}
		if err != nil {
			c.fail(err)
			return false
		}
		c.mu.Lock()
		c.reading = len(c.calls) > 0
		over = !c.reading
		if c.reading && p != nil && len(p.done) > 0 { // others wait
			c.turn <- struct{}{}
			over = true
		}
		c.mu.Unlock()
	}
	return true
}

// handle hands over a frame. An error ends the connection.
func (c *conn) handle(f *wire.Frame) error {
	switch f.Op {
	case wire.OpBye:
		return c.leave()
	case wire.OpReply, wire.OpPart:
	default:
		return wire.ErrMessage
	}
	c.mu.Lock()
	p := c.calls[f.ID]
	if p != nil && f.Op == wire.OpReply {
		delete(c.calls, f.ID)
	}
	strange := p != nil && f.Op == wire.OpPart && p.Op == wire.OpSpend
	over := c.leaving && len(c.calls) == 0
	c.mu.Unlock()
	switch {
	case strange: // a part of what has none
		return wire.ErrMessage
	case p == nil && f.ID == 0 && f.Op == wire.OpReply:
		var w wire.Welcome
		if f.Body.Welcome(&w) == nil {
			c.setClock(&w)
			if w.Asked == 0 { // the owner's clock has stepped; how long ago only an answer shows
				go c.ping()
			}
		}
	case p == nil: // it was not sent: the owner breaks the protocol
		return wire.ErrMessage
	case f.Op == wire.OpPart:
		c.part(p, f.Body.Rest())
	default:
		c.finish(p, &f.Body)
	}
	if over {
		return errMoved
	}
	return nil
}

// part keeps a part of an answer, or hands over a part of a copy.
func (c *conn) part(p *pending, b []byte) {
	if p.Op != wire.OpSnapshot {
		p.answer = append(p.answer, b...)
		return
	}
	c.busy.Store(true)
	p.Writer.Write(b) // which keeps its error
	c.busy.Store(false)
	c.heard.Store(true)
}

// finish reads the last part of an answer, and ends the call. If a caller that
// is gone got its turn in a queue, finish returns the tokens.
func (c *conn) finish(p *pending, last *wire.Body) {
	var err error
	last.Error(&err)
	c.leaveSlot(p.Call)
	if p.abandoned { // no caller reads the answer
		if p.Op == wire.OpWait && err == nil && p.ReadAnswer(last) == nil {
			req := p.Requests[0]
			req.Spent = p.Decision.At()
			go c.do(context.Background(), &wire.Call{Op: wire.OpRefund, Requests: []stint.Request{req}})
		}
		return
	}
	if err == nil {
		if len(p.answer) > 0 {
			last = wire.NewBody(append(p.answer, last.Rest()...))
		}
		err = p.ReadAnswer(last)
	}
	switch {
	case errors.Is(err, errMoved):
		err = errMoved
	case errors.Is(err, wire.ErrMessage):
		err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	p.done <- err
}

// leave notes that the owner closes. The calls under way get their answers.
func (c *conn) leave() error {
	c.mu.Lock()
	first := !c.leaving && c.err == nil
	c.leaving = true
	over := len(c.calls) == 0
	c.mu.Unlock()
	if first {
		c.lost(c, errMoved)
	}
	if over {
		return errMoved
	}
	return nil
}

// fail ends the connection. The calls under way return ErrNoAnswer, because they
// may have been carried out.
func (c *conn) fail(why error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = why
	calls := c.calls
	c.calls = nil
	lost := !c.leaving
	c.mu.Unlock()
	close(c.quit)
	if errors.Is(why, ErrNoAnswer) {
		go c.giveUp(why)
	} else {
		c.out.Close(why)
		why = fmt.Errorf("%w: %w", ErrNoAnswer, why)
	}
	for _, p := range calls {
		if !p.abandoned {
			p.done <- why
		}
	}
	if lost {
		c.lost(c, why)
	}
}

// giveUp ends the connection to an owner that does not answer. If the owner goes
// on later, it must not take this process for dead, and give the tokens of its
// reservations back: their turns will come all the same.
func (c *conn) giveUp(why error) {
	c.out.Send(wire.OpBye, 0, nil)
	c.out.Close(why)
}

// errClosedHere is why a connection is over that this process has closed.
var errClosedHere = errors.New("this Limiter was closed")

// close ends the connection for this process. Calls under way have drainTime
// to end, and those that wait in queues end at once.
func (c *conn) close() {
	c.mu.Lock()
	c.leaving = true
	under := len(c.calls)
	var waits []uint32
	for id, p := range c.calls {
		if p.Op == wire.OpWait {
			waits = append(waits, id)
		}
	}
	c.mu.Unlock()
	go func() {
		for _, id := range waits {
			c.out.Send(wire.OpAbort, id, nil)
		}
	}()
	if under > 0 {
		select {
		case <-c.quit:
		case <-time.After(drainTime):
		}
	}
	c.fail(errClosedHere)
}

// watch ends the connection if calls wait and the owner sends nothing, not even
// an answer to a ping. It counts its own steps: a process that was itself
// stopped takes only one of them.
func (c *conn) watch(step <-chan time.Time) {
	for silent := 0; ; {
		select {
		case <-c.quit:
			return
		case <-step:
		}
		c.mu.Lock()
		waits := len(c.calls) > 0
		c.mu.Unlock()
		if c.heard.Swap(false) || c.busy.Load() || !waits {
			silent = 0
			continue
		}
		if silent++; silent > watchSteps {
			c.fail(fmt.Errorf("%w for %v", ErrNoAnswer, c.timeout))
			return
		}
		go c.ping()
	}
}
