//go:build !long

package caddylimit_test

const reloads, hostileKeys = 30, 300
