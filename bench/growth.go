package main

import (
	"fmt"
	"os"
	"time"
)

// growth measures how the costs of stint's file grow with its contents, and the
// cost of a decision with the number of callers.
func (b *bench) growth() error {
	var errs []error
	sizes := b.sized(10_000, 100_000, 1_000_000, 10_000_000)
	dirty := []int{1_000, 10_000, 100_000, 1_000_000}

	files := &table{
		title: "Open, and a miss, by the buckets in the file",
		header: []string{"buckets", "file", "made in", "Open, clean", "Open, after a crash", "miss, in the file",
			"miss, in neither"},
		notes: []string{"The time of Open includes the first decision on a stored bucket. The file is in the page cache. " +
			"The crash comes after a flush of all buckets, or of a million if there are more. " +
			"A miss is a decision on a bucket that is not in memory."},
	}
	flushes := &table{
		title: "A flush, by stored and dirty buckets",
		header: []string{"stored", "dirty", "a flush", "a bucket", "written", "a bucket", "on the disk",
			"with what is written later"},
		notes: []string{"All stored buckets are in memory, and the dirty ones are spread over them. " +
			`"Written" is what stint gives to the system (wchar of /proc/self/io). ` +
			`"On the disk" adds what the file system writes, for each bucket (write_bytes). ` +
			`"Written later" is by upkeep and by Close, for each flushed bucket.`},
	}
	opens := chart{title: "Open", y: "log scale", x: "buckets in the file", xText: count, yText: durationOf,
		lines: []line{{name: "clean"}, {name: "after a crash"}}}
	flush := chart{title: "A flush", y: "log scale", x: "dirty buckets", xText: count, yText: durationOf}

	for _, n := range sizes {
		w := sizeWorkload(n)
		cfg := Config{}
		cfg.Burst, cfg.Interval = w.Limit(false)
		cfg.IDs = n + 1_000_000
		dir, err := os.MkdirTemp(b.dir, "file")
		if err != nil {
			return err
		}
		// do carries out the order in a new process, on the file in dir.
		do := func(o order) reply {
			progress("%s: %s", w.Name, o.Do)
			o.Contestant, o.Config, o.Workload = "stint", cfg, w
			r, err := b.doIn(dir, o)
			if err != nil && o.Do != "crash file" { // that order kills the process
				errs = append(errs, err)
			}
			return r
		}
		rounds := func(o order) time.Duration {
			var took []time.Duration
			for range 5 {
				took = append(took, do(o).Took)
			}
			return median(took)
		}
		built := do(order{Do: "build file"})
		clean := rounds(order{Do: "open file"})
		stored := rounds(order{Do: "miss file", Count: min(n, 20_000)})
		absent := rounds(order{Do: "miss file", Count: min(n, 20_000), Denied: true})
		l := line{name: count(float64(n)) + " stored"}
		for _, d := range dirty {
			if d > n {
				continue
			}
			r := do(order{Do: "flush file", Count: d})
			flushes.add(count(float64(n)), count(float64(d)), duration(r.Took), duration(r.Took/time.Duration(d)),
				bytesText(float64(r.Bytes)), bytesText(float64(r.Bytes)/float64(d)),
				bytesText(float64(r.OnDisk)/float64(d)), bytesText(r.PerID))
			l.xs, l.ys = append(l.xs, float64(d)), append(l.ys, float64(r.Took))
		}
		flush.lines = append(flush.lines, l)
		do(order{Do: "crash file", Count: min(n, 1_000_000)})
		crashed := rounds(order{Do: "open file"})
		files.add(count(float64(n)), bytesText(float64(built.Bytes)), duration(built.Took), duration(clean),
			duration(crashed), duration(stored), duration(absent))
		for i, d := range []time.Duration{clean, crashed} {
			opens.lines[i].xs, opens.lines[i].ys = append(opens.lines[i].xs, float64(n)), append(opens.lines[i].ys, float64(d))
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}

	callers := []int{1, 2, 8, 64, 512}
	w := sizeWorkload(min(b.maxIDs, 1_000_000))
	cs := []Contestant{stintMemory, stintFlushed, xtimeSyncMap, goLimiter}
	length := time.Second
	if b.quick {
		length = 300 * time.Millisecond
	}
	cfg := perHour
	cfg.Burst = 100_000
	figures, failed := b.loads(cs, w, cfg, callers, length, 5, 0)
	errs = append(errs, failed...)
	threads := &table{title: fmt.Sprintf("Decisions per second, by callers, %s ids in turn", w.Name),
		header: []string{"per second"}}
	for _, n := range callers {
		threads.header = append(threads.header, fmt.Sprint(n))
	}
	for _, c := range cs {
		row := []string{c.Name}
		for _, n := range callers {
			row = append(row, count(figures[c.Name][n].perSecond()))
		}
		threads.add(row...)
	}
	flood, err := b.flood()
	errs = append(errs, err)
	errs = append(errs, b.report("growth", "Growth", []*table{files, flushes, flood, threads}, b.draw("flush", flush),
		b.draw("open", opens)))
	return joined(errs)
}

// flood measures what a new id costs while a flood of them fills a large file.
func (b *bench) flood() (*table, error) {
	resident := min(floodResident, max(b.flooded/10, 1000))
	t := &table{
		title: fmt.Sprintf("A flood of %s new ids at full speed, MaxResident %s", count(float64(b.flooded)),
			count(float64(resident))),
		header: []string{"stored", "a new id", "a second", "the longest wait", "in memory, p99.9", "the longest",
			"bare, p99.9", "file", "resident memory"},
		notes: []string{"One goroutine spends once on each new id. " +
			`"In memory" are decisions of another goroutine on 100 ids, 16 each millisecond. "Bare" is ` +
			"what as much work takes there without a limiter."},
	}
	dir, err := os.MkdirTemp(b.dir, "flood")
	if err != nil {
		return t, err
	}
	defer os.RemoveAll(dir)
	w := sizeWorkload(b.flooded)
	cfg := Config{Resident: resident}
	cfg.Burst, cfg.Interval = w.Limit(false)
	r, err := b.doIn(dir, order{Do: "flood file", Contestant: "stint", Config: cfg, Workload: w, Count: b.flooded})
	for _, p := range r.Flood {
		t.add(count(float64(p.Stored)), duration(p.PerID), count(float64(time.Second)/float64(p.PerID)),
			duration(p.Longest), duration(p.Known.P999), duration(p.Known.Max), duration(p.Bare.P999),
			bytesText(float64(p.Bytes)), bytesText(float64(p.RSS)))
	}
	if err != nil {
		t.notes = append(t.notes, "The flood ended early: "+err.Error())
	}
	return t, err
}

// doIn has a child of its own carry out one order in a folder.
func (b *bench) doIn(dir string, o order) (reply, error) {
	c, err := startChild(b.dir)
	if err != nil {
		return reply{}, err
	}
	defer c.process.End()
	c.dir = dir
	return c.do(o)
}
