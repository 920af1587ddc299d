//go:build !amd64 && !arm64

package stint

func prefetch(uintptr) {}
