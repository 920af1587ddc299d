package main

import (
	"slices"
	"time"
)

// A Contestant is a limiter. To add one, write its Open, and name it in one of the
// lists below.
type Contestant struct {
	Name  string
	Exact bool   // it never admits more than its limit
	Note  string // what it is, and how it is not exact

	// Open returns the limiter, ready and empty. An error that wraps errSkip says why there is none.
	Open func(Config) (Decider, error)
}

// Config configures a Contestant: one limit, for every id.
type Config struct {
	IDs      int           // number of ids
	Burst    int64         // requests at once
	Interval time.Duration // time of one more request
	Dir      string        // an empty directory for files
	Callers  int           // goroutines that will ask at the same time

	// For stint only; 0 means space for all ids, and the default Flush.
	Resident int
	Flush    time.Duration
}

// A Decider decides. A failure in Allow is a panic, because no benchmark goes
// on after an error.
type Decider interface {
	Allow(id string) bool
	Close() error
}

// A Grouped takes several ids in one call. Group returns ids and decisions per call.
type Grouped interface {
	Decider
	Group() (ids, decisions int)
	AllowGroup(ids []string) (allowed int)
}

// A Filler has a faster way than Allow to add all ids of a workload.
type Filler interface{ Fill(Workload) error }

// In memory: the tables Decision and Memory.
var inMemory = []Contestant{
	stintMemory, stintFlushed,
	xtimeSyncMap, xtimeRWMutex,
	goLimiter, throttledGCRA, ululeMemory, boulderInmem,
}

// Several keys in one call, which only stint has.
var grouped = []Contestant{stintEach, stintAll}

// Durable: a crash loses no acknowledged decision. The last one is for
// comparison.
var durable = []Contestant{bareLog, stintSynced, redisAlways, sqliteFull, pebbleSync, badgerSync, stintLeased,
	stintFlushed}

// Beside processes that compute.
var busy = []Contestant{writeAndSync, stintSynced, redisAlways, sqliteFull}

// Saved about once a second: a crash may lose the decisions since then.
var flushed = []Contestant{stintMemory, stintFlushed, redisEverysec, sqliteNormal, pebbleNoSync, badgerNoSync}

// hasFiles reports whether a contestant keeps its decisions in files.
func hasFiles(name string) bool {
	named := func(c Contestant) bool { return c.Name == name }
	return slices.ContainsFunc(durable, named) || slices.ContainsFunc(busy, named) || slices.ContainsFunc(flushed, named)
}

func contestant(name string) Contestant {
	for _, list := range [][]Contestant{inMemory, grouped, least, leastGrouped, durable, flushed, busy, {control}} {
		for _, c := range list {
			if c.Name == name {
				return c
			}
		}
	}
	panic("no contestant " + name)
}

// control is measured beside the others, to separate the machine's own pauses
// from theirs.
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
