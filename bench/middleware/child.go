package main

import (
	"slices"
	"strconv"
	"time"

	"github.com/stint-go/stint/bench/turns"
)

// An order asks a contestant for one turn.
type order struct {
	Threads int
	Length  time.Duration
}

// start starts a contestant, and waits until it knows n addresses.
func start(contestant, outcome string, n int) *turns.Process {
	p, err := turns.Start("", contestant, outcome, strconv.Itoa(n))
	must(err)
	var ready turn
	must(p.Ask(order{Threads: 1}, &ready))
	return p
}

// serve is the contestant's side, with the arguments of start.
func serve(p []string) {
	i := slices.IndexFunc(contestants, func(c contestant) bool { return c.name == p[0] })
	n, err := strconv.Atoi(p[2])
	must(err)
	s := newServer(contestants[i], p[1] == "allowed", n)
	turns.Serve(func(o order) turn { return s.turn(o.Threads, o.Length) })
}
