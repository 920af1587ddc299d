package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/stint-go/stint"
)

// fileOrders are the orders about stint's file, by name.
var fileOrders = map[string]func(order) (reply, error){
	"build file": buildFile,
	"open file":  openFile,
	"crash file": crashFile,
	"flush file": flushFile,
	"miss file":  missFile,
	"flood file": floodFile,
	"names file": namesFile,
}

const fileName = "stint.db"

// buildFile makes a file with all of the ids in its tree. So no later
// measurement runs during a checkpoint of millions.
func buildFile(o order) (r reply, err error) {
	begun := time.Now()
	l, err := openLimiter(filepath.Join(o.Config.Dir, fileName), stint.Flushed, o.Config)
	if err != nil {
		return r, err
	}
	if err := o.Workload.fill(&stintDecider{l, stint.Flushed, 1}, 1); err != nil {
		return r, err
	}
	if err := l.Close(); err != nil {
		return r, err
	}
	r.Took, r.Bytes = time.Since(begun), sizeOf(o.Config.Dir)
	o.Config.Flush = 10 * time.Millisecond // an idle journal is applied after some of these
	if l, err = openLimiter(filepath.Join(o.Config.Dir, fileName), stint.Flushed, o.Config); err != nil {
		return r, err
	}
	for l.Stats().File.Journaled > 0 {
		time.Sleep(o.Config.Flush)
	}
	if err := l.Close(); err != nil {
		return r, err
	}
	if r.Bytes < 32*int64(o.Workload.IDs) {
		return r, fmt.Errorf("a file of %d bytes cannot hold %d buckets", r.Bytes, o.Workload.IDs)
	}
	return r, nil
}

// namesFile returns the heaps of Limits with o.Count Names, of a Limiter with them
// and a bucket of other Names for each id of the workload, and of the same after a
// decision on each Name.
func namesFile(o order) (r reply, err error) {
	heap := func() int64 {
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	empty := heap()
	names := make(stint.Names)
	for i := range o.Count {
		names[stint.Name(1+i)] = stint.NameSpec{Label: fmt.Sprintf("name %d", i), Limit: stint.PerHour(1000)}
	}
	limits, err := stint.NewLimits(names)
	if err != nil {
		return r, err
	}
	names = nil
	r.Heaps = []int64{heap() - empty}
	l, err := stint.Open(filepath.Join(o.Config.Dir, fileName), limits, nil)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	for _, spends := range []int{o.Workload.IDs, o.Count} {
		for i := range spends {
			if _, err := l.Spend(stint.Name(1+i*(o.Count/spends)).Key(id(uint32(i))), 1); err != nil {
				return r, err
			}
		}
		r.Heaps = append(r.Heaps, heap()-empty)
	}
	return r, nil
}

// openFile times Open, and the first decision, on a copy of the file in the
// page cache.
func openFile(o order) (r reply, err error) {
	path := filepath.Join(o.Config.Dir, "copy.db")
	if err := copyFile(path, filepath.Join(o.Config.Dir, fileName)); err != nil {
		return r, err
	}
	defer os.Remove(path)
	begun := time.Now()
	l, err := openLimiter(path, stint.Flushed, o.Config)
	if err != nil {
		return r, err
	}
	d, err := l.Check(perID.Key(id(0)), 1)
	r.Took, r.RSS = time.Since(begun), rss()
	if err == nil && d.ResetAfter <= o.Config.Interval {
		err = errors.New("the first id is not in the file")
	}
	return r, errors.Join(err, l.Close())
}

// crashFile leaves the file as a crash does soon after a flush of o.Count buckets.
func crashFile(o order) (r reply, err error) {
	l, err := openLimiter(filepath.Join(o.Config.Dir, fileName), stint.Flushed, o.Config)
	if err != nil {
		return r, err
	}
	if err := spendOn(l, 0, o.Count, 1); err != nil {
		return r, err
	}
	if err := l.Flush(); err != nil {
		return r, err
	}
	return r, syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// flushFile times flushes of o.Count dirty buckets, and returns what they wrote. Bytes
// are of a flush, and OnDisk adds those of the file system. PerID has the
// bytes for each bucket, with what upkeep and Close write later.
func flushFile(o order) (r reply, err error) {
	o.Config.Flush = time.Hour // only when told to
	l, err := openLimiter(filepath.Join(o.Config.Dir, fileName), stint.Flushed, o.Config)
	if err != nil {
		return r, err
	}
	const rounds = 5
	var took []time.Duration
	var wrote, onDisk []int64
	for i := range o.Workload.IDs { // all are in memory, and few dirty
		if _, err := l.Check(stint.Key{Name: 1, ID: id(uint32(i))}, 1); err != nil {
			return r, err
		}
	}
	before, flushed := bytesWritten(), l.Stats().Flush.Buckets
	for range rounds {
		if err := spendOn(l, 0, o.Count, o.Workload.IDs/o.Count); err != nil {
			return r, err
		}
		begun, at, diskAt := time.Now(), bytesWritten(), bytesOnDisk()
		if err := l.Flush(); err != nil {
			return r, err
		}
		took, wrote, onDisk = append(took, time.Since(begun)), append(wrote, bytesWritten()-at), append(onDisk,
			bytesOnDisk()-diskAt)
	}
	if n := l.Stats().Flush.Buckets - flushed; n != int64(rounds*o.Count) {
		return r, fmt.Errorf("%d flushes of %d buckets wrote %d", rounds, o.Count, n)
	}
	r.Took, r.Bytes, r.OnDisk = median(took), median(wrote), median(onDisk)
	err = l.Close()
	r.PerID = float64(bytesWritten()-before) / float64(rounds*o.Count)
	return r, err
}

// missFile times decisions on o.Count buckets that are in the file, but not in
// memory; with o.Denied, on as many that are in neither.
func missFile(o order) (r reply, err error) {
	l, err := openLimiter(filepath.Join(o.Config.Dir, fileName), stint.Flushed, o.Config)
	if err != nil {
		return r, err
	}
	first := 0
	if o.Denied {
		first = o.Workload.IDs
	}
	loads := l.Stats().Loads
	begun := time.Now()
	if err := spendOn(l, first, o.Count, 1); err != nil {
		return r, err
	}
	r.Took = time.Since(begun) / time.Duration(o.Count)
	if n := l.Stats().Loads - loads; !o.Denied && n < int64(o.Count) {
		return r, fmt.Errorf("%d decisions, and only %d were misses", o.Count, n)
	}
	return r, l.Close()
}

// spendOn spends a token of each of count buckets. Their ids are step numbers
// apart.
func spendOn(l *stint.Limiter, first, count, step int) error {
	d := stintDecider{l, stint.Flushed, 1}
	for i := range count {
		if !d.Allow(id(uint32(first + i*step))) {
			return errors.New("a decision that should have been allowed was denied")
		}
	}
	return nil
}

func copyFile(to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// sizeOf returns how many bytes the files of a folder have.
func sizeOf(dir string) (n int64) {
	filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
