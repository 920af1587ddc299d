//go:build !linux

package table

func wantLargePages([]byte) {}
