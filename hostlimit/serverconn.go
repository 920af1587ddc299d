package hostlimit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

const (
	maxBusy         = 1024 // calls of one guest that wait for the disk
	maxIdle         = 128  // goroutines of one guest that wait for a call
	maxWaits        = 1024 // calls of one guest that wait for a turn
	maxReservations = 1024
)

var errTooMany = errors.New("hostlimit: too many requests of one process wait")

// serverConn is the owner's side of one guest.
type serverConn struct {
	server *Server
	nc     net.Conn
	out    *outbox
	names  []named

	busy    chan struct{} // a place for each call in a goroutine
	idle    chan struct{} // a place for each goroutine without a call
	calls   chan func()   // for the idle goroutines; closed by serve
	running sync.WaitGroup
	ctx     context.Context // ends with the connection
	end     context.CancelFunc

	reqs []stint.Request // of the reader, which reuses it
	ds   []stint.Decision

	mu      sync.Mutex
	leaving bool
	waits   map[uint32]context.CancelFunc
	places  map[int64]stint.Reservation
	last    int64
}

func newServerConn(s *Server, nc net.Conn) *serverConn {
	c := &serverConn{
		server: s, nc: nc, out: newOutbox(nc), busy: make(chan struct{}, maxBusy),
		idle: make(chan struct{}, maxIdle), calls: make(chan func()),
		waits: make(map[uint32]context.CancelFunc), places: make(map[int64]stint.Reservation),
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// refuse answers the hello of a guest that is not admitted.
func (c *serverConn) refuse(err error) {
	if errors.Is(err, errClosing) {
		c.out.send(opBye, 0, nil)
	} else {
		c.out.send(opReply, 0, func(b []byte) []byte { return appendError(append(b, replyError), err) })
	}
	c.out.close(err)
}

// serve answers a guest until the connection ends.
func (c *serverConn) serve() {
	f := newFrames(c.nc)
	err := c.hello(f)
	for handled := 0; err == nil; {
		var next frame
		if next, err = f.next(); err == nil {
			err = c.handle(next)
			handled++
		}
		if !f.buffered() {
			f.nc.spin = handled == 1 && len(c.busy) == 0
			c.out.flush(f.nc.spin)
			handled = 0
		}
		c.out.wait() // reads no more from a guest that reads too slowly
	}
	c.server.remove(c)
	c.out.close(err)
	c.end()
	close(c.calls)
	c.mu.Lock()
	places := c.places
	c.places = nil
	leaving := c.leaving
	c.mu.Unlock()
	for _, place := range places {
		if !leaving { // if the owner closes, the turn stays the guest's
			place.Cancel()
		}
	}
	c.running.Wait()
	if !leaving && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.server.tell(Event{Kind: GuestRefused, Err: err})
	}
}

// hello answers the first frame.
func (c *serverConn) hello(f *frames) error {
	c.nc.SetReadDeadline(time.Now().Add(frameTime))
	first, err := f.next()
	if err != nil {
		return err
	}
	c.nc.SetReadDeadline(time.Time{})
	r := &first.body
	for i := range len(magic) {
		if r.byte() != magic[i] {
			return fmt.Errorf("%w: not a hello", errMessage)
		}
	}
	theirs := r.byte()
	if first.op == opHello && theirs != version {
		err = fmt.Errorf("%w: the guest has version %d of the protocol, the owner %d", ErrRefused, theirs, version)
	} else if c.names = r.names(); first.op != opHello || r.end() != nil {
		return fmt.Errorf("%w: not a hello", errMessage)
	} else {
		err = mismatch(c.names, c.server.limiter.Limits().Names())
	}
	if err != nil {
		c.fail(first.id, err)
		return err
	}
	return c.out.send(opReply, first.id, func(b []byte) []byte {
		b = binary.AppendVarint(append(b, replyOK), int64(os.Getpid()))
		b = binary.AppendVarint(b, c.server.began.UnixNano())
		b = binary.AppendVarint(b, c.server.limiter.Now().UnixNano())
		return appendNames(b, namedOf(c.server.limiter.Limits().Names()))
	})
}

// leave tells the guest that the owner closes.
func (c *serverConn) leave() {
	c.mu.Lock()
	c.leaving = true
	waits := c.waits
	c.waits = nil
	c.mu.Unlock()
	for _, cancel := range waits {
		cancel()
	}
	c.out.send(opBye, 0, nil)
}

func (c *serverConn) isLeaving() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving
}

// reply answers a call. It writes the frame at once if now is set. Otherwise
// the reader writes it when it has nothing left to read.
func (c *serverConn) reply(id uint32, now bool, f func([]byte) []byte) {
	body := func(b []byte) []byte {
		b = append(b, replyOK)
		if f != nil {
			b = f(b)
		}
		return b
	}
	if now {
		c.out.send(opReply, id, body)
	} else {
		c.out.add(opReply, id, body)
	}
}

// fail answers a call with an error.
func (c *serverConn) fail(id uint32, err error) {
	c.out.send(opReply, id, func(b []byte) []byte {
		if errors.Is(err, stint.ErrClosed) || errors.Is(err, errMoved) {
			return append(b, replyNotDone)
		}
		return appendError(append(b, replyError), err)
	})
}

// run runs a call that may wait, in another goroutine.
func (c *serverConn) run(id uint32, f func() (func([]byte) []byte, error)) {
	c.busy <- struct{}{}
	call := func() {
		if body, err := f(); err != nil {
			c.fail(id, err)
		} else {
			c.reply(id, true, body)
		}
		<-c.busy
	}
	select {
	case c.calls <- call:
	default:
		c.running.Go(func() { c.work(call) })
	}
}

// work runs a call, and then others. Goroutines are reused because the stack of
// a new one is too small for a decision, and would be copied to a larger one.
func (c *serverConn) work(call func()) {
	for call != nil {
		call()
		select {
		case c.idle <- struct{}{}:
		default:
			return
		}
		call = <-c.calls
		<-c.idle
	}
}

// handle carries out a call. An error ends the connection.
func (c *serverConn) handle(f frame) error {
	r, id := &f.body, f.id
	if f.op == opPing {
		if err := r.end(); err != nil {
			return err
		}
		c.reply(id, false, appendInt(c.server.limiter.Now().UnixNano()))
		return nil
	}
	if f.op != opAbort && c.isLeaving() {
		c.fail(id, errMoved)
		return nil
	}
	l := c.server.limiter
	switch f.op {
	case opTogether, opEach, opRefund:
		return c.decide(f)
	case opWait:
		return c.wait(f)
	case opReserve:
		req := r.request()
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (func([]byte) []byte, error) { return c.reserve(req) })
	case opDelay, opCancel:
		place := r.int()
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (func([]byte) []byte, error) { return c.place(f.op, place) })
	case opAbort:
		c.mu.Lock()
		cancel := c.waits[id]
		c.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return r.end()
	case opBucket:
		key := r.key()
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (body func([]byte) []byte, err error) {
			var k stint.Bucket
			err = c.declared(func() error { k, err = l.Bucket(key); return err })
			return func(b []byte) []byte { return appendBucket(b, &k) }, err
		})
	case opHold:
		key, until := r.key(), time.Unix(0, r.int())
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (func([]byte) []byte, error) {
			return nil, c.declared(func() error { return l.Hold(key, until) })
		})
	case opReset:
		var keys []stint.Key
		for range r.uint(maxReqs) {
			keys = append(keys, r.key())
		}
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (func([]byte) []byte, error) {
			return nil, c.declared(func() error { return l.Reset(keys...) })
		})
	case opBuckets:
		name := stint.Name(r.uint(1<<16 - 1))
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (func([]byte) []byte, error) { return nil, c.buckets(id, name) })
	case opHeld:
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (func([]byte) []byte, error) { return nil, c.held(id) })
	case opFlush, opHealth, opStats, opSnapshot:
		if err := r.end(); err != nil {
			return err
		}
		c.run(id, func() (func([]byte) []byte, error) { return c.whole(f.op, id) })
	default:
		return fmt.Errorf("%w: op %d", errMessage, f.op)
	}
	return nil
}

// declared makes a call. If it fails because the owner does not declare a Name
// of the guest, declared adds the guest's Names and repeats the call.
func (c *serverConn) declared(call func() error) error {
	err := call()
	if errors.Is(err, stint.ErrUnknownName) && c.names != nil {
		if err := c.server.declare(c.names); err != nil {
			return err
		}
		err = call()
	}
	return err
}

// decide carries out requests. The reader itself answers those that wait for no
// commit.
func (c *serverConn) decide(f frame) error {
	c.reqs = f.body.requests(c.reqs[:0])
	if err := f.body.end(); err != nil {
		return err
	}
	reqs := c.reqs
	durable := false
	for i := range reqs {
		durable = durable || mayCommit(reqs[i].Limit)
	}
	if durable {
		reqs = append([]stint.Request(nil), reqs...)
		o, id := f.op, f.id
		c.run(id, func() (func([]byte) []byte, error) { return c.decision(o, reqs, make([]stint.Decision, len(reqs))) })
		return nil
	}
	for len(c.ds) < len(reqs) {
		c.ds = append(c.ds, stint.Decision{})
	}
	body, err := c.decision(f.op, reqs, c.ds[:len(reqs)])
	if err != nil {
		c.fail(f.id, err)
	} else {
		c.reply(f.id, false, body)
	}
	return nil
}

// mayCommit reports whether a request with this limit may wait for a commit. A
// level that is left out is the owner's.
func mayCommit(l stint.Limit) bool {
	return l.Durability >= stint.Leased || l.Durability == 0 && l != stint.Unlimited && l != stint.Blocked
}

func (c *serverConn) decision(o op, reqs []stint.Request, ds []stint.Decision) (func([]byte) []byte, error) {
	l := c.server.limiter
	var d stint.Decision
	var err error
	switch o {
	case opTogether:
		err = c.declared(func() error { d, err = l.SpendTogether(reqs, ds); return err })
	case opRefund:
		err = c.declared(func() error { d, err = l.RefundAll(reqs...); return err })
		ds = nil
	default:
		return c.each(reqs, ds)
	}
	return func(b []byte) []byte {
		b = appendDecision(b, &d, reqs)
		for i := range ds {
			b = appendDecision(b, &ds[i], reqs[i:i+1])
		}
		return b
	}, err
}

// each decides each request by itself, and answers each with its own error.
func (c *serverConn) each(reqs []stint.Request, ds []stint.Decision) (func([]byte) []byte, error) {
	errs := make([]error, len(reqs))
	err := c.server.limiter.SpendEach(reqs, ds)
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // one error for each request without a decision
		of := joined.Unwrap()
		for i := range ds {
			if ds[i] == (stint.Decision{}) && len(of) > 0 {
				errs[i], of = errors.Unwrap(of[0]), of[1:]
			}
			if errors.Is(errs[i], stint.ErrUnknownName) {
				errs[i] = c.declared(func() (err error) { ds[i], err = c.server.limiter.SpendAll(reqs[i]); return err })
			}
		}
	}
	return func(b []byte) []byte {
		for i := range ds {
			if errs[i] != nil {
				b = appendError(append(b, replyError), errs[i])
			} else {
				b = appendDecision(append(b, replyOK), &ds[i], reqs[i:i+1])
			}
		}
		return b
	}, nil
}
