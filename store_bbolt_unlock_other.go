//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package stint

import "os"

// unlock does nothing: where locks are not flock's, they end when the file is closed.
func unlock(*os.File) {}
