package hostlimit

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// frame is a received frame. Its body is valid until the next frame.
type frame struct {
	op   op
	id   uint32
	body body
}

// frames reads frames from a connection.
type frames struct {
	nc  *stream
	r   *bufio.Reader
	buf []byte
}

func newFrames(nc net.Conn) *frames {
	s := newStream(nc)
	return &frames{nc: s, r: bufio.NewReaderSize(s, bufferSize)}
}

// buffered reports whether a whole frame is in the buffer.
func (f *frames) buffered() bool {
	if f.r.Buffered() < 4 {
		return false
	}
	head, _ := f.r.Peek(4)
	return f.r.Buffered()-4 >= int(binary.BigEndian.Uint32(head))
}

// next returns the next frame, which must end within frameTime once it begins.
func (f *frames) next() (frame, error) {
	late := false
	if f.r.Buffered() == 0 {
		if _, err := f.r.Peek(1); err != nil {
			return frame{}, err
		}
	}
	if !f.buffered() {
		late = true
		f.nc.SetReadDeadline(time.Now().Add(frameTime))
	}
	var head [headerLen]byte
	if _, err := io.ReadFull(f.r, head[:4]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < headerLen-4 || n > maxFrame {
		return frame{}, fmt.Errorf("%w: a frame of %d bytes, want %d to %d", errMessage, n, headerLen-4, maxFrame)
	}
	if _, err := io.ReadFull(f.r, head[4:]); err != nil {
		return frame{}, err
	}
	n -= headerLen - 4
	var b []byte
	if int(n) <= f.r.Buffered() {
		b, _ = f.r.Peek(int(n))
		f.r.Discard(int(n))
	} else {
		if cap(f.buf) < int(n) {
			f.buf = make([]byte, n)
		}
		b = f.buf[:n]
		if _, err := io.ReadFull(f.r, b); err != nil {
			return frame{}, err
		}
	}
	if late {
		f.nc.SetReadDeadline(time.Time{})
	}
	return frame{op(head[4]), binary.BigEndian.Uint32(head[5:]), body{b: b}}, nil
}
