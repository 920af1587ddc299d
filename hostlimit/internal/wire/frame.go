package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	version   = 11
	magic     = "stint\x00"
	headerLen = 9

	// MaxFrame is the largest number of bytes after the length of a frame.
	MaxFrame = 256 << 10

	// PartSize is about the size of the parts of a long answer.
	PartSize = 32 << 10

	// FrameTime is the longest time from the first byte of a frame to its last.
	FrameTime = 5 * time.Second
)

// Op says what a frame is.
type Op uint8

// The frames that are not calls. OpHello, OpReply and OpBye keep their numbers: with
// them an owner refuses a guest of another version.
const (
	OpHello Op = iota + 1
	_          // up to version 6: Names of a guest
	OpReply    // the last frame of an answer
	OpPart     // of an answer: more follows
	OpAbort    // ends the context of the call with the same number
	OpPing     // the answer, which has the number 0, is a Welcome with the owner's time
	OpBye      // the owner closes, or the guest gives the owner up
)

// The calls.
const (
	OpSpend Op = iota + 16 // of all requests, or of none
	OpEach
	OpRefund
	OpBucket
	OpBuckets
	OpHold
	OpSetHold
	OpReset
	OpReserve
	OpDelay
	OpCancel
	OpWait
	OpDeclare // Names of the guest
	OpNames   // of the owner
	OpNumber
	OpFlush
	OpStats
	OpHealth
	OpSnapshot
	OpHeld
	OpNow // never sent: a guest knows the time
)

// ErrMessage says that the other side broke the protocol.
var ErrMessage = errors.New("hostlimit: malformed message")

// ErrTooLong says that a message is too long for a frame. It was not sent.
var ErrTooLong = errors.New("hostlimit: the message is too long")

// AppendFrame appends a frame whose body f writes. f may be nil. After ErrTooLong
// it has appended nothing.
func AppendFrame(b []byte, o Op, id uint32, f func(*Body)) ([]byte, error) {
	w := Body{b: b, writes: true}
	err := w.frame(o, id, f)
	return w.b, err
}

func (b *Body) frame(o Op, id uint32, f func(*Body)) error {
	begin := len(b.b)
	b.b = append(b.b, 0, 0, 0, 0, byte(o))
	b.b = binary.BigEndian.AppendUint32(b.b, id)
	if f != nil {
		f(b)
	}
	n := len(b.b) - begin - 4
	if n > MaxFrame {
		b.b = b.b[:begin]
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrTooLong, n, MaxFrame)
	}
	binary.BigEndian.PutUint32(b.b[begin:], uint32(n))
	return nil
}

// Frame is a frame that was received. It is valid until the next one is.
type Frame struct {
	Op   Op
	ID   uint32
	Body Body
}

// Reader reads frames from a connection.
type Reader struct {
	nc       net.Conn
	r        *bufio.Reader
	buf      []byte
	frame    Frame
	deadline time.Time
}

// NewReader returns a Reader of nc.
func NewReader(nc net.Conn) *Reader {
	return &Reader{nc: nc, r: bufio.NewReaderSize(nc, PartSize)}
}

// SetDeadline sets the time by which the next frames must end. The zero Time is none.
func (f *Reader) SetDeadline(t time.Time) {
	f.deadline = t
	f.nc.SetReadDeadline(t)
}

// Buffered reports whether a whole frame has been received already.
func (f *Reader) Buffered() bool {
	if f.r.Buffered() < 4 {
		return false
	}
	head, _ := f.r.Peek(4)
	return f.r.Buffered()-4 >= int(binary.BigEndian.Uint32(head))
}

// Next returns the next frame. Once its first byte has come, the frame must end
// within FrameTime, and by the deadline.
func (f *Reader) Next() (*Frame, error) {
	if f.r.Buffered() == 0 {
		if _, err := f.r.Peek(1); err != nil {
			return nil, err
		}
	}
	if !f.Buffered() {
		end := time.Now().Add(FrameTime)
		if f.deadline.IsZero() || end.Before(f.deadline) {
			f.nc.SetReadDeadline(end)
			defer f.nc.SetReadDeadline(f.deadline)
		}
	}
	head, err := f.r.Peek(4)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head))
	if n < headerLen-4 || n > MaxFrame {
		return nil, fmt.Errorf("%w: a frame of %d bytes, want %d to %d", ErrMessage, n, headerLen-4, MaxFrame)
	}
	if head, err = f.r.Peek(headerLen); err != nil {
		return nil, err
	}
	f.frame = Frame{Op: Op(head[4]), ID: binary.BigEndian.Uint32(head[5:])}
	f.r.Discard(headerLen)
	n -= headerLen - 4
	var b []byte
	if n <= f.r.Buffered() {
		b, _ = f.r.Peek(n)
		f.r.Discard(n)
	} else {
		if cap(f.buf) < n {
			f.buf = make([]byte, n)
		}
		b = f.buf[:n]
		if _, err := io.ReadFull(f.r, b); err != nil {
			return nil, err
		}
	}
	f.frame.Body.b = b
	return &f.frame, nil
}
