//go:build race

package testlength

// Race reports whether the race detector runs. It makes a sync.Pool forget at
// random, so counts of allocations mean nothing.
const Race = true
