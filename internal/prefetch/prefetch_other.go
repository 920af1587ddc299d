//go:build !amd64 && !arm64

package prefetch

// Lines does nothing on this processor.
func Lines(uintptr) {}
