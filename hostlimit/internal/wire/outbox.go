package wire

import (
	"net"
	"sync"
	"time"
)

// Outbox writes frames to a connection. One goroutine at a time writes the
// frames of all, so frames that come together share a system call.
type Outbox struct {
	nc net.Conn

	mu      sync.Mutex
	sent    sync.Cond // signalled after each write
	buf     Body      // of frames that wait
	spare   []byte
	writing bool
	err     error
}

// NewOutbox returns an Outbox of nc.
func NewOutbox(nc net.Conn) *Outbox {
	o := &Outbox{nc: nc, buf: Body{writes: true}}
	o.sent.L = &o.mu
	return o
}

// Send sends a frame whose body f writes. If another goroutine writes, that one
// writes this frame too. Send waits while the other side has much to read. The
// error is ErrTooLong, or says that the connection is over; the frame was not
// sent.
func (o *Outbox) Send(p Op, id uint32, f func(*Body)) error {
	err := o.Add(p, id, f)
	o.Flush()
	return err
}

// Add is Send, but leaves the frame to the next Send or Flush.
func (o *Outbox) Add(p Op, id uint32, f func(*Body)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil && len(o.buf.b) > MaxFrame {
		if !o.writing {
			o.flushLocked()
			continue
		}
		o.sent.Wait()
	}
	if o.err != nil {
		return o.err
	}
	return o.buf.frame(p, id, f)
}

// Flush writes the frames that Add has left.
func (o *Outbox) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushLocked()
}

func (o *Outbox) flushLocked() {
	if o.writing || len(o.buf.b) == 0 {
		return
	}
	o.writing = true
	for len(o.buf.b) > 0 && o.err == nil {
		b := o.buf.b
		o.buf.b = o.spare[:0]
		o.mu.Unlock()
		o.nc.SetWriteDeadline(time.Now().Add(FrameTime))
		_, err := o.nc.Write(b)
		o.mu.Lock()
		if o.spare = b[:0]; cap(b) > MaxFrame {
			o.spare = nil
		}
		if err != nil {
			o.closeLocked(err)
		}
		o.sent.Broadcast()
	}
	o.writing = false
}

// Unsent returns the number of bytes that wait for the other side.
func (o *Outbox) Unsent() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf.b)
}

// Close ends the connection. Later calls of Send return err.
func (o *Outbox) Close(err error) {
	o.mu.Lock()
	o.closeLocked(err)
	o.mu.Unlock()
}

func (o *Outbox) closeLocked(err error) {
	if o.err == nil {
		o.err = err
		o.buf.b = nil
		o.nc.Close()
		o.sent.Broadcast()
	}
}
