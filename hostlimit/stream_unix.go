//go:build unix

package hostlimit

import (
	"net"
	"syscall"
	"time"
)

// direct makes system calls that do not sleep.
type direct struct {
	raw         syscall.RawConn // nil if there is none
	read, write attempt
}

// attempt is a system call on a part of a message.
type attempt struct {
	p  []byte
	n  int
	do func(fd uintptr) bool
	by time.Time
}

func (d *direct) init(nc net.Conn) {
	if sc, ok := nc.(syscall.Conn); ok {
		d.raw, _ = sc.SyscallConn()
	}
	d.read.do = func(fd uintptr) bool {
		for {
			n, err := syscall.Read(int(fd), d.read.p)
			if d.read.n = n; err != syscall.EAGAIN || time.Now().After(d.read.by) {
				return true
			}
		}
	}
	d.write.do = func(fd uintptr) bool {
		d.write.n, _ = syscall.Write(int(fd), d.write.p)
		return true
	}
}

// readWithin reads what comes within a time. If it returns 0, nothing came, or
// the next read returns the error.
func (d *direct) readWithin(p []byte, within time.Duration) int {
	if d.raw == nil {
		return 0
	}
	d.read.p, d.read.n, d.read.by = p, 0, time.Now().Add(within)
	if err := d.raw.Read(d.read.do); err != nil {
		return 0
	}
	return max(0, d.read.n)
}

// writeNow writes what the socket takes at once.
func (d *direct) writeNow(p []byte) int {
	if d.raw == nil {
		return 0
	}
	d.write.p, d.write.n = p, 0
	if err := d.raw.Write(d.write.do); err != nil {
		return 0
	}
	return max(0, d.write.n)
}
