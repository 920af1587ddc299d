package main

import (
	"os"
	"syscall"
)

// dieWithParent makes a process end when its parent ends, for any reason.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// syncData makes the data of a file durable.
func syncData(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
