package hostlimit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// errMoved says that a call was not carried out, because its owner is going or
// gone.
var errMoved = errors.New("hostlimit: the owner is closing")

// conn is a guest's connection to an owner.
type conn struct {
	socket  string
	nc      net.Conn
	out     *outbox
	frames  *frames
	timeout time.Duration // for a sign of life

	pid   int
	began time.Time          // of the owner
	names []named            // of the owner
	lost  func(*conn, error) // called once, when calls are no longer possible

	heard atomic.Int64 // time of the owner's last frame, since base
	busy  atomic.Bool  // the reader handles a part of a reply
	base  time.Time

	reading sync.Mutex    // held by the goroutine that reads
	wake    chan struct{} // signals read

	mu      sync.Mutex
	offset  int64 // of the owner's clock from base
	calls   map[uint32]*call
	last    uint32
	err     error // why calls are no longer possible; nil before that
	leaving bool  // the owner or this process closes
	readers int   // calls that have read for themselves
	quit    chan struct{}
	closed  atomic.Bool // by this process
}

// call is a call that waits for its reply.
type call struct {
	done chan struct{}
	buf  []byte // the reply
	part func(*body)
	err  error
	sent int64 // time of sending, since base
}

var callPool = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// dialConn connects to the owner of a file.
func dialConn(socket string, names []named, timeout time.Duration, lost func(*conn, error)) (*conn, error) {
	nc, err := net.DialTimeout("unix", socket, timeout)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoOwner, err)
	}
	c, err := newConn(nc, names, timeout, lost)
	if c != nil {
		c.socket = socket
	}
	return c, err
}

// newConn makes nc a guest's connection: it says hello to the owner.
func newConn(nc net.Conn, names []named, timeout time.Duration, lost func(*conn, error)) (*conn, error) {
	c := &conn{
		nc: nc, out: newOutbox(nc), frames: newFrames(nc), timeout: timeout, base: time.Now(), lost: lost,
		calls: make(map[uint32]*call), quit: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	if err := c.hello(names); err != nil {
		nc.Close()
		return nil, err
	}
	go c.read()
	go c.watch()
	return c, nil
}

// hello introduces the guest, and waits for the owner's answer.
func (c *conn) hello(names []named) error {
	c.nc.SetDeadline(time.Now().Add(c.timeout))
	// Write fails if the owner has refused already, and has sent the reason.
	c.nc.Write(appendFrame(nil, opHello, 0, func(b []byte) []byte {
		return appendNames(append(append(b, magic...), version), names)
	}))
	f, err := c.frames.next()
	if err != nil {
		return fmt.Errorf("%w: the process at the socket does not answer: %w", ErrNoOwner, err)
	}
	c.nc.SetDeadline(time.Time{})
	if f.op == opBye {
		return fmt.Errorf("%w: the last one is closing", ErrNoOwner)
	}
	if f.op != opReply {
		return fmt.Errorf("%w: %w", ErrNoOwner, errMessage)
	}
	if code := f.body.byte(); code == replyError {
		return f.body.error()
	}
	c.pid = int(f.body.int())
	c.began = time.Unix(0, f.body.int())
	c.setClock(f.body.int())
	c.names = f.body.names()
	if f.body.end() != nil {
		return fmt.Errorf("%w: %w", ErrNoOwner, errMessage)
	}
	return nil
}

// setClock notes what the owner's clock shows.
func (c *conn) setClock(now int64) {
	c.mu.Lock()
	c.offset = now - int64(time.Since(c.base))
	c.mu.Unlock()
}

// now returns the time by the owner's clock.
func (c *conn) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(0, c.offset+int64(time.Since(c.base)))
}

// do makes a call. request appends its body, and reply reads the answer. part,
// which may be nil, reads each part before the answer. The error is errMoved if
// the call was not carried out, and ErrNoAnswer if that is not known.
func (c *conn) do(o op, request func([]byte) []byte, reply func(*body), part func(*body)) error {
	return c.doContext(context.Background(), o, request, reply, part)
}

// doContext is do for a call that the end of ctx aborts.
func (c *conn) doContext(ctx context.Context, o op, request func([]byte) []byte, reply func(*body),
	part func(*body)) error {
	call := callPool.Get().(*call)
	call.part, call.err, call.buf = part, nil, call.buf[:0]
	c.mu.Lock()
	if c.err != nil || c.leaving {
		c.mu.Unlock()
		callPool.Put(call)
		return errMoved
	}
	id := c.nextLocked()
	call.sent = int64(time.Since(c.base))
	c.calls[id] = call
	alone := len(c.calls) == 1
	c.mu.Unlock()
	if err := c.out.post(o, id, alone, request); err != nil {
		c.mu.Lock()
		_, waits := c.calls[id]
		delete(c.calls, id)
		c.mu.Unlock()
		if waits {
			callPool.Put(call)
			return errMoved
		}
	}
	if ctx.Done() == nil {
		c.readFor(call, alone)
	} else {
		c.wakeReader()
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		c.out.send(opAbort, id, nil)
		<-call.done
	}
	err := call.err
	if err == nil {
		r := body{b: call.buf}
		switch r.byte() {
		case replyOK:
			if reply != nil {
				reply(&r)
			}
			if r.end() != nil {
				err = fmt.Errorf("%w: %w", ErrNoAnswer, errMessage)
			}
		case replyNotDone:
			err = errMoved
		default:
			err = r.error()
		}
	}
	call.part = nil
	if cap(call.buf) > bufferSize {
		call.buf = nil
	}
	callPool.Put(call)
	return err
}

// isOver reports whether no more calls can be made.
func (c *conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil || c.leaving
}

// nextLocked returns a number that no call has. Pings have 0.
func (c *conn) nextLocked() uint32 {
	for {
		c.last++
		if _, taken := c.calls[c.last]; !taken && c.last != 0 {
			return c.last
		}
	}
}

// readFor reads frames until the reply to a call has come, unless another
// goroutine reads. So a caller that is alone wakes no goroutine.
func (c *conn) readFor(own *call, alone bool) {
	if !c.reading.TryLock() {
		return // the goroutine that reads hands over the reply
	}
	c.frames.nc.spin = alone
	for len(own.done) == 0 && c.next() {
	}
	for c.frames.buffered() && c.next() {
	}
	c.reading.Unlock()
	c.mu.Lock()
	c.readers++
	waits := len(c.calls) > 0
	c.mu.Unlock()
	if waits {
		c.wakeReader()
	}
}

// wakeReader makes read begin to read, for the replies that have not come.
func (c *conn) wakeReader() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// idleTime is how long read waits. If no call has read for itself in that time,
// read begins to read.
const idleTime = 5 * time.Millisecond

// read reads if no caller does. It notices that the owner closes or dies while
// there are no calls.
func (c *conn) read() {
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	readers := -1
	for {
		c.reading.Lock()
		c.frames.nc.spin = false
		for more := true; more; {
			if !c.next() {
				c.reading.Unlock()
				return
			}
			c.mu.Lock()
			more = len(c.calls) > 0 || c.frames.buffered()
			c.mu.Unlock()
		}
		c.reading.Unlock()
		for idle := false; !idle; {
			timer.Reset(idleTime)
			select {
			case <-c.quit:
				return
			case <-c.wake:
				idle = true
			case <-timer.C:
				c.mu.Lock()
				idle, readers = readers == c.readers, c.readers
				c.mu.Unlock()
			}
		}
	}
}

// next hands a frame to its call. It returns false if the connection is over.
func (c *conn) next() bool {
	f, err := c.frames.next()
	if err != nil {
		c.fail(fmt.Errorf("%w: %w", ErrNoAnswer, err))
		return false
	}
	c.heard.Store(int64(time.Since(c.base)))
	switch f.op {
	case opBye:
		c.leave()
	case opReply, opPart:
		c.mu.Lock()
		call := c.calls[f.id]
		if call != nil && f.op == opReply {
			delete(c.calls, f.id)
		}
		empty := c.leaving && len(c.calls) == 0
		c.mu.Unlock()
		switch {
		case call == nil: // the reply to a ping
			if f.op == opReply && f.id == 0 && f.body.byte() == replyOK {
				c.setClock(f.body.int())
			}
		case f.op == opPart:
			if call.part != nil {
				c.busy.Store(true)
				call.part(&f.body)
				c.busy.Store(false)
				c.heard.Store(int64(time.Since(c.base)))
			}
		default:
			call.buf = append(call.buf[:0], f.body.b...)
			call.done <- struct{}{}
		}
		if empty {
			c.fail(errMoved)
			return false
		}
	default:
		c.fail(fmt.Errorf("%w: %w", ErrNoAnswer, errMessage))
		return false
	}
	return true
}

// leave notes that the owner closes. The calls under way get their answers.
func (c *conn) leave() {
	c.mu.Lock()
	first := !c.leaving && c.err == nil
	c.leaving = true
	empty := len(c.calls) == 0
	c.mu.Unlock()
	if first {
		c.lost(c, errMoved)
	}
	if empty {
		c.fail(errMoved)
	}
}

// fail ends the connection, and with it the calls under way.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls := c.calls
	c.calls = nil
	tell := !c.leaving
	c.mu.Unlock()
	close(c.quit)
	c.out.close(err)
	for _, call := range calls {
		call.err = err
		call.done <- struct{}{}
	}
	if tell {
		c.lost(c, err)
	}
}

// close ends the connection for this process.
func (c *conn) close() {
	c.closed.Store(true)
	c.mu.Lock()
	c.leaving = true // so that fail does not call lost
	c.mu.Unlock()
	c.fail(stint.ErrClosed)
}

// watch ends the connection if calls wait and the owner sends nothing, not even
// a reply to a ping.
func (c *conn) watch() {
	ticker := time.NewTicker(c.timeout / 4)
	defer ticker.Stop()
	for {
		select {
		case <-c.quit:
			return
		case <-ticker.C:
		}
		now := int64(time.Since(c.base))
		c.mu.Lock()
		oldest := now
		for _, call := range c.calls {
			oldest = min(oldest, call.sent)
		}
		c.mu.Unlock()
		silent := time.Duration(now - max(oldest, c.heard.Load()))
		if c.busy.Load() {
			continue
		}
		if silent > c.timeout {
			c.fail(fmt.Errorf("%w for %v", ErrNoAnswer, c.timeout))
			return
		}
		if silent >= c.timeout/4 {
			go c.out.send(opPing, 0, nil)
		}
	}
}

// labels returns the labels that the owner declares.
func (c *conn) labels() map[stint.Name]string {
	labels := make(map[stint.Name]string, len(c.names))
	for _, n := range c.names {
		labels[n.name] = n.label
	}
	return labels
}

func appendInt(n int64) func([]byte) []byte {
	return func(b []byte) []byte { return binary.AppendVarint(b, n) }
}
