//go:build long

package httplimit

// long has tests run at full length.
const long = true
