//go:build !long

package resp

const long = false
