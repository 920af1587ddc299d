//go:build amd64 || arm64

package prefetch

// Lines asks the processor to fetch the two cache lines from addr on. It is a
// hint and does not wait. addr need not be valid.
//
//go:noescape
func Lines(addr uintptr)
