package boltfile

import (
	"os"
	"syscall"
)

// syncData makes what was written to a file durable. The times in its inode need not be.
func syncData(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
