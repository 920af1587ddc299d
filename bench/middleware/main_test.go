package main

import (
	"testing"
	"time"
)

// Each middleware admits all requests, or denies them, as its limit says.
func TestRows(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		for _, row := range rows(contestants, allowed, 20, 1, time.Millisecond) {
			t.Log(row)
		}
	}
}
