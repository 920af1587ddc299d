package boltstore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bloom"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

// saves is the state that saves share.
type saves struct {
	mu       sync.Mutex
	seq      uint64 // number of the last record; also guarded by journal.mu
	last     time.Time
	looked   time.Time // begin of the last look that found the file; zero if a later one did not
	recent   int       // saves in a row without a pause of aloneAfter
	diverted bool      // saves go to the journal, for a compaction
}

const (
	// maxRecord is the length of a record of a large save. Two records, with the
	// 64 bytes that bbolt adds, fill the 16 pages of a leaf. With larger records
	// bbolt would rewrite more of the neighbours.
	maxRecord = 32<<10 - 32

	// commitSave is the most entries of a save that goes to the log. Saves that
	// callers wait for are seldom larger.
	commitSave = 2048

	// smallSave is the most entries of a save that goes straight to the tree. The
	// save must also be the first or second after a pause of aloneAfter. So a
	// program that spends once and closes needs no log: it saves a lease, and then
	// the exact TAT. With the log, such a program takes 1.4 times as long, and 1.9
	// times on a disk that syncs in 5 ms; it makes 12 syncs in place of 8 and a file
	// of 2 MiB in place of 1.
	smallSave  = 64
	aloneAfter = 50 * time.Millisecond
)

// Save saves all of the entries or none, and returns nil when they are durable.
// It may reorder the slice, in which no bucket may occur twice. The error is
// ErrGone if the file is not at its path any more. Then the entries are in the
// open file. If the path has no file, the background puts a copy of the open
// file there.
//
// A save looks at the path after it has written, unless a look that began within
// FS.LookEvery found the file there. After a look that did not, every save looks.
// A save without entries always does.
func (s *Store) Save(entries []format.Entry) error {
	if len(entries) > 0 {
		if err := s.save(entries); err != nil || s.saves.sawFile(s.fs.LookEvery) {
			return err
		}
	}
	return s.inPlace()
}

// Room returns about how many entries a save should have. The time that saves
// wait for the checkpoint then comes in small parts.
func (s *Store) Room() int { return s.journal.room() }

// sawFile reports whether a look within that time found the file at its path.
func (s *saves) sawFile(within time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.looked.IsZero() && time.Since(s.looked) < within
}

// inPlace returns ErrGone if the file is not at its path. If the path has no
// file, it also tells the background to put one there.
func (s *Store) inPlace() error {
	begun := time.Now()
	err := s.InPlace()
	if err != nil {
		begun = time.Time{}
	}
	s.saves.mu.Lock()
	s.saves.looked = begun
	s.saves.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		s.wake()
	}
	return err
}

// InPlace returns nil if the file is at its path, and ErrGone otherwise. If the
// path has no file, the error is fs.ErrNotExist, too.
func (s *Store) InPlace() error {
	return s.use(func(f *boltfile.File) error { return cmp.Or(f.Broken(), f.InPlace()) })
}

func (s *Store) save(entries []format.Entry) error {
	s.saves.mu.Lock()
	defer s.saves.mu.Unlock()
	s.addToFilters(entries)
	now := time.Now()
	if now.Sub(s.saves.last) > aloneAfter {
		s.saves.recent = 0
	}
	few := s.saves.recent <= 1
	s.saves.recent++
	s.saves.last = now
	s.journal.mu.Lock()
	s.journal.idle = 0
	direct := few && len(entries) <= smallSave && s.journal.bytes == 0 && !s.saves.diverted
	s.journal.mu.Unlock()
	if direct {
		slices.SortFunc(entries, format.Entry.CompareStored)
		return s.update(func(tx *bolt.Tx) error {
			return boltfile.Apply(tx, s.inUse.file.Check, entries)
		})
	}
	return s.append(entries)
}

// addToFilters adds the keys of a save to both filters.
func (s *Store) addToFilters(entries []format.Entry) {
	for _, f := range []*bloom.Filter{s.filter.Load(), s.next.Load()} {
		if f != nil {
			f.AddAll(entries)
		}
	}
}

var errCheckpointDue = errors.New("a checkpoint is about to begin; try again")

// append adds entries to the journal. The caller holds saves.mu.
func (s *Store) append(entries []format.Entry) error {
	if full := s.journal.pace(); full {
		if s.journal.is((*journalState).dueLocked) {
			s.wake()
		}
		why := cmp.Or(s.stats.why(&s.stats.checkpoints), errCheckpointDue)
		return fmt.Errorf("the journal of %s is full: %w", s.path, why)
	}
	seq, bytes, err := s.writeRecords(entries)
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.saves.seq = seq // even after an error: the file may have the records
	if err != nil {
		s.journal.bytes = max(s.journal.bytes, 1) // there may be records
		return err
	}
	s.journal.bytes += bytes
	for part := range slices.Chunk(entries, commitSave) {
		s.journal.fresh.Put(part...)
		s.journal.mu.Unlock() // lets loads in during a large flush
		s.journal.mu.Lock()
	}
	if s.journal.dueLocked() {
		s.wake()
	}
	return nil
}

// writeRecords appends entries to the journal: to the log if there is space, or
// else to the tree. It returns the sequence number of the last record, and the
// size of the new ones.
func (s *Store) writeRecords(entries []format.Entry) (seq uint64, bytes int64, err error) {
	seq = s.saves.seq
	if len(entries) <= commitSave {
		n := 0
		err := s.write(func(f *boltfile.File) (err error) {
			f.MakeLog()
			n, err = f.Append(seq+1, entries)
			return err
		})
		if n > 0 || err != nil {
			return seq + 1, int64(n), err
		}
	}
	err = s.update(func(tx *bolt.Tx) error {
		return boltfile.PutRecords(tx, func(yield func(format.Record) bool) {
			for record := range format.Records(entries, maxRecord) {
				seq++
				format.Seal(seq, record)
				bytes += int64(len(record))
				if !yield(format.Record{Seq: seq, Data: record}) {
					return
				}
			}
		})
	})
	return seq, bytes, err
}
