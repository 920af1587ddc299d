//go:build !long

package calendar

const long = false
