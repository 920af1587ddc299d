//go:build !long

package stint

// long has tests run at full length.
const long = false
