// Command soak floods a limiter with ids that it has no room for, and watches what that costs: memory, the file, and whether
// the limiter forgets the two ids that it was told about first.
//
//	go run ./internal/soak -decisions 10000000 -ids 2000000 -resident 100000
//
// It ends with status 1 where a promise was broken.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

const (
	flood stint.Name = 1 + iota
	quota
)

func main() {
	decisions := flag.Int64("decisions", 10_000_000, "how many decisions to make while the flood lasts")
	ids := flag.Int("ids", 2_000_000, "of how many distinct ids")
	resident := flag.Int("resident", 100_000, "MaxResident")
	workers := flag.Int("workers", 2, "goroutines")
	expiry := flag.Duration("expiry", 20*time.Second, "the time in which an id's empty bucket is full again")
	dir := flag.String("dir", "", "where to keep the file; default a directory that is removed")
	every := flag.Duration("every", 5*time.Second, "how often to print a line")
	flag.Parse()
	if err := run(*dir, *decisions, *ids, *resident, *workers, *expiry, *every); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(dir string, decisions int64, ids, resident, workers int, expiry, every time.Duration) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "soak"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	limits, err := stint.NewLimits(stint.Names{
		flood: {Label: "Flood", Limit: stint.Limit{Burst: 5, Count: 5, Period: expiry}},
		quota: {Label: "Quota", Limit: stint.PerDay(10)},
	}, nil, nil)
	if err != nil {
		return err
	}
	l, err := stint.Open(filepath.Join(dir, "soak.db"), limits, &stint.Options{MaxResident: resident})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()

	spent, held := quota.Key("spent"), quota.Key("held")
	if d, err := l.Spend(spent, 10); err != nil || !d.Allowed {
		return fmt.Errorf("spend all of %v: %v, %v", spent, d.Allowed, err)
	}
	if err := l.Hold(held, time.Now().Add(24*time.Hour)); err != nil {
		return err
	}

	w := watch{l: l, start: time.Now()}
	w.header()
	var done, failed, over atomic.Int64
	var firstErr atomic.Value
	var wg sync.WaitGroup
	spend := func(n int64) {
		for i := range workers {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(n)))
				for range n / int64(workers) {
					key := flood.Key("client-" + strconv.Itoa(rnd.IntN(ids)))
					if _, err := l.Spend(key, 1); err != nil {
						failed.Add(1)
						firstErr.CompareAndSwap(nil, err)
					}
					if done.Add(1)%65536 == 0 {
						if n := l.Stats().Resident; n > int64(resident)+int64(resident)/20 {
							over.Add(1)
						}
					}
				}
			})
		}
		finished := make(chan struct{})
		go func() { wg.Wait(); close(finished) }()
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.line(done.Load())
				continue
			case <-finished:
			}
			return
		}
	}
	spend(decisions)
	took := time.Since(w.start)
	w.line(done.Load())
	fmt.Printf("%d decisions in %v: %.0f a second\n", done.Load(), took.Round(time.Millisecond), float64(done.Load())/took.Seconds())

	// The flood goes on at its pace for as long as it takes until ids expire as fast as they come.
	flooded := w.most
	for range 3 {
		spend(decisions / 10)
		w.line(done.Load())
	}
	again := w.most

	// And ends: what is left of it leaves the file.
	for begun := time.Now(); time.Since(begun) < 2*expiry+30*time.Second; {
		time.Sleep(every)
		w.line(done.Load())
	}
	last := w.line(done.Load())

	var broken []error
	for _, key := range []stint.Key{spent, held} {
		if d, err := l.Spend(key, 1); err != nil || d.Allowed {
			broken = append(broken, fmt.Errorf("%v was forgotten: allowed %v, %v", key, d.Allowed, err))
		}
	}
	if n := failed.Load(); n > 0 {
		broken = append(broken, fmt.Errorf("%d decisions failed, the first with: %w", n, firstErr.Load().(error)))
	}
	if n := over.Load(); n > 0 {
		broken = append(broken, fmt.Errorf("%d of %d times there were more than 5%% too many in memory", n, done.Load()/65536))
	}
	if again > flooded*3/2 {
		broken = append(broken, fmt.Errorf("the file grew from at most %d to %d bytes after its ids began to expire", flooded, again))
	}
	if err := l.Health(); err != nil {
		broken = append(broken, err)
	}
	fmt.Printf("evictions %d, loads %d, flushes %d of %d buckets, longest %v; checkpoints %d, swept %d, compactions %d, journaled %d, %v\n",
		last.Evictions, last.Loads, last.Flush.Flushes, last.Flush.Buckets, last.Flush.Longest.Round(time.Millisecond),
		last.File.Checkpoints, last.File.Swept, last.File.Compactions, last.File.Journaled, last.File.Err)
	return errors.Join(broken...)
}

// watch prints what a limiter comes to.
type watch struct {
	l     *stint.Limiter
	start time.Time
	seen  int64
	at    time.Time
	most  int64 // bytes of the file, at any time so far
}

func (w *watch) header() {
	w.at = w.start
	fmt.Printf("%8s %10s %9s %9s %9s %8s %8s %8s %9s %9s\n",
		"seconds", "decisions", "a second", "resident", "dirty", "RSS MiB", "file MiB", "free MiB", "journal", "swept")
}

func (w *watch) line(done int64) stint.Stats {
	st, now := w.l.Stats(), time.Now()
	rate := float64(done-w.seen) / now.Sub(w.at).Seconds()
	w.seen, w.at = done, now
	w.most = max(w.most, st.File.Bytes)
	fmt.Printf("%8.1f %10d %9.0f %9d %9d %8d %8d %8d %9d %9d\n", now.Sub(w.start).Seconds(), done, rate,
		st.Resident, st.Dirty, rss()>>20, st.File.Bytes>>20, st.File.Free>>20, st.File.Journaled, st.File.Swept)
	return st
}

// rss returns the bytes of memory that are the process's own, not pages of the mapped file: 0 where the system does not say.
func rss() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10
		}
	}
	return 0
}
