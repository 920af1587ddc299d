//go:build !linux

package stint

func wantLargePages([]byte) {}
