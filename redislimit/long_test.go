//go:build long

package redislimit

// long tests run at full length.
const long = true
