//go:build !linux

package boltfile

import "os"

// syncData makes the data of a file durable.
func syncData(f *os.File) error { return f.Sync() }
