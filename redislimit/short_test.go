//go:build !long

package redislimit

// long tests run at full length with -tags long.
const long = false
