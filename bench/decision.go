package main

import (
	"fmt"
	"slices"
	"time"
)

// decision measures how long a caller waits for a decision, in nanoseconds.
func (b *bench) decision() error {
	cs := slices.Concat(inMemory, grouped, least, leastGrouped)
	length := 200 * time.Millisecond
	if b.quick {
		length = 60 * time.Millisecond
	}
	type cell struct {
		outcome  bool // denied
		threads  int
		workload string
	}
	const crowd = 16 // goroutines, on two workloads
	threadsOf := func(w Workload) []int {
		if w.Name == "hot" || w.Name == "1k" {
			return []int{1, 2, crowd}
		}
		return []int{1, 2}
	}
	figures := make(map[cell]map[string]float64) // by contestant
	busy := make(map[cell]map[string]bool)       // hardly any quiet slices
	allocs := make(map[bool]map[string]float64)
	kept, measured := 0, 0
	var errs []error

	for _, denied := range []bool{false, true} {
		allocs[denied] = make(map[string]float64)
		for _, w := range workloads {
			if w.IDs > b.maxIDs {
				continue
			}
			cfg := Config{}
			cfg.Burst, cfg.Interval = w.Limit(denied)
			team := b.assemble(within(cs, w), w, cfg, true)
			rounds := make(map[cell]map[string][]float64)
			quiet := make(map[cell]map[string]int)
			for r := -1; r < b.rounds; r++ { // the first is to warm up
				for _, threads := range threadsOf(w) {
					at := cell{denied, threads, w.Name}
					if rounds[at] == nil {
						rounds[at], quiet[at] = make(map[string][]float64), make(map[string]int)
					}
					for _, name := range team.names {
						progress("%s, denied %v: round %d: %s", w.Name, denied, r, name)
						reply, ok := team.do(name, order{Do: "round", Denied: denied, Callers: threads, Length: length,
							Seed: uint64(r + 2)})
						if ok && r >= 0 {
							rounds[at][name] = append(rounds[at][name], reply.Round.NS)
							kept, measured = kept+reply.Round.Kept, measured+reply.Round.Slices
							quiet[at][name] += reply.Round.Kept
						}
					}
				}
			}
			for at, by := range rounds {
				figures[at], busy[at] = make(map[string]float64), make(map[string]bool)
				for name, ns := range by {
					figures[at][name] = median(ns)
					busy[at][name] = quiet[at][name] < 5*b.rounds
				}
			}
			for _, name := range team.names {
				if reply, ok := team.do(name, order{Do: "allocations"}); ok {
					allocs[denied][name] = max(allocs[denied][name], reply.Allocs)
				}
			}
			errs = append(errs, team.disband())
		}
	}

	var ts []*table
	for _, denied := range []bool{false, true} {
		for threads := 1; threads <= 2; threads++ {
			t := &table{title: fmt.Sprintf("%s, %d %s, ns per decision", outcome(denied), threads, plural(threads, "thread"))}
			t.header = []string{"24-byte ids, all seen before"}
			var columns []cell
			for _, w := range workloads {
				t.header = append(t.header, w.Name)
				columns = append(columns, cell{denied, threads, w.Name})
			}
			if threads == 2 {
				for _, w := range workloads {
					if slices.Contains(threadsOf(w), crowd) {
						t.header = append(t.header, fmt.Sprintf("%s, %d goroutines", w.Name, crowd))
						columns = append(columns, cell{denied, crowd, w.Name})
					}
				}
				t.notes = append(t.notes, fmt.Sprintf("With %d goroutines a figure is the processors' time for a decision: "+
					"one goroutine's, if each had a processor.", crowd))
			}
			t.header = append(t.header, "allocations", "exact")
			for _, c := range cs {
				row := []string{c.Name}
				for _, at := range columns {
					text := nanoseconds(figures[at][c.Name])
					if busy[at][c.Name] {
						text = "~" + text
					}
					row = append(row, text)
				}
				t.add(append(row, fmt.Sprint(allocs[denied][c.Name]), yesNo(c.Exact))...)
			}
			compare := func(title string, figure func(of map[string]float64) string) {
				row := []string{title}
				for _, at := range columns {
					row = append(row, figure(figures[at]))
				}
				t.add(row...)
			}
			compare("**fastest exact rival ÷ stint memory**", func(of map[string]float64) string {
				return ratio(fastest(of, exactRivals()), of[stintMemory.Name])
			})
			compare("**x/time in sync.Map ÷ stint memory**", func(of map[string]float64) string {
				return ratio(of[xtimeSyncMap.Name], of[stintMemory.Name])
			})
			compare("**fastest exact rival ÷ DoEach**", func(of map[string]float64) string {
				return ratio(fastest(of, exactRivals()), of[stintEach.Name])
			})
			compare("**SpendAll of 3 ÷ stint memory**", func(of map[string]float64) string {
				return ratio(of[stintAll.Name], of[stintMemory.Name])
			})
			compare("**flushed ÷ memory**", func(of map[string]float64) string {
				return ratio(of[stintFlushed.Name], of[stintMemory.Name])
			})
			compare("**fastest exact rival ÷ the least**", func(of map[string]float64) string {
				return ratio(fastest(of, exactRivals()), fastest(of, names(least)))
			})
			compare("**fastest exact rival ÷ the least, 64 at a time**", func(of map[string]float64) string {
				return ratio(fastest(of, exactRivals()), fastest(of, names(leastGrouped)))
			})
			ts = append(ts, t)
		}
	}
	if measured > 0 {
		last := ts[len(ts)-1]
		last.notes = append(last.notes, fmt.Sprintf(
			"%d of %d slices ran at full speed, and only these count. ~ marks figures with hardly any of them.",
			kept, measured))
		last.notes = append(last.notes, b.notes(cs)...)
	}

	c := chart{title: "A decision, allowed, one thread", y: "ns, log scale", x: "ids", xText: count,
		yText: func(v float64) string { return nanoseconds(v) }}
	for _, contestant := range cs {
		l := line{name: contestant.Name}
		for _, w := range workloads {
			if w.Zipf == 0 {
				l.xs = append(l.xs, float64(w.IDs))
				l.ys = append(l.ys, figures[cell{false, 1, w.Name}][contestant.Name])
			}
		}
		c.lines = append(c.lines, l)
	}
	errs = append(errs, b.report("decision", "Decision", ts, b.draw("decision", c)))
	return joined(errs)
}

// within leaves out contestants that need more ids in a call than there are.
func within(cs []Contestant, w Workload) (fit []Contestant) {
	for _, c := range cs {
		if c.Name != stintAll.Name || w.IDs >= 3 {
			fit = append(fit, c)
		}
	}
	return fit
}

func outcome(denied bool) string {
	if denied {
		return "Denied"
	}
	return "Allowed"
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
