package hostlimit

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// noSockets reports whether the system has no Unix sockets (before Windows 10).
func noSockets(err error) bool { return errors.Is(err, syscall.Errno(10047)) }

func isStale(error) bool { return true }

// isSocket is true also of other files that are not regular ones, because Go
// knows no type for sockets there.
func isSocket(info os.FileInfo) bool { return !info.Mode().IsRegular() && !info.IsDir() }

// idOf tells no files apart: a FileInfo has no number there.
func idOf(os.FileInfo) inode { return inode{} }

// shorten returns the path: there is no shorter way.
func shorten(path string) (short string, done func(), err error) { return path, func() {}, nil }

// lock does nothing: no file is removed there while its owner has it open.
func (p place) lock(time.Duration) (unlock func(), err error) { return func() {}, nil }

// protect does nothing: the socket has the rights of its folder.
func (p place) protect(string) error { return nil }

func (p place) checkGuest(net.Conn) error { return nil }
func (p place) checkOwner(net.Conn) error { return nil }
