//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package boltfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"
)

const noFollow = syscall.O_NOFOLLOW // open no file that a link leads to

// unlock releases the lock that bbolt took. Closing the file is not enough,
// because a mapping of the file would keep the lock.
func unlock(f *os.File) { syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// locksTwice reports whether a handle that has bbolt's lock can take it again.
const locksTwice = true

// lock takes the lock that bbolt takes, which readers share. If another handle has it
// for all of timeout, the error is ErrLocked.
func lock(f *os.File, exclusive bool, timeout time.Duration) error {
	how := syscall.LOCK_SH | syscall.LOCK_NB
	if exclusive {
		how = syscall.LOCK_EX | syscall.LOCK_NB
	}
	for begun := time.Now(); ; {
		err := syscall.Flock(int(f.Fd()), how)
		left := timeout - time.Since(begun)
		switch {
		case err != syscall.EWOULDBLOCK:
			return os.NewSyscallError("flock", err)
		case left <= 0:
			return ErrLocked
		}
		time.Sleep(min(left, lockRetry))
	}
}

// keepOwner gives a file the owner and the group of another file. If this
// process may not do that, it gives the group only, or neither.
func keepOwner(f *os.File, of os.FileInfo) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	have, want := info.Sys().(*syscall.Stat_t), of.Sys().(*syscall.Stat_t)
	if have.Uid == want.Uid && have.Gid == want.Gid {
		return nil
	}
	if err = f.Chown(int(want.Uid), int(want.Gid)); errors.Is(err, fs.ErrPermission) {
		err = f.Chown(-1, int(want.Gid))
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}
