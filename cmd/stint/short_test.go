//go:build !long

package main

// long has tests run at full length.
const long = false
