//go:build !long

package hostlimit

// long is true if the tag is set: tests then take minutes.
const long = false
