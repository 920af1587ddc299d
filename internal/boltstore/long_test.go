//go:build long

package boltstore

// long has tests run at full length.
const long = true
