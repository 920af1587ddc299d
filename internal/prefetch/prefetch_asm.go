//go:build amd64 || arm64

package prefetch

// Lines asks the processor to fetch the two cache lines from addr on. It is a
// hint, and does not wait: addr may be anything.
//
//go:noescape
func Lines(addr uintptr)
