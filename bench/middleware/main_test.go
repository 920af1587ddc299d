package main

import (
	"os"
	"testing"
	"time"

	"github.com/stint-go/stint/bench/turns"
)

func TestMain(m *testing.M) {
	if args, ok := turns.Args(); ok {
		serve(args)
		return
	}
	os.Exit(m.Run())
}

// Each middleware admits all requests, or denies them, as its limit says.
func TestRows(t *testing.T) {
	for _, outcome := range []string{"allowed", "denied"} {
		for _, row := range rows(contestants, outcome, 20, 1, time.Millisecond) {
			t.Log(row)
		}
	}
}
