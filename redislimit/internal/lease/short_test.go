//go:build !long

package lease

// long tests run at full length with -tags long.
const long = false
