package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// joined is errors.Join.
func joined(errs []error) error { return errors.Join(errs...) }

// A scenario is the background work while single decisions are timed.
type scenario struct {
	name  string
	label string // name in the chart
	cs    []Contestant
	most  int  // ids
	fill  bool // all ids are seen before, and asked for in turn; else each comes for the first time
	tweak func(*Config)
}

var scenarios = []scenario{
	{name: "nothing", cs: []Contestant{control, stintMemory}, fill: true},
	{name: "flushes of all dirty buckets, each second", label: ", flushing", cs: []Contestant{stintFlushed}, fill: true},
	{name: "flushes and checkpoints, one after the other", label: ", checkpointing", cs: []Contestant{stintFlushed},
		fill:  true,
		tweak: func(cfg *Config) { cfg.Flush = 20 * time.Millisecond }},
	{name: "evictions, with space for half of the ids", label: ", evicting", cs: []Contestant{stintFlushed}, fill: true,
		tweak: func(cfg *Config) { cfg.Resident = cfg.IDs / 2 }},
	{name: "growth from empty", label: ", growing", cs: []Contestant{stintMemory, stintFlushed}},
	{name: "growth from empty", label: ", growing", cs: inMemory[2:], most: 1_000_000},
}

// memory measures the bytes of a bucket, and the longest decisions.
func (b *bench) memory() error {
	var errs []error
	sizes := b.sized(100_000, 1_000_000, 10_000_000)
	if len(sizes) > 1 {
		sizes = sizes[1:]
	}

	m := &table{
		title:  "A bucket, its id of 24 bytes included, in a table grown from empty",
		header: []string{"bytes per bucket"},
		notes: []string{"Heap is what a forced collection leaves. Resident is by how much the process has grown. " +
			"GC is the time of runtime.GC with all buckets in memory, the median of five."},
	}
	for _, n := range sizes {
		w := sizeWorkload(n)
		m.header = append(m.header, w.Name+": heap", "resident", "GC", "grown in")
	}
	for _, c := range inMemory {
		row := []string{c.Name}
		for _, n := range sizes {
			w := sizeWorkload(n)
			cfg := Config{}
			cfg.Burst, cfg.Interval = w.Limit(true)
			team := b.assemble([]Contestant{c}, w, cfg, false)
			r, _ := team.do(c.Name, order{Do: "memory"})
			row = append(row, fmt.Sprintf("%.1f", r.PerID), fmt.Sprintf("%.1f", float64(r.RSS)/float64(n)), duration(r.GC),
				duration(r.Took))
			errs = append(errs, team.disband())
		}
		m.add(row...)
	}

	names, err := b.names()
	errs = append(errs, err)
	ts := []*table{m, names}
	length := 5 * time.Second
	if b.quick {
		length = 1500 * time.Millisecond
	}
	c := chart{title: fmt.Sprintf("Longest decisions, %s ids, one caller", count(float64(sizes[len(sizes)-1]))),
		y: "a decision takes at most, log scale",
		x: "except one in", xText: count, yText: durationOf}
	for _, n := range sizes {
		w := sizeWorkload(n)
		t := &table{
			title:  fmt.Sprintf("Single decisions during other work, %s ids, one caller", w.Name),
			header: []string{"", "other work", "p50", "p99", "p99.9", "p99.99", "longest"},
			notes:  []string{"Times include a reading of the clock. Each figure is the median of the rounds."},
		}
		for _, s := range scenarios {
			if s.most != 0 && n > s.most {
				continue
			}
			for _, contestant := range s.cs {
				all, err := b.latencyRounds(contestant, s, w, length)
				errs = append(errs, err)
				if len(all) == 0 {
					continue
				}
				of := func(pick func(Latencies) time.Duration) time.Duration {
					var ds []time.Duration
					for _, l := range all {
						ds = append(ds, pick(l))
					}
					return median(ds)
				}
				row := []time.Duration{
					of(func(l Latencies) time.Duration { return l.P50 }), of(func(l Latencies) time.Duration { return l.P99 }),
					of(func(l Latencies) time.Duration { return l.P999 }), of(func(l Latencies) time.Duration { return l.P9999 }),
					of(func(l Latencies) time.Duration { return l.Max }),
				}
				cells := []string{contestant.Name, s.name}
				l := line{name: contestant.Name + s.label}
				for i, d := range row {
					cells = append(cells, duration(d))
					if i < 4 {
						l.xs, l.ys = append(l.xs, []float64{2, 100, 1000, 10_000}[i]), append(l.ys, float64(d))
					}
				}
				t.add(cells...)
				if n == sizes[len(sizes)-1] {
					c.lines = append(c.lines, l)
				}
			}
		}
		ts = append(ts, t)
	}
	ts[len(ts)-1].notes = append(ts[len(ts)-1].notes, b.notes(inMemory)...)
	errs = append(errs, b.report("memory", "Memory", ts, b.draw("pauses", c)))
	return joined(errs)
}

// names measures the memory of a Limiter with many Names and few buckets.
func (b *bench) names() (*table, error) {
	const names, buckets = 20_000, 1_000
	t := &table{
		title:  "Many Names: the heap of a process with a Limiter, in all",
		header: []string{"", "heap"},
	}
	dir, err := os.MkdirTemp(b.dir, "names")
	if err != nil {
		return t, err
	}
	r, err := b.doIn(dir, order{Do: "names file", Workload: sizeWorkload(buckets), Count: names})
	if err != nil {
		return t, err
	}
	for i, what := range []string{
		fmt.Sprintf("the Limits of %s Names", count(names)),
		fmt.Sprintf("and a Limiter with %s buckets, each of another Name", count(buckets)),
		"and after a decision on each Name, on buckets of their own",
	} {
		t.add(what, bytesText(float64(r.Heaps[i])))
	}
	return t, nil
}

// latencyRounds times a contestant's decisions in five rounds. Without fill,
// each round starts with an empty contestant.
func (b *bench) latencyRounds(c Contestant, s scenario, w Workload, length time.Duration) (all []Latencies, err error) {
	cfg := Config{IDs: w.IDs}
	cfg.Burst, cfg.Interval = w.Limit(false)
	if s.tweak != nil {
		s.tweak(&cfg)
	}
	var team *team
	for range 5 {
		progress("%s: %s: %s", w.Name, c.Name, s.name)
		if team == nil {
			team = b.assemble([]Contestant{c}, w, cfg, s.fill && c.Name != control.Name)
		}
		o := order{Do: "latencies"}
		if s.fill {
			o.Length = length
		}
		if r, ok := team.do(c.Name, o); ok {
			all = append(all, r.Latencies)
		}
		if !s.fill {
			err = errors.Join(err, team.disband())
			team = nil
		}
	}
	if team != nil {
		err = errors.Join(err, team.disband())
	}
	return all, err
}
