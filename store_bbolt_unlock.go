//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package stint

import (
	"os"
	"syscall"
)

// unlock lets go of the lock that bbolt took on the file: a mapping of the file would keep it after the file is closed.
func unlock(f *os.File) { syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
