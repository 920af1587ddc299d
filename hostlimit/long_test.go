//go:build long

package hostlimit

const long = true
