package boltstore

import (
	"errors"
	"sync"
	"time"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/since"
)

// FileStats describe the file, and what was done for it since it was opened.
type FileStats struct {
	Format      int
	Bytes       int64
	Free        int64
	Journal     int64
	Journaled   int64
	Checkpoints int64
	Swept       int64
	Compactions int64
	Err         error
}

type stats struct {
	mu                              sync.Mutex
	checkpoints, swept, compactions activity
	broken                          activity // calls of a broken file
}

// activity counts the successes of one kind of maintenance, and keeps its last
// failure.
type activity struct {
	n int64
	since.Failure
}

// record records the end of an attempt, and returns err. A failure gets the time
// of the last Maintain, because Maintain's caller may have another clock.
func (s *Store) record(a *activity, n int64, err error) error {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	now := time.Now()
	if maintained := s.now.Load(); maintained != 0 {
		now = time.Unix(0, maintained)
	}
	if a.Failure = a.Next(err, now); err == nil {
		a.n += n
	}
	return err
}

// why returns the failure of the last attempt, or nil.
func (st *stats) why(a *activity) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return a.Err
}

// Health returns nil if the file and its maintenance work. Otherwise it returns
// the damage that broke the file, or the failures of the maintenance.
func (s *Store) Health() error {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	if err := s.stats.broken.Says("the file is broken"); err != nil {
		return err
	}
	return errors.Join(s.stats.checkpoints.Says("no checkpoint"), s.stats.swept.Says("no sweep"),
		s.stats.compactions.Says("no compaction"))
}

// Stats returns the statistics of the file.
func (s *Store) Stats() FileStats {
	st := FileStats{Format: format.Number}
	st.Bytes, st.Free = s.sizes()
	s.journal.mu.RLock()
	st.Journal, st.Journaled = s.journal.bytes, int64(s.journal.lenLocked())
	s.journal.mu.RUnlock()
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	checkpoints, swept, compactions := &s.stats.checkpoints, &s.stats.swept, &s.stats.compactions
	st.Checkpoints, st.Swept, st.Compactions = checkpoints.n, swept.n, compactions.n
	st.Err = errors.Join(checkpoints.Err, swept.Err, compactions.Err)
	return st
}

// sizes returns the bytes of the file, and those of its free pages.
func (s *Store) sizes() (size, free int64) {
	_ = s.use(func(f *boltfile.File) error {
		size, free = bboltpage.Sizes(f.OS())
		return nil
	})
	return size, free
}
