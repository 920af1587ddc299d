package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// floodPart is a part of a flood of new ids.
type floodPart struct {
	Stored  int           // ids so far
	PerID   time.Duration // mean time of a new id
	Longest time.Duration // of a new id
	Known   Latencies     // of decisions on ids that are in memory
	Bare    Latencies     // of as much work without a limiter, in turn with them
	Bytes   int64         // of the file
	RSS     int64
}

const (
	floodParts    = 25
	floodResident = 1_000_000
)

// floodFile spends once on each of o.Count new ids, as fast as one goroutine
// can, with space for o.Config.Resident of them in memory. At the same time
// another goroutine spends on ids that are in memory, a few each millisecond. After
// each decision it does about as much work without a limiter: what this takes at
// worst, the processors and the system take from any program beside the flood.
func floodFile(o order) (r reply, err error) {
	l, err := openLimiter(filepath.Join(o.Config.Dir, fileName), stint.Flushed, o.Config)
	if err != nil {
		return r, err
	}
	known := make([]stint.Key, 100)
	for i := range known {
		known[i] = perID.Key(fmt.Sprintf("known-%018d", i))
	}
	var taken, bare sharedHistogram // by the other goroutine, in the part under way
	over, watched := make(chan struct{}), make(chan error, 1)
	go func() {
		watched <- func() error {
			memory := make([]uint64, 8<<20)
			for i, tick := 0, time.Tick(time.Millisecond); ; {
				select {
				case <-over:
					return nil
				case <-tick:
				}
				for range 16 {
					begun := time.Now()
					d, err := l.Spend(known[i%len(known)], 1)
					taken.add(time.Since(begun))
					bare.add(bareWork(memory, i%len(known)))
					if err != nil {
						return fmt.Errorf("an id in memory: %w", err)
					} else if !d.Allowed {
						return errors.New("an id in memory was denied")
					}
					i++
				}
			}
		}()
	}()
	last := time.Now()
	begun := last
	var longest time.Duration
	part := max(o.Count/floodParts, 1)
	for i := 0; i < o.Count && err == nil; i++ {
		d, e := l.Spend(perID.Key(id(uint32(i))), 1)
		now := time.Now()
		switch {
		case e != nil:
			err = fmt.Errorf("new id %d, after %v: %w", i, now.Sub(last), e)
		case !d.Allowed:
			err = fmt.Errorf("new id %d was denied", i)
		}
		longest = max(longest, now.Sub(last))
		last = now
		if (i+1)%part == 0 {
			p := floodPart{Stored: i + 1, PerID: now.Sub(begun) / time.Duration(part), Longest: longest,
				Known: taken.take(), Bare: bare.take(), Bytes: sizeOf(o.Config.Dir), RSS: rss()}
			progress("flood: %d: %v, longest %v, in memory %v at p99.9, bare %v",
				i+1, p.PerID, p.Longest, p.Known.P999, p.Bare.P999)
			r.Flood = append(r.Flood, p)
			last = time.Now()
			begun, longest = last, 0
		}
	}
	close(over)
	if e := <-watched; err == nil {
		err = e
	}
	if e := l.Close(); err == nil {
		err = e
	}
	return r, err
}

// bareWork reads three lines of memory that are not in the cache, as a decision on
// one of a few ids does, and computes for as long. It returns the time that it took.
func bareWork(memory []uint64, id int) time.Duration {
	begun := time.Now()
	x := uint64(id) * 0x9E3779B97F4A7C15
	for range 3 {
		memory[x%uint64(len(memory))]++
		x += 12_345_678
	}
	for i := range uint64(150) {
		x = x*31 + i
	}
	spinSink.Store(x)
	return time.Since(begun)
}

// sharedHistogram is a histogram for two goroutines.
type sharedHistogram struct {
	mu sync.Mutex
	h  histogram
}

func (s *sharedHistogram) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h.add(d)
}

// take returns the latencies so far, and begins again.
func (s *sharedHistogram) take() Latencies {
	s.mu.Lock()
	defer s.mu.Unlock()
	ls := s.h.latencies()
	s.h = histogram{}
	return ls
}
