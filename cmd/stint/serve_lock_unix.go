//go:build unix && !solaris && !aix

package main

import (
	"errors"
	"os"
	"syscall"
)

// lockSocket locks PATH.lock, so that one server at a time has the socket. The
// lock ends with the process. If another process has it, unlock is nil.
func lockSocket(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return func() { _ = file.Close() }, nil
	case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		return nil, file.Close()
	}
	return nil, errors.Join(&os.PathError{Op: "lock", Path: file.Name(), Err: err}, file.Close())
}
