//go:build !unix || solaris || aix

package main

import (
	"context"
	"net"
)

// lockSocket waits until no server answers at the socket. Two servers that wait
// at the same time may both go on, and the later one then has the socket. If ctx
// ends before, lockSocket returns nil.
func lockSocket(ctx context.Context, path string, waits func()) (unlock func(), err error) {
	for first := true; ; first = false {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return func() {}, nil
		}
		_ = conn.Close()
		if first {
			waits()
		}
		if !pause(ctx) {
			return nil, nil
		}
	}
}
