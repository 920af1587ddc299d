package boltfile

import (
	"os"
	"syscall"
)

// syncData makes what was written to a file durable, without the times in its
// inode.
func syncData(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
