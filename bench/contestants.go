package main

import (
	"slices"
	"time"
)

// A Contestant is a limiter. To add one, write its Open, and name it in one of the
// lists below.
type Contestant struct {
	Name  string
	Exact bool   // it never admits more than its limit says, whatever the ids, times and callers
	Note  string // what it is, and how it is not exact

	// Open returns the limiter, ready and empty. An error that wraps errSkip says why there is none.
	Open func(Config) (Decider, error)
}

// Config is what a Contestant is opened with: one limit, for every id.
type Config struct {
	IDs      int           // as many will come
	Burst    int64         // so many at once,
	Interval time.Duration // and one more in each of these
	Dir      string        // for files; empty
	Callers  int           // goroutines that will ask at the same time

	// Of stint; 0 means: room for all of the ids, and the default.
	Resident int
	Flush    time.Duration
}

// A Decider decides. A failure in Allow is a panic, because no benchmark goes
// on after an error.
type Decider interface {
	Allow(id string) bool
	Close() error
}

// A Grouped takes several ids in one call: so many, for so many decisions.
type Grouped interface {
	Decider
	Group() (ids, decisions int)
	AllowGroup(ids []string) (allowed int)
}

// A Filler has a faster way than Allow to get to know all the ids of a workload.
type Filler interface{ Fill(Workload) error }

// In memory: the tables Decision and Memory.
var inMemory = []Contestant{
	stintMemory, stintFlushed,
	xtimeSyncMap, xtimeRWMutex,
	goLimiter, throttledGCRA, ululeMemory, boulderInmem,
}

// Several keys in one call, which only stint has.
var grouped = []Contestant{stintEach, stintAll}

// Durable: nothing that was acknowledged is ever forgotten. The last one is for
// comparison.
var durable = []Contestant{bareLog, stintSynced, redisAlways, sqliteFull, pebbleSync, badgerSync, stintLeased,
	stintFlushed}

// Written behind: a crash may forget about a second.
var flushed = []Contestant{stintMemory, stintFlushed, redisEverysec, sqliteNormal, pebbleNoSync, badgerNoSync}

// hasFiles reports whether a contestant is one of those that keep what they decide in files.
func hasFiles(name string) bool {
	named := func(c Contestant) bool { return c.Name == name }
	return slices.ContainsFunc(durable, named) || slices.ContainsFunc(flushed, named)
}

func contestant(name string) Contestant {
	for _, list := range [][]Contestant{inMemory, grouped, least, leastGrouped, durable, flushed, {control}} {
		for _, c := range list {
			if c.Name == name {
				return c
			}
		}
	}
	panic("no contestant " + name)
}

// control is there to be measured beside the others, so that the machine's own
// pauses can be told from theirs.
var control = Contestant{"no limiter, a loop of 300 ns", true, "the machine's own pauses",
	func(Config) (Decider, error) {
		return controlDecider{}, nil
	}}

type controlDecider struct{}

func (controlDecider) Allow(id string) bool {
	x := uint64(len(id))
	for range 120 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x != 0
}

func (controlDecider) Close() error { return nil }

// must panics with an error.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
