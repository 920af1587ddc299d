package boltstore

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/format"
)

// FileStats describe the file, and what was done for it since it was opened. The
// root package has the same struct.
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

// stats count what was done.
type stats struct {
	mu                              sync.Mutex
	checkpoints, swept, compactions activity
	broken                          activity // calls of a broken file
}

// activity counts the successes of one kind of maintenance, and keeps its last failure.
type activity struct {
	n     int64
	err   error     // nil if the last attempt succeeded
	since time.Time // the first failure in a row
}

// says returns the failure with its start, or nil.
func (a *activity) says(what string) error {
	if a.err == nil {
		return nil
	}
	return fmt.Errorf("stint: %s since %s: %w", what, a.since.UTC().Format(time.RFC3339), a.err)
}

// record records the end of an attempt, and returns err. A failure gets the time
// of the last Maintain, because Maintain's caller may have another clock.
func (s *Store) record(a *activity, n int64, err error) error {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	switch {
	case err == nil:
		a.n += n
		a.err = nil
	case a.err == nil:
		a.err, a.since = err, time.Now()
		if now := s.now.Load(); now != 0 {
			a.since = time.Unix(0, now)
		}
	default:
		a.err = err
	}
	return err
}

// why returns the failure of the last attempt, or nil.
func (st *stats) why(a *activity) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return a.err
}

// Health returns nil if the file and its maintenance work. Otherwise it returns
// the damage that broke the file, or the failures of the maintenance.
func (s *Store) Health() error {
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	if err := s.stats.broken.says("the file is broken"); err != nil {
		return err
	}
	return errors.Join(s.stats.checkpoints.says("no checkpoint"), s.stats.swept.says("no sweep"),
		s.stats.compactions.says("no compaction"))
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
	st.Err = errors.Join(checkpoints.err, swept.err, compactions.err)
	return st
}

// sizes returns the bytes of the file, and those of its free pages.
func (s *Store) sizes() (size, free int64) {
	s.inUse.mu.RLock()
	defer s.inUse.mu.RUnlock()
	if s.inUse.closed {
		return 0, 0
	}
	return bboltpage.Sizes(s.inUse.file.OS())
}
