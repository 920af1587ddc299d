package main

import (
	"errors"
	"fmt"
	"time"
)

// perHour is the limit of the tables in this file: 4,000 per hour.
var perHour = Config{Burst: 4000, Interval: time.Hour / 4000}

// durable measures decisions per second that no crash loses.
func (b *bench) durable() error {
	callers := []int{1, 8, 64, 512}
	length, rounds := 1500*time.Millisecond, 5
	if b.quick {
		length, rounds = 300*time.Millisecond, 9
	}
	// Every load gets ids of its own. There are few, so that leases of 500 tokens
	// are renewed again and again, once in 250 decisions. There are enough that no
	// id runs out of tokens: a load lasts for 28 million decisions.
	const ids = 10_000
	w := sizeWorkload(ids * len(callers) * rounds)
	cfg := perHour
	cfg.Callers = callers[len(callers)-1]
	figures, errs := b.loads(durable, w, cfg, callers, length, rounds, ids)

	t := &table{title: "Durable decisions per second, by callers; limits of 4,000 per hour over 10,000 ids",
		header: []string{"per second"}}
	for _, n := range callers {
		t.header = append(t.header, fmt.Sprint(n), "p50", "p99")
	}
	c := chart{title: "Durable decisions", y: "per second, log scale", x: "callers", xText: count, yText: count}
	for _, contestant := range durable {
		if b.skipped[contestant.Name] != "" {
			continue
		}
		row, l := []string{contestant.Name}, line{name: contestant.Name}
		for _, n := range callers {
			f := figures[contestant.Name][n]
			row = append(row, count(f.perSecond()), duration(f.latency(func(l Latencies) time.Duration { return l.P50 })),
				duration(f.latency(func(l Latencies) time.Duration { return l.P99 })))
			l.xs, l.ys = append(l.xs, float64(n)), append(l.ys, f.perSecond())
		}
		t.add(row...)
		c.lines = append(c.lines, l)
	}
	t.notes = append([]string{"The ids are in the store before the measurement. " +
		"Flushed is not durable. It is here to compare leased with."}, b.notes(durable)...)
	times := &table{title: "One contestant's decisions per second ÷ another's", header: []string{"callers"},
		notes: []string{"Each ratio is the median of the ratios of the rounds. In a round the contestants take turns."}}
	for _, n := range callers {
		times.header = append(times.header, fmt.Sprint(n))
	}
	for _, pair := range [][2]Contestant{
		{bareLog, stintSynced}, {stintSynced, redisAlways}, {stintSynced, sqliteFull}, {stintSynced, pebbleSync},
		{stintSynced, badgerSync},
		{stintFlushed, stintLeased},
	} {
		row := []string{pair[0].Name + " ÷ " + pair[1].Name}
		for _, n := range callers {
			row = append(row, ratio(figures[pair[0].Name][n].times(figures[pair[1].Name][n]), 1))
		}
		times.add(row...)
	}
	errs = append(errs, b.report("durable", "Durable", []*table{t, times}, b.draw("durable", c)))
	return joined(errs)
}

// flushed measures decisions per second, end to end. A crash may lose a second
// of these.
func (b *bench) flushed() error {
	callers := []int{1, 2, 64}
	length, rounds := 3*time.Second, 5
	if b.quick {
		length, rounds = 1500*time.Millisecond, 5
	}
	var ts []*table
	var errs []error
	sizes := b.sized(100_000, 1_000_000, 10_000_000)
	if len(sizes) > 1 {
		sizes = sizes[1:]
	}
	for _, n := range sizes {
		w := sizeWorkload(n)
		cfg := perHour
		cfg.Burst = 100_000 // 4,000 would not be enough for few ids
		cfg.Callers = callers[len(callers)-1]
		figures, failed := b.loads(flushed, w, cfg, callers, length, rounds, 0)
		errs = append(errs, failed...)
		t := &table{
			title: fmt.Sprintf("Decisions per second, saved once a second; %s ids in turn, so that all are dirty",
				w.Name),
			header: []string{"per second, by callers", "1", "p99.9", "2", "p99.9", "64", "p99.9", "written, MB/s",
				"a flush, buckets", "the longest"},
		}
		for _, contestant := range flushed {
			if b.skipped[contestant.Name] != "" {
				continue
			}
			row := []string{contestant.Name}
			var all load
			for _, n := range callers {
				f := figures[contestant.Name][n]
				all = append(all, f...)
				row = append(row, count(f.perSecond()), duration(f.latency(func(l Latencies) time.Duration { return l.P999 })))
			}
			written, flushes, buckets, longest := "–", int64(0), int64(0), time.Duration(0)
			var rates []float64
			for _, r := range all {
				rates = append(rates, float64(r.Bytes)/1e6/r.Took.Seconds())
				flushes, buckets, longest = flushes+r.Flushes, buckets+r.Flushed, max(longest, r.Longest)
			}
			if v := median(rates); v > 0 {
				written = significant(v)
			}
			perFlush := "–"
			if flushes > 0 {
				perFlush = thousands(buckets / flushes)
			}
			t.add(append(row, written, perFlush, duration(longest))...)
		}
		per := func(name string, callers int) float64 { return figures[name][callers].perSecond() }
		best := 0.0
		for _, n := range callers {
			best = max(best, per(redisEverysec.Name, n))
		}
		t.notes = []string{fmt.Sprintf("With one caller, memory ÷ flushed: %s. "+
			"Flushed with one caller ÷ the most that Redis does: %s.",
			ratio(per(stintMemory.Name, 1), per(stintFlushed.Name, 1)), ratio(per(stintFlushed.Name, 1), best)),
			"The caller makes its ids between decisions. It reads the clock for each decision, " +
				"or for each sixteenth if a decision takes less than 5 µs. " +
				"The bytes that Redis writes are not counted."}
		ts = append(ts, t)
	}
	ts[len(ts)-1].notes = append(ts[len(ts)-1].notes, b.notes(flushed)...)
	errs = append(errs, b.report("flushed", "Flushed, end to end", ts))
	return joined(errs)
}

// load is the rounds of one contestant under one number of callers.
type load []reply

// times returns the ratio to the load of another contestant. It is the median
// of the ratios of each round.
func (l load) times(other load) float64 {
	var vs []float64
	for i := range min(len(l), len(other)) {
		vs = append(vs, l[i].PerSecond/other[i].PerSecond)
	}
	return median(vs)
}

func (l load) perSecond() float64 {
	var vs []float64
	for _, r := range l {
		vs = append(vs, r.PerSecond)
	}
	return median(vs)
}

func (l load) latency(pick func(Latencies) time.Duration) time.Duration {
	var ds []time.Duration
	for _, r := range l {
		ds = append(ds, pick(r.Latencies))
	}
	return median(ds)
}

// loads measures contestants in turns under load. If share is 0, each load uses
// all ids in turn. Otherwise each load uses share ids of its own.
func (b *bench) loads(cs []Contestant, w Workload, cfg Config, callers []int, length time.Duration, rounds,
	share int) (figures map[string]map[int]load, errs []error) {
	figures = make(map[string]map[int]load)
	t := b.assemble(cs, w, cfg, true)
	for round := range rounds {
		for k, n := range callers {
			for _, name := range t.names {
				progress("%s: %s: round %d, %d callers", w.Name, name, round, n)
				o := order{Do: "load", Callers: n, Length: length, First: (round*len(callers) + k) * share, Count: share}
				if r, ok := t.do(name, o); ok {
					if figures[name] == nil {
						figures[name] = make(map[int]load)
					}
					figures[name][n] = append(figures[name][n], r)
				}
			}
		}
	}
	for _, name := range t.names {
		if r, ok := t.do(name, order{Do: "size"}); ok && r.Bytes == 0 && hasFiles(name) {
			errs = append(errs, errors.New(name+": nothing is in its files"))
		}
	}
	return figures, append(errs, t.disband())
}
