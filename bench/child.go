package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/bench/turns"
)

var errSkip = errors.New("not here")

// An order tells a child what to do.
type order struct {
	Do         string
	Contestant string
	Config     Config
	Workload   Workload
	Denied     bool
	Callers    int
	Length     time.Duration
	Best       time.Duration // the shortest spin known
	Seed       uint64
	First      int // first id to go through
	Count      int // number of ids to go through; 0 means all
}

// A reply is the result of an order.
type reply struct {
	Err       string
	Skip      bool // there is no such contestant here, for the reason that Err gives
	Round     Round
	Allocs    float64
	Latencies Latencies
	PerSecond float64
	Took      time.Duration
	Bytes     int64   // written, or on the disk, or of the heap
	RSS       int64   // of the process
	PerID     float64 // bytes
	OnDisk    int64   // bytes written to the disk, with the file system's own
	GC        time.Duration
	Flushes   int64 // of stint
	Flushed   int64 // buckets
	Longest   time.Duration
	Flood     []floodPart
	Heaps     []int64 // bytes, one after the other
}

type child struct {
	process *turns.Process
	dir     string
}

// startChild starts a child, with an empty folder for its files.
func startChild(dir string) (*child, error) {
	p, err := turns.Start(dir)
	if err != nil {
		return nil, err
	}
	return &child{p, p.Dir}, nil
}

func (c *child) do(o order) (r reply, err error) {
	o.Config.Dir = c.dir
	if err := c.process.Ask(o, &r); err != nil {
		return r, fmt.Errorf("%s, %s: the process ended: %w", o.Contestant, o.Do, err)
	}
	switch {
	case r.Skip:
		return r, fmt.Errorf("%w: %s", errSkip, strings.TrimPrefix(r.Err, errSkip.Error()+": "))
	case r.Err != "":
		return r, fmt.Errorf("%s, %s: %s", o.Contestant, o.Do, r.Err)
	}
	return r, nil
}

// childMain carries out orders until there are no more.
func childMain() {
	var w worker
	turns.Serve(func(o order) reply {
		r, err := w.carryOut(o)
		if err != nil {
			r.Err, r.Skip = err.Error(), errors.Is(err, errSkip)
		}
		return r
	})
}

// A worker is the child's side: it opens a decider and carries out orders.
type worker struct {
	decider  Decider
	workload Workload
	sweep    *sweep // of load
}

func (w *worker) carryOut(o order) (r reply, err error) {
	defer func() {
		if p := recover(); p != nil {
			debug.PrintStack()
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	switch o.Do {
	case "open":
		w.workload = o.Workload
		w.decider, err = contestant(o.Contestant).Open(o.Config)
	case "fill":
		if f, ok := w.decider.(Filler); ok {
			err = f.Fill(w.workload)
		} else {
			err = w.workload.fill(w.decider, 1)
		}
		err = errors.Join(err, flushDirty(w.decider))
		debug.FreeOSMemory()
	case "round":
		measure := measureRound
		if o.Callers > runtime.NumCPU() && o.Callers > 2 {
			measure = measureCrowd
		}
		r.Round, err = measure(w.decider, w.workload, o.Denied, o.Callers, o.Length, o.Best, o.Seed)
	case "allocations":
		r.Allocs = allocations(w.decider, w.workload)
	case "memory":
		return w.memory()
	case "latencies":
		r.Latencies, err = w.latencies(o)
	case "load":
		return w.load(o)
	case "size":
		r.Bytes = sizeOf(o.Config.Dir)
	default:
		f, ok := fileOrders[o.Do]
		if !ok {
			return r, fmt.Errorf("no such order: %q", o.Do)
		}
		return f(o)
	}
	return r, err
}

// memory fills the decider, and returns its memory and time.
func (w *worker) memory() (r reply, err error) {
	collect := func() (heap, resident int64) {
		debug.FreeOSMemory() // a forced collection, and the memory that it freed goes back
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), rss()
	}
	heap, resident := collect()
	begun := time.Now()
	if err := w.workload.fill(w.decider, 1); err != nil {
		return r, err
	}
	r.Took = time.Since(begun)
	if err := flushDirty(w.decider); err != nil {
		return r, err
	}
	heapAfter, residentAfter := collect()
	r.Bytes, r.RSS = heapAfter-heap, residentAfter-resident
	r.PerID = float64(r.Bytes) / float64(w.workload.IDs)
	var collections []time.Duration
	for range 5 {
		begun := time.Now()
		runtime.GC()
		collections = append(collections, time.Since(begun))
	}
	r.GC = median(collections)
	if w.decider.Allow(id(0)) && w.workload.IDs > 1 { // the limit of this table allows one request of each id
		return r, errors.New("the first id was forgotten")
	}
	return r, nil
}

// latencies times every decision of one caller: of all ids in turn for o.Length, or
// the first of each id if o.Length is 0. It includes the reading of the clock.
func (w *worker) latencies(o order) (Latencies, error) {
	var h histogram
	const batch = 256
	if o.Length == 0 {
		ids := make([]string, batch)
		for i := 0; i < w.workload.IDs; {
			n := min(batch, w.workload.IDs-i)
			for k := range n {
				ids[k] = id(uint32(i + k))
			}
			h.time(w.decider, ids[:n])
			i += n
		}
		return h.latencies(), nil
	}
	s := sweepAll(w.workload).stream()
	for deadline := time.Now().Add(o.Length); time.Now().Before(deadline); {
		h.time(w.decider, s.next(batch))
	}
	return h.latencies(), nil
}

func (h *histogram) time(d Decider, ids []string) {
	last := time.Now()
	for _, id := range ids {
		if !d.Allow(id) {
			panic("a decision that should have been allowed was denied")
		}
		now := time.Now()
		h.add(now.Sub(last))
		last = now
	}
}

// load lets o.Callers goroutines ask for o.Length. It returns the number of
// decisions, and how long they took. It times only every sixteenth fast
// decision, because reading the clock would take longer than the decision.
func (w *worker) load(o order) (r reply, err error) {
	var (
		mu    sync.Mutex
		total histogram
		done  atomic.Int64
		wg    sync.WaitGroup
	)
	before := bytesOnDisk()
	flushesBefore := flushStats(w.decider)
	begun := time.Now()
	if w.sweep == nil {
		w.sweep = sweepAll(w.workload)
	}
	turns := w.sweep
	if o.Count != 0 {
		turns = &sweep{w: w.workload, first: uint64(o.First), span: uint64(o.Count)}
	}
	panics := make(chan any, o.Callers)
	streams := make([]*stream, o.Callers)
	for c := range o.Callers {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panics <- p
				}
			}()
			var h histogram
			s := turns.stream()
			streams[c] = s
			batch, every := 1, 1
			n := 0
			for time.Since(begun) < o.Length {
				for k, id := range s.next(batch) {
					if k%every != 0 {
						if !w.decider.Allow(id) {
							panic("a decision that should have been allowed was denied")
						}
						continue
					}
					t := time.Now()
					if !w.decider.Allow(id) {
						panic("a decision that should have been allowed was denied")
					}
					took := time.Since(t)
					h.add(took)
					if n < 1000 && took < 5*time.Microsecond {
						batch, every = 256, 16
					}
				}
				n += batch
			}
			done.Add(int64(n))
			mu.Lock()
			defer mu.Unlock()
			total.merge(&h)
		})
	}
	var longest time.Duration // of the flushes under load
	over, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for tick := time.Tick(50 * time.Millisecond); ; {
			select {
			case <-over:
				return
			case <-tick:
			}
			if st := flushStats(w.decider); st.Saves > flushesBefore.Saves {
				longest = max(longest, st.Last)
			}
		}
	}()
	wg.Wait()
	close(over)
	<-watched
	took, written := time.Since(begun), bytesOnDisk()-before
	select {
	case p := <-panics:
		return r, fmt.Errorf("%v", p)
	default:
	}
	if met, n := distinct(streams), int(done.Load()); met < min(n, int(turns.span))/2 {
		return r, fmt.Errorf("%d decisions met only %d different ids", n, met)
	}
	if err := flushDirty(w.decider); err != nil {
		return r, err
	}
	after := flushStats(w.decider)
	r = reply{
		PerSecond: float64(done.Load()) / took.Seconds(),
		Took:      took,
		Latencies: total.latencies(),
		Bytes:     written,
		Flushes:   after.Saves - flushesBefore.Saves,
		Flushed:   after.Buckets - flushesBefore.Buckets,
		Longest:   longest,
	}
	return r, nil
}
