package hostlimit

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// noSockets reports whether the system has no Unix sockets (before Windows 10).
func noSockets(err error) bool { return errors.Is(err, syscall.Errno(10047)) }

func socketFolder() string { return os.TempDir() } // of the user

func ownerOf(string) int { return 0 }

// makeFolder makes a folder. It inherits the rights of the user's own folder.
func makeFolder(path string, _ int) error { return os.MkdirAll(path, 0o700) }

// protect does nothing: the socket has the rights of its folder.
func protect(string, os.FileInfo) error { return nil }

func checkPeer(net.Conn, os.FileInfo) error { return nil }
