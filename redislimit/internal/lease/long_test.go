//go:build long

package lease

// long tests run at full length.
const long = true
