package stint

import (
	"time"

	"github.com/stint-go/stint/internal/cache"
)

// Stats are counts since the Limiter was opened, and present sizes.
type Stats struct {
	Limits    map[Name]LimitStats // of Names declared now or before; Unknown has errors of undeclared ones
	Resident  int64               // buckets in memory
	Dirty     int64               // buckets in memory, changed since they were saved
	Loads     int64               // of buckets that were not in memory
	Evictions int64               // buckets removed from memory to make space
	Flush     SaveStats
	Commit    SaveStats
	File      FileStats // zero if the store has no file
	Forward   int64     // steps of the wall clock ahead, which the Limiter follows
	Backward  int64     // steps back, which it does not follow
	Err       error     // of hostlimit: why the owner's counts are missing
}

// LimitStats are counts of the calls for one limit. A Wait that ends with its
// ctx, or with Close, is no error.
type LimitStats struct {
	Allowed, Denied int64 // decisions to spend or to reserve
	Errors          int64 // calls that returned an error
}

// SaveStats are counts and times of the flushes or of the commits of one
// Limiter. A large flush is several saves, and each of them counts. Commits are
// the saves that Holds wait for, and decisions at Leased and Synced. Health says why
// the last one failed.
type SaveStats struct {
	Saves    int64         // that wrote something
	Buckets  int64         // written or deleted by them
	Failures int64         // the next flush writes what those of flushes did not
	Last     time.Duration // how long the last one took
	Longest  time.Duration
}

func saveStats(st cache.SaveStats) SaveStats {
	return SaveStats{Saves: st.Saves, Buckets: st.Buckets, Failures: st.Failures, Last: st.Last, Longest: st.Longest}
}

// Stats returns the counts. It looks at no bucket, so it takes as long with
// ten million in memory as with none.
func (l *Limiter) Stats() Stats {
	c := l.cache.Stats()
	st := Stats{
		Limits: make(map[Name]LimitStats), File: l.store.Stats(),
		Resident: c.Resident, Loads: c.Loads, Evictions: c.Evictions,
		Flush: saveStats(c.Flush), Commit: saveStats(c.Commit),
	}
	st.Forward, st.Backward = l.clock.Steps()
	add := func(name Name, allowed, denied, errs int64) {
		ls := st.Limits[name]
		ls.Allowed += allowed
		ls.Denied += denied
		ls.Errors += errs
		st.Limits[name] = ls
	}
	for _, name := range l.limits.Load().order {
		add(name, 0, 0, 0)
	}
	st.Dirty = l.cache.Counts(func(name uint16, allowed, denied int64) { add(Name(name), allowed, denied, 0) })
	l.statsMu.Lock()
	defer l.statsMu.Unlock()
	for name, n := range l.errs {
		add(name, 0, 0, n)
	}
	return st
}
