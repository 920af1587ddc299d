//go:build !long

package stint

const long = false
