package hostlimit

import (
	"net"
	"runtime"
	"sync"
	"time"
)

const (
	frameTime  = 5 * time.Second
	bufferSize = 32 << 10
)

// outbox writes frames to a connection. One goroutine at a time writes the
// frames of all, so frames that come together share a system call.
type outbox struct {
	nc *stream

	mu         sync.Mutex
	sent       sync.Cond // signalled after each write
	buf, spare []byte
	writing    bool
	err        error
}

func newOutbox(nc net.Conn) *outbox {
	o := &outbox{nc: newStream(nc)}
	o.sent.L = &o.mu
	return o
}

// add appends a frame without writing it.
func (o *outbox) add(p op, id uint32, f func([]byte) []byte) {
	o.mu.Lock()
	if o.err == nil {
		o.buf = appendFrame(o.buf, p, id, f)
	}
	o.mu.Unlock()
}

// send appends a frame, and writes it unless another goroutine does. It waits
// while the other has much to write. An error says that the frame was not sent.
func (o *outbox) send(p op, id uint32, f func([]byte) []byte) error {
	return o.post(p, id, false, f)
}

// post is send. If alone is set, no other goroutine is about to send.
func (o *outbox) post(p op, id uint32, alone bool, f func([]byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waitLocked()
	if o.err != nil {
		return o.err
	}
	o.buf = appendFrame(o.buf, p, id, f)
	o.writeLocked(alone)
	return nil
}

// wait waits while another goroutine has much to write.
func (o *outbox) wait() {
	o.mu.Lock()
	o.waitLocked()
	o.mu.Unlock()
}

func (o *outbox) waitLocked() {
	for o.err == nil && o.writing && len(o.buf) > maxFrame {
		o.sent.Wait()
	}
}

// flush writes the frames that add has appended. If alone is set, no other
// goroutine is about to send.
func (o *outbox) flush(alone bool) {
	o.mu.Lock()
	o.writeLocked(alone)
	o.mu.Unlock()
}

func (o *outbox) writeLocked(alone bool) {
	if o.writing {
		return
	}
	o.writing = true
	if !alone {
		o.mu.Unlock()
		runtime.Gosched() // others that are about to send share the system call
		o.mu.Lock()
	}
	for len(o.buf) > 0 && o.err == nil {
		b := o.buf
		o.buf = o.spare[:0]
		o.mu.Unlock()
		_, err := o.nc.Write(b)
		o.mu.Lock()
		if o.spare = b[:0]; cap(b) > maxFrame {
			o.spare = nil
		}
		if err != nil {
			o.failLocked(err)
		}
		o.sent.Broadcast()
	}
	o.writing = false
}

// failLocked ends the connection.
func (o *outbox) failLocked(err error) {
	if o.err == nil {
		o.err = err
		o.buf = nil
		o.nc.Close()
		o.sent.Broadcast()
	}
}

// close ends the connection.
func (o *outbox) close(err error) {
	o.mu.Lock()
	o.failLocked(err)
	o.mu.Unlock()
}
