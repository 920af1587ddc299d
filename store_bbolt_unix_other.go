//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package stint

import "os"

// unlock does nothing: where locks are not flock's, they end when the file is closed.
func unlock(*os.File) {}

// lock does nothing: there, stint has no lock of its own.
func lock(*os.File) bool { return true }

// keepOwner does nothing: whoever makes a file there has it.
func keepOwner(*os.File, os.FileInfo) error { return nil }
