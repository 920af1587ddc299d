//go:build long

package fsck

// long has tests run at full length.
const long = true
