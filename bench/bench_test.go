package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The same contestants as ordinary benchmarks, for benchstat:
//
//	go test -run '^$' -bench Decision -count 10 | tee new.txt
//	benchstat -col /contestant new.txt
//
// Unlike the program, they count slow moments of the machine, and share one heap.

// open opens the contestant. If fill is true, it adds all ids of the workload.
func open(tb testing.TB, dir string, c Contestant, w Workload, cfg Config, fill bool) Decider {
	tb.Helper()
	cfg.IDs, cfg.Dir = w.IDs, dir
	d, err := c.Open(cfg)
	if errors.Is(err, errSkip) {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	if fill {
		if err := w.fill(d, 1); err != nil {
			tb.Fatal(err)
		}
	}
	return d
}

func closeDecider(tb testing.TB, d Decider) {
	if err := d.Close(); err != nil {
		tb.Error(err)
	}
	runtime.GC() // not in the next one's time
}

func label(s string) string { return strings.ReplaceAll(s, " ", "_") }

func BenchmarkDecision(b *testing.B) {
	for _, w := range workloads {
		if w.IDs > 1_000_000 || testing.Short() && w.IDs > 1000 {
			continue
		}
		for _, denied := range []bool{false, true} {
			for _, c := range within(slices.Concat(inMemory, grouped, least, leastGrouped), w) {
				name := fmt.Sprintf("ids=%s/outcome=%s/contestant=%s", label(w.Name), strings.ToLower(outcome(denied)),
					label(c.Name))
				dir := b.TempDir()
				var d Decider // for each b.N the same
				b.Run(name, func(b *testing.B) {
					if d == nil {
						cfg := Config{}
						cfg.Burst, cfg.Interval = w.Limit(denied)
						d = open(b, dir, c, w, cfg, true)
					}
					group, _ := groupOf(d)
					s := newStream(w, 1, group)
					allowed, asked := 0, 0
					b.ReportAllocs()
					b.ResetTimer()
					for asked < b.N*group {
						b.StopTimer()
						ids := s.next(min(b.N*group-asked, 192*64))
						b.StartTimer()
						allowed += allow(d, group, ids)
						asked += len(ids)
					}
					b.StopTimer()
					if denied && allowed != 0 || !denied && allowed != asked {
						b.Fatalf("%d of %d allowed", allowed, asked)
					}
					if group == each {
						b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(asked), "ns/decision")
					}
				})
				if d != nil {
					closeDecider(b, d)
				}
			}
		}
	}
}

func BenchmarkDurable(b *testing.B) {
	benchmarkCallers(b, durable, []int{1, 64})
}

func BenchmarkFlushed(b *testing.B) {
	benchmarkCallers(b, flushed, []int{1, 64})
}

func benchmarkCallers(b *testing.B, cs []Contestant, callers []int) {
	w := sizeWorkload(10_000)
	for _, n := range callers {
		for _, c := range cs {
			b.Run(fmt.Sprintf("callers=%d/contestant=%s", n, label(c.Name)), func(b *testing.B) {
				cfg := Config{Burst: 1e6, Interval: time.Minute, Callers: n}
				d := open(b, b.TempDir(), c, w, cfg, false)
				defer closeDecider(b, d)
				var wg sync.WaitGroup
				turns := sweepAll(w)
				b.ResetTimer()
				for caller := range n {
					wg.Go(func() {
						s := turns.stream()
						for range (b.N + caller) / n {
							if !d.Allow(s.next(1)[0]) {
								panic("a decision that should have been allowed was denied")
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
			})
		}
	}
}

// TestContestants checks that each contestant applies the limit that it is
// given.
func TestContestants(t *testing.T) {
	for _, c := range slices.Concat(inMemory, least, durable, flushed) {
		if c.Name == bareLog.Name {
			continue
		}
		t.Run(label(c.Name), func(t *testing.T) {
			const burst = 5
			d := open(t, t.TempDir(), c, sizeWorkload(100), Config{Burst: burst, Interval: time.Hour, Callers: 1}, false)
			defer closeDecider(t, d)
			for i := range uint32(3) {
				for n := range burst + 3 {
					if got, want := d.Allow(id(i)), n < burst; got != want {
						t.Fatalf("id %d, request %d of %d at once: %v", i, n+1, burst, got)
					}
				}
			}
		})
	}
}

func TestIDs(t *testing.T) {
	seen := make(map[string]bool)
	for i := range uint32(100_000) {
		s := id(i)
		if len(s) != idLen || seen[s] || seen[s[idLen-8:]] {
			t.Fatalf("id %d: %q", i, s)
		}
		seen[s], seen[s[idLen-8:]] = true, true
	}
}

func TestStreams(t *testing.T) {
	for _, w := range workloads {
		const n = 50_000
		s := newStream(w, 1, 1)
		s.next(n)
		if err := w.checkDistinct(n, distinct([]*stream{s})); err != nil {
			t.Error(err)
		}
	}
	few := Workload{"few", 10, 0}
	s := newStream(few, 1, 3)
	for range 100 {
		if ids := s.next(3); ids[0] == ids[1] || ids[0] == ids[2] || ids[1] == ids[2] {
			t.Fatalf("a group of the same ids: %q", ids)
		}
	}
	turns := sweepAll(few)
	a, b := turns.stream(), turns.stream()
	a.next(3)
	b.next(7)
	if n := distinct([]*stream{a, b}); n != 10 {
		t.Errorf("a sweep of 10 ids met %d", n)
	}
	if err := few.checkDistinct(1000, 1); err == nil {
		t.Error("1000 draws of 10 ids drew one id, without an error")
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for i := range 100_000 {
		h.add(time.Duration(i + 1))
	}
	for _, q := range []float64{.1, .5, .99, .9999, 1} {
		if got, want := float64(h.quantile(q)), q*100_000; got < want || got > want*1.04 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	tab := table{title: "T", header: []string{"a", "ns"},
		rows: [][]string{{"x", thousands(1234567)}, {"long", duration(1500 * time.Microsecond)}}}
	const want = "### T\n\n| a    |        ns |\n|------|----------:|\n| x    | 1,234,567 |\n| long |   1.50 ms |\n"
	if got := tab.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
