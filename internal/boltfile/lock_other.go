//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package boltfile

import (
	"os"
	"time"
)

const noFollow = 0

// unlock does nothing: a lock that is not flock's ends when the file is closed.
func unlock(*os.File) {}

// locksTwice is false: on Windows, a handle that has bbolt's lock cannot take it again.
const locksTwice = false

// lock does nothing: stint has no lock of its own here.
func lock(*os.File, bool, time.Duration) error { return nil }

// keepOwner does nothing: the user who makes a file owns it.
func keepOwner(*os.File, os.FileInfo) error { return nil }
