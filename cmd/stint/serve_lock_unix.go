//go:build unix && !solaris && !aix

package main

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// lockSocket locks PATH.lock, so that one server at a time has the socket. The
// lock ends with the process. If another process has it, lockSocket calls waits
// and tries again until ctx ends, and then returns nil.
func lockSocket(ctx context.Context, path string, waits func()) (unlock func(), err error) {
	file, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = file.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(&os.PathError{Op: "lock", Path: file.Name(), Err: err}, file.Close())
		case first:
			waits()
		}
		if !pause(ctx) {
			return nil, file.Close()
		}
	}
}
