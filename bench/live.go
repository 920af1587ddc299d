package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/time/rate"

	"github.com/stint-go/stint"
)

// Memory and file by the ids that come, of which few live: a server with short
// limits, to which new clients come all the time. The clock is simulated.

const (
	livePerSecond = 2000        // new ids
	liveFor       = time.Minute // until the bucket of an id is full again
)

// live measures memory, file and what is written, while a number of ids live and
// so many times that number have come.
func (b *bench) live() error {
	t := &table{
		title:  fmt.Sprintf("%s new ids a second, whose buckets live for %v", thousands(livePerSecond), liveFor),
		header: []string{"ids that came ÷ ids that live", "", "memory, MB", "file, MB", "written, KB/s"},
		notes: []string{"The time is simulated, with a flush in each second. Memory is the heap after a collection. " +
			"x/time is a map of limiters; once a second a janitor deletes those that are full. " +
			"Each figure is one run: none depends on how busy the machine is."},
	}
	for _, ratio := range []int{1, 10, 100} {
		for _, c := range []struct {
			name string
			run  func(dir string, seconds int) (file int64, drop func(), err error)
		}{{"stint", liveStint}, {"x/time, a map with a janitor", liveMap}} {
			progress("live: %d: %s", ratio, c.name)
			dir, err := os.MkdirTemp(b.dir, "live")
			if err != nil {
				return err
			}
			seconds := ratio * int(liveFor/time.Second)
			before, written := heapInUse(), bytesWritten()
			file, end, err := c.run(dir, seconds)
			heap, wrote := heapInUse()-before, bytesWritten()-written
			if end != nil {
				end()
			}
			if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
				return err
			}
			t.add(fmt.Sprint(ratio), c.name, significant(float64(heap)/1e6), significant(float64(file)/1e6),
				significant(float64(wrote)/1e3/float64(seconds)))
		}
	}
	return b.report("live", "Live", []*table{t})
}

func liveID(i int) string { return fmt.Sprintf("198.51.100.7 client %d", i) }

func liveStint(dir string, seconds int) (file int64, end func(), err error) {
	const name stint.Name = 1
	names := stint.Names{name: {Label: "A", Limit: stint.PerMinute(3)}}
	limits, err := stint.NewLimits(names)
	if err != nil {
		return 0, nil, err
	}
	path := filepath.Join(dir, "stint.db")
	store, err := stint.OpenBolt(path, names, nil)
	if err != nil {
		return 0, nil, err
	}
	now := time.Now()
	l, err := stint.New(store, limits, &stint.Options{Now: func() time.Time { return now }})
	if err != nil {
		return 0, nil, errors.Join(err, store.Close())
	}
	for second := range seconds {
		for i := range livePerSecond {
			if _, err := l.Spend(name.Key(liveID(second*livePerSecond+i)), 3); err != nil {
				return 0, func() { l.Close() }, err
			}
		}
		if err := errors.Join(l.Flush(), store.Maintain(now)); err != nil {
			return 0, func() { l.Close() }, err
		}
		now = now.Add(time.Second)
	}
	info, err := os.Stat(path)
	if err == nil {
		file = info.Size()
	}
	return file, func() { l.Close() }, err
}

func liveMap(_ string, seconds int) (file int64, end func(), err error) {
	limiters, now := make(map[string]*rate.Limiter), time.Now()
	for second := range seconds {
		for i := range livePerSecond {
			id := liveID(second*livePerSecond + i)
			l := limiters[id]
			if l == nil {
				l = rate.NewLimiter(rate.Every(liveFor/3), 3)
				limiters[id] = l
			}
			l.AllowN(now, 3)
		}
		now = now.Add(time.Second)
		for id, l := range limiters {
			if l.TokensAt(now) >= 3 {
				delete(limiters, id)
			}
		}
	}
	return 0, func() { clear(limiters) }, nil
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
