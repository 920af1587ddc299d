package main

import (
	"container/heap"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"
)

// This machine has two cores. What more of them do to a bucket that all ask is
// computed here: decisions run on simulated cores, whose caches share lines as in
// the MESI protocol. A core that reads or changes a line that another core has
// changed waits for a transfer. A line moves to one core at a time, in the order
// in which the cores ask, and stays there for a moment. In a large machine a
// transfer takes 60 to 120 ns. Caches without that moment are the worst case: a
// core that has read a line has lost it again before it can change it.

// cores computes how the decisions of many cores share cache lines.
func (b *bench) cores() error {
	cores := []int{1, 2, 4, 16, 64}
	t := &table{
		title:  "Decisions per microsecond of all cores together, and transfers of cache lines for each",
		header: []string{"", "a transfer, ns", "a line stays, ns"},
		notes: []string{`"Without the lock after two tries" is a lane that tries until it has swapped the TAT. ` +
			"A lock that is taken costs its waiter 1.5 µs."},
	}
	for _, n := range cores {
		t.header = append(t.header, fmt.Sprint(n))
	}
	for _, load := range []struct {
		name  string
		cores func(*caches) coreLoad
	}{
		{"one bucket, allowed", func(c *caches) coreLoad { return hotLoad(c, 2, false) }},
		{"one bucket, denied", func(c *caches) coreLoad { return hotLoad(c, 2, true) }},
		{"1,000 buckets", idsLoad},
		{"one bucket, allowed, without the lock after two tries", func(c *caches) coreLoad { return hotLoad(c, -1, false) }},
	} {
		for _, transfer := range []time.Duration{60, 120} {
			for _, stays := range []time.Duration{transfer / 2, 0} {
				row := []string{load.name, fmt.Sprint(int64(transfer)), fmt.Sprint(int64(stays))}
				for _, n := range cores {
					c := &caches{transfer: transfer, stays: stays, rnd: rand.New(rand.NewPCG(1, 2))}
					perMicrosecond, transfers := c.run(n, load.cores(c))
					row = append(row, fmt.Sprintf("%.1f, %.1f", perMicrosecond, transfers))
				}
				t.add(row...)
			}
		}
	}
	fmt.Println(t.markdown())
	return b.write("cores.md", "# Cores\n\nComputed, not measured: `go run . -only cores`. The same on each machine.\n\n"+t.markdown())
}

const (
	coreHit  = 5 * time.Nanosecond    // an access to a line that the core has
	coreWork = 60 * time.Nanosecond   // the clock, the hash, and what else a decision does by itself
	corePark = 1500 * time.Nanosecond // until a goroutine that waited for a lock runs again
)

// coreLoad is what one core does. It takes steps until one returns false.
type coreLoad func(core int, step func(coreStep) bool)

// hotLoad has decisions in a lane, as lane.decide makes them: read the TAT, swap
// it, and count. After a number of failed swaps it takes a lock first.
func hotLoad(c *caches, tries int, denied bool) coreLoad {
	tat, cells, value := newCacheLine(), newCacheLines(64), 0
	lock := &coreLock{line: newCacheLine()}
	return func(core int, step func(coreStep) bool) {
		cell := cells[c.rnd.IntN(len(cells))]
		for step(work(coreWork)) {
			seen, swapped, locked := 0, denied, false
			read := coreStep{line: tat, do: func() { seen = value }}
			swap := coreStep{line: tat, change: true, do: func() {
				if swapped = seen == value; swapped {
					value++
				}
			}}
			if !step(read) {
				return
			}
			for failed := 0; !swapped; {
				if !step(work(5)) || !step(swap) {
					return
				}
				if swapped {
					break
				}
				if failed++; failed == tries {
					locked = true
					if !lock.take(step) {
						return
					}
				}
				if !step(read) {
					return
				}
			}
			if locked && !lock.give(step) || !step(coreStep{line: cell, change: true}) {
				return
			}
			c.decisions++
		}
	}
}

// idsLoad has decisions on 1,000 buckets in 256 shards: lock, change the slot, and
// count in the line of the lock.
func idsLoad(c *caches) coreLoad {
	slots, locks := newCacheLines(1000), make([]*coreLock, 256)
	for i := range locks {
		locks[i] = &coreLock{line: newCacheLine()}
	}
	return func(core int, step func(coreStep) bool) {
		for {
			i := c.rnd.IntN(len(slots))
			lock := locks[i%len(locks)]
			if !step(work(coreWork)) || !lock.take(step) || !step(coreStep{line: slots[i], change: true}) ||
				!step(work(10)) || !lock.give(step) {
				return
			}
			c.decisions++
		}
	}
}

// coreLock is a lock in a line. Those that find it taken are parked, and get it in
// the order in which they came.
type coreLock struct {
	line    *cacheLine
	held    bool
	waiting []*bool
}

func (l *coreLock) take(step func(coreStep) bool) bool {
	var mine *bool
	if !step(coreStep{line: l.line, change: true, do: func() {
		if l.held {
			mine = new(bool)
			l.waiting = append(l.waiting, mine)
		}
		l.held = true
	}}) {
		return false
	}
	if mine == nil {
		return true
	}
	for !*mine {
		if !step(work(100)) {
			return false
		}
	}
	return step(work(corePark)) && step(coreStep{line: l.line, change: true})
}

func (l *coreLock) give(step func(coreStep) bool) bool {
	return step(coreStep{line: l.line, change: true, do: func() {
		if l.held = len(l.waiting) > 0; l.held {
			*l.waiting[0] = true
			l.waiting = l.waiting[1:]
		}
	}})
}

// coreStep is work without memory if line is nil, or one access to a line.
type coreStep struct {
	took   time.Duration
	line   *cacheLine
	change bool
	do     func() // when the core has the line; may be nil
}

func work(d time.Duration) coreStep { return coreStep{took: d} }

// cacheLine is in the cache of the core that has changed it, or of those that have
// read it since.
type cacheLine struct {
	owner   int // -1: none
	readers map[int]bool
	moving  bool
	queue   []lineRequest
}

type lineRequest struct {
	core int
	step coreStep
}

func newCacheLine() *cacheLine { return &cacheLine{owner: -1, readers: make(map[int]bool)} }

func newCacheLines(n int) []*cacheLine {
	lines := make([]*cacheLine, n)
	for i := range lines {
		lines[i] = newCacheLine()
	}
	return lines
}

// caches simulates cores that share lines.
type caches struct {
	transfer, stays time.Duration
	rnd             *rand.Rand

	now       time.Duration
	events    coreEvents
	seq       int
	steps     []func() (coreStep, bool)
	transfers int
	decisions int
}

// run returns decisions for each microsecond, and transfers for each decision.
func (c *caches) run(cores int, load coreLoad) (perMicrosecond, transfers float64) {
	const most = 2000
	for core := range cores {
		next, stop := iter.Pull(func(yield func(coreStep) bool) { load(core, yield) })
		defer stop()
		c.steps = append(c.steps, next)
		c.after(time.Duration(c.rnd.IntN(100)), func() { c.resume(core) })
	}
	for c.decisions < most {
		e := heap.Pop(&c.events).(coreEvent)
		c.now = e.at
		e.do()
	}
	return float64(c.decisions) / (float64(c.now) / 1000), float64(c.transfers) / float64(c.decisions)
}

// resume lets a core take its next step.
func (c *caches) resume(core int) {
	step, _ := c.steps[core]()
	line := step.line
	switch {
	case line == nil:
		c.after(step.took, func() { c.resume(core) })
	case line.owner == core || !step.change && line.readers[core]:
		c.carryOut(core, step)
	default:
		line.queue = append(line.queue, lineRequest{core, step})
		c.move(line)
	}
}

func (c *caches) carryOut(core int, step coreStep) {
	if step.do != nil {
		step.do()
	}
	c.after(coreHit, func() { c.resume(core) })
}

// move gives a line to the next core that asked for it.
func (c *caches) move(line *cacheLine) {
	if line.moving || len(line.queue) == 0 {
		return
	}
	r := line.queue[0]
	line.queue = line.queue[1:]
	line.moving = true
	c.transfers++
	if r.step.change {
		clear(line.readers)
	} else if line.owner >= 0 {
		line.readers[line.owner] = true
	}
	line.owner = -1
	c.after(c.transfer, func() {
		if r.step.change {
			line.owner = r.core
		} else {
			line.readers[r.core] = true
		}
		c.carryOut(r.core, r.step)
		c.after(c.stays, func() {
			line.moving = false
			c.move(line)
		})
	})
}

func (c *caches) after(d time.Duration, do func()) {
	c.seq++
	heap.Push(&c.events, coreEvent{c.now + d, c.seq, do})
}

// coreEvents is a heap, by time and then in the order in which they were added.
type coreEvents []coreEvent

type coreEvent struct {
	at  time.Duration
	seq int
	do  func()
}

func (es coreEvents) Len() int      { return len(es) }
func (es coreEvents) Swap(i, j int) { es[i], es[j] = es[j], es[i] }
func (es coreEvents) Less(i, j int) bool {
	return es[i].at < es[j].at || es[i].at == es[j].at && es[i].seq < es[j].seq
}
func (es *coreEvents) Push(e any) { *es = append(*es, e.(coreEvent)) }
func (es *coreEvents) Pop() any {
	last := len(*es) - 1
	e := (*es)[last]
	*es = (*es)[:last]
	return e
}
