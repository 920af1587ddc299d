package main

import (
	"os"
	"syscall"
)

// syncData makes the data of a file durable.
func syncData(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
