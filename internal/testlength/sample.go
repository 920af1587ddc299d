//go:build !long

package testlength

// Long says that tests run at full length.
const Long = false
