package main

import (
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Decisions are measured in slices of a fraction of a millisecond. Between
// slices is a loop of known length. If it takes longer than at its best,
// another program used the core, or the other half of it, and the slice does not
// count. The figure of a round is the median of the slices that count, and a
// cell of a table is the median of its rounds.

var spinSink atomic.Uint64

// spin takes as long as its chain of shifts does: some microseconds.
func spin() time.Duration {
	begun := time.Now()
	x := uint64(begun.Nanosecond() | 1)
	for range 2000 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	spinSink.Store(x)
	return time.Since(begun)
}

// calibrate returns the shortest time that spin takes.
func calibrate() time.Duration {
	best := time.Hour
	for begun := time.Now(); time.Since(begun) < 300*time.Millisecond; {
		best = min(best, spin())
	}
	return best
}

// A Round is the result of one round of slices.
type Round struct {
	NS           float64 // a decision: one goroutine's time for it
	Slices, Kept int
}

// measureRound lets goroutines ask for about length. All requests must be
// allowed or, if denied is true, all denied.
func measureRound(d Decider, w Workload, denied bool, threads int, length, best time.Duration,
	seed uint64) (r Round, err error) {
	group, decisions := groupOf(d)
	fast := best + best/16
	unit := 192 / group * group // requests in a slice are a multiple of it
	streams := make([]*stream, threads)
	for t := range streams {
		streams[t] = newStream(w, seed+uint64(t), group)
	}
	var (
		start    = barrier{n: int64(threads)}
		end      = barrier{n: int64(threads)}
		begins   = make([]time.Time, threads)
		ends     = make([]time.Time, threads)
		took     = make([]float64, threads)
		quiet    = make([]bool, threads)
		draws    = make([]int, threads)
		allowed  = make([]int, threads)
		kept     []float64
		all      []float64
		n        = unit
		over     bool
		deadline = time.Now().Add(length)
		wg       sync.WaitGroup
	)
	for t := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for !over {
				ids := streams[t].next(n)
				start.wait()
				before := spin()
				begins[t] = time.Now()
				allowed[t] += allow(d, group, ids)
				ends[t] = time.Now()
				took[t] = float64(ends[t].Sub(begins[t]).Nanoseconds()) / float64(len(ids)/group*decisions)
				quiet[t] = before <= fast && spin() <= fast
				draws[t] += len(ids)
				end.wait()
				if t == 0 { // the others wait for this one at start
					mean := 0.0
					for _, ns := range took {
						mean += ns / float64(threads)
					}
					all = append(all, mean)
					if !slices.Contains(quiet, false) && together(begins, ends) {
						kept = append(kept, mean)
					}
					n = min(max(int(250_000/mean)*group/decisions, unit), 4096) / unit * unit
					over = time.Now().After(deadline)
				}
				end.wait()
			}
		})
	}
	wg.Wait()
	drawn, passed := sum(draws), sum(allowed)
	if want := drawn; denied && passed != 0 || !denied && passed != want {
		return r, fmt.Errorf("%s: %d of %d allowed, denied is %v", w.Name, passed, drawn, denied)
	}
	if err := w.checkDistinct(drawn, distinct(streams)); err != nil {
		return r, err
	}
	r = Round{Slices: len(all), Kept: len(kept)}
	if r.Kept < 3 { // a busy machine: better than nothing, and the table says so
		r.Kept, kept = 0, all
	}
	r.NS = median(kept)
	return r, nil
}

// measureCrowd is measureRound for more goroutines than processors. They ask for
// a slice of time, each for its own ids again and again. The figure is the
// processors' time for a decision.
func measureCrowd(d Decider, w Workload, denied bool, goroutines int, length, best time.Duration,
	seed uint64) (r Round, err error) {
	const slice = 10 * time.Millisecond
	group, decisions := groupOf(d)
	fast := best + best/16
	unit := 192 / group * group
	parts := make([][][]string, goroutines) // a unit each
	for g := range parts {
		ids := newStream(w, seed+uint64(g), group).next(8 * unit)
		parts[g] = slices.Collect(slices.Chunk(ids, unit))
	}
	var kept, all []float64
	for begun := time.Now(); time.Since(begun) < length || len(all) < 3; {
		var asked, passed atomic.Int64
		var wg sync.WaitGroup
		before := spin()
		sliceBegun := time.Now()
		for g := range goroutines {
			wg.Go(func() {
				n, allowed := 0, 0
				for i := 0; time.Since(sliceBegun) < slice; i++ {
					ids := parts[g][i%len(parts[g])]
					allowed += allow(d, group, ids)
					n += len(ids)
				}
				asked.Add(int64(n))
				passed.Add(int64(allowed))
			})
		}
		wg.Wait()
		took := time.Since(sliceBegun)
		quiet := before <= fast && spin() <= fast
		if want := asked.Load(); denied && passed.Load() != 0 || !denied && passed.Load() != want {
			return r, fmt.Errorf("%s: %d of %d allowed, denied is %v", w.Name, passed.Load(), want, denied)
		}
		cores := min(goroutines, runtime.GOMAXPROCS(0))
		ns := float64(took.Nanoseconds()) * float64(cores) / float64(asked.Load()/int64(group)*int64(decisions))
		if all = append(all, ns); quiet {
			kept = append(kept, ns)
		}
	}
	r = Round{Slices: len(all), Kept: len(kept)}
	if r.Kept < 3 { // a busy machine: better than nothing, and the table says so
		r.Kept, kept = 0, all
	}
	r.NS = median(kept)
	return r, nil
}

// together reports whether all threads ran at the same time for most of the time. On a
// busy machine they may have run one after the other.
func together(begins, ends []time.Time) bool {
	all := slices.MinFunc(ends, time.Time.Compare).Sub(slices.MaxFunc(begins, time.Time.Compare))
	any := slices.MaxFunc(ends, time.Time.Compare).Sub(slices.MinFunc(begins, time.Time.Compare))
	return all > any*3/4
}

func groupOf(d Decider) (ids, decisions int) {
	if g, ok := d.(Grouped); ok {
		return g.Group()
	}
	return 1, 1
}

// allow asks for all of ids, and returns how many were allowed.
func allow(d Decider, group int, ids []string) (allowed int) {
	if g, ok := d.(Grouped); ok {
		for ; len(ids) >= group; ids = ids[group:] {
			allowed += g.AllowGroup(ids[:group])
		}
		return allowed
	}
	for _, id := range ids {
		if d.Allow(id) {
			allowed++
		}
	}
	return allowed
}

// allocations returns the number of allocations in a call, rounded down as
// testing.AllocsPerRun does.
func allocations(d Decider, w Workload) float64 {
	group, _ := groupOf(d)
	least := math.Inf(1)
	for try := range 5 {
		ids := newStream(w, uint64(try), group).next(960)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		allow(d, group, ids)
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)*float64(group)/float64(len(ids)))
	}
	return math.Floor(least)
}

// A barrier makes n goroutines spin until all of them are there.
type barrier struct{ n, arrived int64 }

func (b *barrier) wait() {
	if b.n == 1 {
		return
	}
	turn := (atomic.AddInt64(&b.arrived, 1) - 1) / b.n
	for spins := 0; atomic.LoadInt64(&b.arrived) < (turn+1)*b.n; spins++ {
		if spins%1024 == 1023 {
			runtime.Gosched()
		}
	}
}

// A histogram counts durations, to about three per cent.
type histogram struct {
	counts [64 * 32]int64
	n      int64
	max    time.Duration
}

func (h *histogram) add(d time.Duration) {
	h.counts[slotOf(d)]++
	h.n++
	h.max = max(h.max, d)
}

func slotOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 32 {
		return int(v)
	}
	shift := bits.Len64(v) - 6
	return shift*32 + int(v>>shift)
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.n += other.n
	h.max = max(h.max, other.max)
}

// quantile returns the duration that a share q does not exceed, to three per
// cent.
func (h *histogram) quantile(q float64) time.Duration {
	left := int64(math.Ceil(q * float64(h.n)))
	for i, n := range h.counts {
		if left -= n; left <= 0 {
			if i < 64 {
				return time.Duration(i)
			}
			shift := i/32 - 1
			return min(time.Duration(uint64(i%32+33)<<shift), h.max)
		}
	}
	return h.max
}

// Latencies says how long the decisions of a Decider took.
type Latencies struct {
	N                          int64
	P50, P99, P999, P9999, Max time.Duration
}

func (h *histogram) latencies() Latencies {
	return Latencies{h.n, h.quantile(.5), h.quantile(.99), h.quantile(.999), h.quantile(.9999), h.max}
}

func median[T int64 | float64 | time.Duration](xs []T) T {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Sorted(slices.Values(xs))
	return xs[len(xs)/2]
}

func sum(xs []int) (n int) {
	for _, x := range xs {
		n += x
	}
	return n
}

// procField returns the number after a word in one of the files of /proc/self,
// or 0 if there is none.
func procField(file, word string) (n int64) {
	fmt.Sscan(procText("/proc/self/"+file, word), &n)
	return n
}

func rss() int64 { return procField("status", "VmRSS") * 1024 }

// bytesWritten returns what the process wrote to files and pipes. bytesOnDisk
// returns how much of that went to the disk, with the file system's own data.
func bytesWritten() int64 { return procField("io", "wchar") }
func bytesOnDisk() int64  { return procField("io", "write_bytes") }
