package main

import (
	"testing"
	"time"
)

// Each middleware admits all requests, or denies them, as its limit says.
func TestServers(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		t.Setenv("TMPDIR", t.TempDir())
		for _, c := range contestants {
			s := newServer(c, allowed, 20)
			t.Log(c.name, s.turn(1, time.Millisecond), s.turn(2, time.Millisecond))
		}
	}
}
