//go:build unix && !linux

package main

import (
	"os"
	"syscall"
)

func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// syncData makes the data of a file durable.
func syncData(f *os.File) error { return f.Sync() }
