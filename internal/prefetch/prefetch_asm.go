//go:build amd64 || arm64

package prefetch

// Line has the processor fetch the two cache lines from addr on, while the
// caller goes on. It is a hint: addr may be anything.
//
//go:noescape
func Line(addr uintptr)
