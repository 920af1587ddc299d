package hostlimit

import (
	"net"
	"sync/atomic"
	"time"
)

// spinTime is how long a read tries again before it sleeps. To wake a process
// takes longer than a decision.
const spinTime = 20 * time.Microsecond

// spinning is set while a goroutine spins. Only one spins at a time, so that the
// others have a processor.
var spinning atomic.Bool

// stream reads from a connection and writes to it. It has one reader and one
// writer at a time.
type stream struct {
	net.Conn
	direct       // tries without sleeping
	spin   bool  // the other side may answer at once; set by the reader
	misses uint8 // spins in a row that brought nothing
	skip   int   // reads that do not spin, because of the misses
}

func newStream(nc net.Conn) *stream {
	s := &stream{Conn: nc}
	s.direct.init(nc)
	return s
}

// Read is net.Conn.Read. If spin is set, it may spin before it sleeps.
func (s *stream) Read(p []byte) (int, error) {
	switch {
	case !s.spin:
	case s.skip > 0:
		s.skip--
	case spinning.CompareAndSwap(false, true):
		n := s.readWithin(p, spinTime)
		spinning.Store(false)
		if n > 0 {
			s.misses = 0
			return n, nil
		}
		s.misses = min(s.misses+1, 8)
		s.skip = 1<<s.misses - 1
	}
	return s.Conn.Read(p)
}

// Write writes all of p, or fails after frameTime. A deadline takes time, so it
// is set only if the other side does not take all at once.
func (s *stream) Write(p []byte) (int, error) {
	n := s.writeNow(p)
	if n == len(p) {
		return n, nil
	}
	s.SetWriteDeadline(time.Now().Add(frameTime))
	defer s.SetWriteDeadline(time.Time{})
	m, err := s.Conn.Write(p[n:])
	return n + m, err
}
