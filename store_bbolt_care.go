package stint

import (
	"errors"
	"sync"
	"time"
)

// What a BoltStore does for its file in the background: it takes the journal home, deletes what is past, and rewrites a
// file that is mostly free pages. All of it is done in small steps, between which saves go on.

// FileStats tell of a BoltStore's file, and of what was done for it since it was opened.
type FileStats struct {
	Format      int   // the number in the file: docs/format.md
	Bytes       int64 // of the file
	Free        int64 // of those, in pages that are free
	Journal     int64 // bytes of the journal, about
	Journaled   int64 // buckets whose newest TAT is in the journal
	Checkpoints int64 // times the journal was taken home
	Swept       int64 // buckets deleted because they were full again
	Compactions int64
	Err         error // why the last checkpoint, sweep and compaction (while one is due) failed, joined; nil if none did
}

// storeStats count what was done. Nobody holds mu while he waits for the disk.
type storeStats struct {
	mu                              sync.Mutex
	checkpoints, swept, compactions activity
	broken                          activity         // calls of a file that is
	now                             func() time.Time // the owner's clock
}

type activity struct {
	n int64
	failure
}

// useClock has the store tell the time of a failure by its owner's clock.
func (s *BoltStore) useClock(now func() time.Time) {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	s.stats.now = now
}

// ailing returns what is wrong with the file now, or nil: that it is broken, or what of its upkeep fails.
func (s *BoltStore) ailing() error {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	if err := s.stats.broken.says("the file is broken"); err != nil {
		return err
	}
	return errors.Join(s.stats.checkpoints.says("no checkpoint"), s.stats.swept.says("no sweep"), s.stats.compactions.says("no compaction"))
}

// heardLocked notes that the file is broken, if it is, and returns err.
func (s *BoltStore) heardLocked(err error) error {
	if err != nil && s.file.broken.Load() != nil {
		s.stats.record(&s.stats.broken, 0, err)
	}
	return err
}

// Stats returns what there is to tell of the file.
func (s *BoltStore) Stats() FileStats {
	st := FileStats{Format: formatNumber}
	st.Bytes, st.Free = s.sizes()
	s.indexMu.RLock()
	st.Journal, st.Journaled = s.journal, int64(s.journaledLocked())
	s.indexMu.RUnlock()
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	st.Checkpoints, st.Swept, st.Compactions = s.stats.checkpoints.n, s.stats.swept.n, s.stats.compactions.n
	st.Err = errors.Join(s.stats.checkpoints.err, s.stats.swept.err, s.stats.compactions.err)
	return st
}

func (st *storeStats) record(a *activity, n int64, err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case err == nil:
		a.n += n
		a.failure = failure{}
	case a.err == nil:
		a.failure = failure{err, st.now()}
	default:
		a.err = err
	}
	return err
}

// why returns why the last one failed.
func (st *storeStats) why(a *activity) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return a.err
}

// care takes the journal home whenever that is due, until the store is closed.
func (s *BoltStore) care() {
	defer close(s.stopped)
	for {
		select {
		case <-s.stop:
			return
		case <-s.work:
		}
		if s.checkpointDue() {
			s.checkpoint() // a failure is in the stats, and the journal still there
		}
		if s.missed.Swap(false) { // the next checkpoint may be due at once
			s.sweep(s.now.Load())
		}
		s.compactIfDue()
	}
}

func (s *BoltStore) compactIfDue() {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	if size, free := s.sizes(); size <= s.compactMin || free <= size/2 {
		s.stats.record(&s.stats.compactions, 0, nil) // what one failed at is no trouble any more
	} else if time.Since(s.notCompacted) > compactRetry {
		if s.compactLocked() != nil {
			s.notCompacted = time.Now()
		}
	}
}

func (s *BoltStore) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

func (s *BoltStore) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// sizes returns the bytes of the file, and how many of them are free pages.
func (s *BoltStore) sizes() (size, free int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return 0, 0
	}
	return s.file.sizes()
}
