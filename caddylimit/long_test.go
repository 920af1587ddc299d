//go:build long

package caddylimit_test

const reloads, hostileKeys = 1000, 10_000
