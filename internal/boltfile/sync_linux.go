package boltfile

import (
	"os"
	"syscall"
)

// syncData makes the data of a file durable, but not the times in its inode.
func syncData(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
