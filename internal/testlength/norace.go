//go:build !race

package testlength

// Race reports whether the race detector runs.
const Race = false
