package hostlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/levels"
)

const (
	maxBusy         = 1024 // calls of one guest that are carried out
	maxWaits        = 4096 // calls of one guest that wait for a turn
	maxReservations = 4096
	fewReservations = 512
	maxNames        = 1 << 20 // bytes of Names that one guest adds
)

var errTooMany = fmt.Errorf("%w: too many requests of one process wait", ErrRefused)

// serverConn is the owner's side of one guest. A call that may wait is carried
// out in a goroutine of its own, so it holds up no other, and no answer to a
// ping. A decision that waits for no commit is carried out by the reader itself: with
// a goroutine for each, 64 callers make 0.4 times as many decisions, and a lone one
// 0.7 times as many, and they take twice the processor time, however busy it is.
// If it takes long all the same, such as for a load from a slow disk, another
// goroutine goes on reading (relieve), and until that decision ends, each call
// has a goroutine.
type serverConn struct {
	server *Server
	nc     net.Conn
	out    *wire.Outbox
	ctx    context.Context // ends with the connection
	end    context.CancelFunc

	frames  *wire.Reader   // of the goroutine that reads
	over    chan error     // receives why the connection is over
	running sync.WaitGroup // calls and readers
	relief  *time.Timer    // calls relieve

	base    time.Time
	told    atomic.Int64 // offset of the owner's clock from base that the guest knows; 0 before its Welcome
	telling atomic.Bool  // a goroutine of Server.watch tells it

	newNames int // bytes of Names that the guest has added; guarded by server.declaring

	mu       sync.Mutex
	inside   bool  // the reader carries out a call
	calls    int64 // that the reader has begun to carry out
	seen     int64 // calls when relieve was here
	watched  bool  // relief is set
	stuck    bool  // a former reader still carries out a call
	parted   bool  // the guest has given the owner up, and lives on
	busy     int
	waits    int
	contexts map[uint32]ending           // of calls that OpAbort may end
	places   map[int64]stint.Reservation // nil once the guest is gone
	most     int                         // places before those whose turn has come are dropped
	last     int64
}

// ending ends the context of a call.
type ending struct {
	end  context.CancelFunc
	wait bool // of OpWait
}

func newServerConn(s *Server, nc net.Conn) *serverConn {
	c := &serverConn{
		server: s, nc: nc, out: wire.NewOutbox(nc), frames: wire.NewReader(nc), over: make(chan error, 1),
		base:     time.Now(),
		contexts: make(map[uint32]ending), places: make(map[int64]stint.Reservation), most: fewReservations,
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// serve answers a guest until the connection ends, or with the error of admit.
func (c *serverConn) serve(err error) {
	if err == nil {
		err = c.hello()
	}
	switch {
	case err == nil:
		c.running.Go(c.read)
		err = <-c.over
	case errors.Is(err, errMoved):
		c.out.Send(wire.OpBye, 0, nil)
	case errors.Is(err, ErrRefused):
		c.reply(new(wire.Call), err)
		c.out.Flush()
	}
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	c.out.Close(err)
	c.end()
	c.giveBack()
	if !c.server.isClosing() && isAny(err, wire.ErrMessage, ErrRefused, stint.ErrNameMismatch, os.ErrDeadlineExceeded) {
		tell(c.server.events, Event{Role: RoleOwner, Err: err})
	}
	c.running.Wait()
}

// read begins the calls that come, until the connection is over or another
// goroutine has taken over.
func (c *serverConn) read() {
	call := new(wire.Call)
	for {
		first := !c.frames.Buffered() // of the calls that have come together
		if first {
			c.out.Flush()
		}
		f, err := c.frames.Next()
		mine := true
		if first && err == nil && c.behind() {
			c.tell(wire.Welcome{})
		}
		if err == nil {
			call, mine, err = c.handle(f, call)
		}
		if err != nil || !mine {
			if c.out.Flush(); mine {
				c.over <- err
			}
			return
		}
	}
}

// reliefTime is how long the reader may carry out one call.
const reliefTime = 20 * time.Millisecond

// enter notes that the reader carries out a call. mu is held.
func (c *serverConn) enter() {
	c.inside = true
	c.calls++
	if c.watched {
		return
	}
	c.watched = true
	if c.relief == nil {
		c.relief = time.AfterFunc(reliefTime, c.relieve)
	} else {
		c.relief.Reset(reliefTime)
	}
}

// relieve starts another reader if the present one has been carrying out one
// call since the last look.
func (c *serverConn) relieve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside && c.calls == c.seen {
		c.inside, c.stuck = false, true
		c.running.Go(c.read)
	}
	if c.watched = c.inside; c.watched {
		c.seen = c.calls
		c.relief.Reset(reliefTime)
	}
}

// giveBack returns the tokens of the guest's reservations, unless the owner
// closes or the guest has given it up: then the turns stay the guest's. The last
// turns leave first, so that no gap stays at the end of a queue.
func (c *serverConn) giveBack() {
	c.mu.Lock()
	places := c.places
	c.places = nil
	keeps := c.parted || c.server.isClosing()
	c.mu.Unlock()
	if keeps {
		return
	}
	ids := slices.SortedFunc(maps.Keys(places), func(a, b int64) int { return cmp.Compare(b, a) })
	for _, id := range ids {
		places[id].Cancel()
	}
}

// hello answers the first frame.
func (c *serverConn) hello() error {
	c.frames.SetDeadline(time.Now().Add(wire.FrameTime))
	first, err := c.frames.Next()
	if err != nil {
		return err
	}
	c.frames.SetDeadline(time.Time{})
	if first.Op != wire.OpHello {
		return fmt.Errorf("%w: not a hello", wire.ErrMessage)
	}
	var w wire.Welcome
	if err = first.Body.Hello(); err == nil {
		w, err = c.server.welcome()
	}
	if err != nil {
		return err
	}
	return c.tell(w)
}

// clock returns the time of the owner's clock, and its offset from base.
func (c *serverConn) clock() (now time.Time, offset int64) {
	now = c.server.limiter.Now()
	return now, now.UnixNano() - int64(time.Since(c.base))
}

// behind reports whether the owner's clock has stepped since the guest has last
// been told the time.
func (c *serverConn) behind() bool {
	_, offset := c.clock()
	told := c.told.Load()
	return told != 0 && max(offset-told, told-offset) > int64(time.Millisecond)
}

// tell tells the guest the time, with what else a Welcome has, by the next Flush. The
// outbox is locked when it reads the clock, so the message with the latest time is
// the last one.
func (c *serverConn) tell(w wire.Welcome) error {
	return c.out.Add(wire.OpReply, 0, func(b *wire.Body) {
		now, offset := c.clock()
		c.told.Store(offset)
		w.Now = now
		b.Welcome(&w)
	})
}

// declare declares Names of the guest, as its first calls ask for and later its new
// limits: the owner keeps them over its own. The error is ErrNameMismatch if they do
// not fit, and ErrRefused if they are too many that the owner did not have.
func (c *serverConn) declare(names stint.Names) error {
	c.server.declaring.Lock()
	defer c.server.declaring.Unlock()
	ours := c.server.limiter.Limits()
	if err := wire.Mismatch(names, ours.Names()); err != nil {
		return err
	}
	size := c.newNames
	for name, spec := range names {
		if _, ok := ours.Spec(name); !ok {
			size += len(spec.Label) + 64
		}
	}
	if size > maxNames {
		return fmt.Errorf("%w: the guest declares more than %d bytes of Names that the owner does not have",
			ErrRefused, maxNames)
	}
	if err := c.server.limiter.Declare(names); err != nil {
		return err
	}
	c.newNames = size
	return nil
}

// leave tells the guest that the owner closes. Its Waits end, to join the queue
// of the next owner. Spends end with their commit.
func (c *serverConn) leave() {
	c.mu.Lock()
	var ends []context.CancelFunc
	for _, e := range c.contexts {
		if e.wait {
			ends = append(ends, e.end)
		}
	}
	c.mu.Unlock()
	for _, end := range ends {
		end()
	}
	c.out.Send(wire.OpBye, 0, nil)
}

// handle begins a call. An error ends the connection. If mine is false, another
// goroutine reads now. call has space for the call, and next for the one after it:
// new space for each takes a tenth to a fifth more processor time.
func (c *serverConn) handle(f *wire.Frame, call *wire.Call) (next *wire.Call, mine bool, err error) {
	switch f.Op {
	case wire.OpPing:
		var asked time.Duration
		f.Body.Ping(&asked)
		if err := f.Body.End(); err != nil {
			return call, true, err
		}
		return call, true, c.tell(wire.Welcome{Asked: asked})
	case wire.OpAbort:
		c.mu.Lock()
		e, ok := c.contexts[f.ID]
		c.mu.Unlock()
		if ok {
			e.end()
		}
		return call, true, f.Body.End()
	case wire.OpBye:
		c.mu.Lock()
		c.parted = true
		c.mu.Unlock()
		return call, true, f.Body.End()
	}
	if err := call.Read(f.Op, &f.Body); err != nil {
		return call, true, err
	}
	call.Number = f.ID
	ctx, here, err := c.begin(call)
	switch {
	case err != nil:
		c.reply(call, err)
	case here:
		c.carryOut(ctx, call, true)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.inside { // another reader has begun, which carries out nothing itself until this one has ended
			c.stuck = false
			return nil, false, nil
		}
		c.inside = false
	default:
		c.running.Go(func() { c.carryOut(ctx, call, false) })
		return new(wire.Call), true, nil
	}
	return call, true, nil
}

// begin counts a call, and gives it a context if OpAbort may end it. here says
// that the reader itself may carry it out.
func (c *serverConn) begin(call *wire.Call) (ctx context.Context, here bool, err error) {
	id := call.Number
	c.mu.Lock()
	defer c.mu.Unlock()
	_, taken := c.contexts[id]
	switch count, most := c.count(call.Op); {
	case c.server.isClosing():
		return nil, false, errMoved
	case *count >= most || taken:
		return nil, false, errTooMany
	default:
		*count++
	}
	ctx = c.ctx
	var end context.CancelFunc
	switch spends := call.Op == wire.OpSpend || call.Op == wire.OpEach; {
	case spends && !c.mayWait(call.Requests):
		here = !c.stuck
	case call.Op == wire.OpWait && call.Within >= 0:
		ctx, end = context.WithTimeout(ctx, call.Within)
	case call.Op == wire.OpWait || call.MayEnd:
		ctx, end = context.WithCancel(ctx)
	}
	if end != nil {
		c.contexts[id] = ending{end, call.Op == wire.OpWait}
		if call.Ended {
			end()
		}
	}
	if here {
		c.enter()
	}
	return ctx, here, nil
}

// count returns the count that a call belongs to, and its bound. mu is held.
func (c *serverConn) count(o wire.Op) (count *int, most int) {
	if o == wire.OpWait {
		return &c.waits, maxWaits
	}
	return &c.busy, maxBusy
}

// mayWait reports whether a spend may wait for a commit.
func (c *serverConn) mayWait(reqs []stint.Request) bool {
	limits, level := c.server.limiter.Limits(), c.server.limiter.Durability()
	return slices.ContainsFunc(reqs, func(q stint.Request) bool { return levels.MayWait(limits, &q, level) })
}

// carryOut carries out a call, and sends the answer. The reader flushes the answers
// of the calls that it carries out itself, which are here, together.
func (c *serverConn) carryOut(ctx context.Context, call *wire.Call, here bool) {
	id := call.Number
	err := c.do(ctx, call)
	if err == nil && !here {
		err = call.WriteLong(parts{c.out, id})
	}
	c.mu.Lock()
	count, _ := c.count(call.Op)
	*count--
	many := *count >= crowd
	e, ok := c.contexts[id]
	delete(c.contexts, id)
	c.mu.Unlock()
	if ok {
		e.end()
	}
	if here {
		c.reply(call, err)
		return
	}
	if c.behind() { // the call may have waited for long
		c.tell(wire.Welcome{})
	}
	if c.reply(call, err); many {
		runtime.Gosched()
	}
	c.out.Flush()
}

// reply answers a call, by the next Flush.
func (c *serverConn) reply(call *wire.Call, err error) {
	if errors.Is(err, stint.ErrClosed) { // the guest's own Limiter is not closed
		err = errMoved
	}
	c.out.Add(wire.OpReply, call.Number, func(b *wire.Body) {
		if b.Error(&err); err == nil {
			call.Answer(b)
		}
	})
}

// do carries out a call. Calls for reservations, and for a copy of the file,
// are the connection's own; others are the owner's.
func (c *serverConn) do(ctx context.Context, call *wire.Call) error {
	if call.Wrong != nil {
		return call.Wrong
	}
	switch call.Op {
	case wire.OpReserve:
		return c.reserve(call)
	case wire.OpDelay, wire.OpCancel:
		return c.place(call)
	case wire.OpSnapshot:
		return c.snapshot(call)
	case wire.OpDeclare:
		return c.declare(call.Names)
	}
	return c.server.do(ctx, call)
}

// snapshot sends a copy of the file. The owner makes one copy at a time, and
// none for a guest that is gone.
func (c *serverConn) snapshot(call *wire.Call) error {
	select {
	case c.server.snapshots <- struct{}{}:
		defer func() { <-c.server.snapshots }()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	call.Writer = parts{c.out, call.Number}
	return c.server.do(c.ctx, call)
}

// parts sends what is written to it as parts of the answer to a call.
type parts struct {
	out  *wire.Outbox
	call uint32
}

func (w parts) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, wire.PartSize) {
		err := w.out.Send(wire.OpPart, w.call, func(b *wire.Body) { b.Raw(part) })
		if err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// reserve takes a place in a queue, and keeps it for the guest.
func (c *serverConn) reserve(call *wire.Call) error {
	c.mu.Lock()
	if len(c.places) >= c.most { // long before there are too many: a hold would give all of them a Delay again
		maps.DeleteFunc(c.places, func(_ int64, place stint.Reservation) bool { return place.Delay() == 0 })
		c.most = min(max(fewReservations, 2*len(c.places)), maxReservations)
	}
	full := len(c.places) >= maxReservations
	c.mu.Unlock()
	if full {
		return errTooMany
	}
	if err := c.server.do(c.ctx, call); err != nil {
		return err
	}
	place := call.Reservation
	call.Delay = place.Delay()
	c.mu.Lock()
	c.last++
	call.ID = c.last
	open := c.places != nil
	if open {
		c.places[call.ID] = place // also if its turn has come: a hold may delay it
	}
	c.mu.Unlock()
	if !open { // the guest is gone
		place.Cancel()
	}
	return nil
}

// place answers a call for a reservation. A missing reservation has had its turn,
// or was canceled.
func (c *serverConn) place(call *wire.Call) error {
	c.mu.Lock()
	place, ok := c.places[call.ID]
	if ok && call.Op == wire.OpCancel {
		delete(c.places, call.ID)
	}
	c.mu.Unlock()
	switch {
	case !ok:
	case call.Op == wire.OpCancel:
		return place.Cancel()
	default:
		call.Delay = place.Delay()
	}
	return nil
}
