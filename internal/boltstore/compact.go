package boltstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

const (
	compactRetry = 10 * time.Minute // wait after a failed compaction
	restoreRetry = 10 * time.Second // the same wait if the path has no file
)

// compactMin returns the size from which the background compacts a file.
func compactMin(bits int) int64 {
	if bits == 32 {
		return 8 << 20 // because the address space and the disk are small
	}
	return 64 << 20
}

var (
	errStopped  = errors.New("the store is being closed")
	errOutpaced = errors.New("the journal is full; " +
		"try again when fewer buckets change")
)

// Compact applies the journal, copies the file without its free pages, and puts
// the copy in its place in one step. Saves and loads go on. Compact returns an
// error if the journal is full before the copy is complete.
//
// After an error the old file is in use, with one exception: if only the new
// file's name could not be made durable, the new file is in use. Then each save
// first tries to sync the name again.
func (s *Store) Compact() error {
	s.maintenance.mu.Lock()
	defer s.maintenance.mu.Unlock()
	if !s.readOnly {
		s.checkpointLocked() // after an error the journal is copied as it is
	}
	return s.compactLocked()
}

// compactIfDue compacts a large file if more than half of it is free. It also
// compacts a file that was removed, because that puts a copy at the path.
func (s *Store) compactIfDue() {
	m := &s.maintenance
	m.mu.Lock()
	defer m.mu.Unlock()
	retry := compactRetry
	if errors.Is(s.InPlace(), fs.ErrNotExist) {
		retry = restoreRetry
	} else if size, free := s.sizes(); size <= m.compactMin || free <= size/2 {
		s.record(&s.stats.compactions, 0, nil) // an earlier failure does not matter now
		return
	}
	if time.Since(m.notCompacted) > retry {
		if s.compactLocked() != nil {
			m.notCompacted = time.Now()
		}
	}
}

// putBack puts a copy of the file at the path if the file was removed, and returns
// ErrGone if the open file, or the copy, is not there. Close calls it last.
func (s *Store) putBack() error {
	m := &s.maintenance
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = true
	var err error
	if errors.Is(s.InPlace(), fs.ErrNotExist) {
		err = s.compactLocked()
	}
	return errors.Join(err, s.InPlace())
}

func (s *Store) compactLocked() error {
	err := s.copyAndReplaceLocked(nil)
	if err != nil && !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("stint: compact %s: %w", s.path, err)
	}
	if errors.Is(err, errOutpaced) { // not a failure: the file is busy
		return err
	}
	return s.record(&s.stats.compactions, 1, err)
}

// copyAndReplaceLocked puts a copy in the place of the file. fill, which may be nil,
// adds to the complete copy first.
func (s *Store) copyAndReplaceLocked(fill func(target *boltfile.File) error) (err error) {
	if s.readOnly {
		return errors.New("it was opened read-only")
	}
	s.divertSaves(true)
	defer s.divertSaves(false)
	target, err := boltfile.Create(s.path, "compact", s.fs)
	if err != nil {
		return err
	}
	temp := target.Path
	replacing := false
	defer func() {
		if err != nil && !replacing {
			target.Close()
		}
		if err != nil {
			os.Remove(temp)
		}
	}()
	target.DB.NoSync = true // until the copy is complete
	s.journal.setCopying(true)
	err = s.copyAll(target)
	s.journal.setCopying(false)
	if err == nil {
		err = target.DB.Sync()
	}
	if err != nil {
		return err
	}
	s.saves.mu.Lock() // no saves from here on
	defer s.saves.mu.Unlock()
	if err := s.write((*boltfile.File).EmptyLog); err != nil {
		return err
	}
	err = s.copyJournal(target)
	if err == nil && fill != nil {
		err = fill(target)
	}
	if err == nil {
		err = target.DB.Sync()
	}
	if err != nil {
		return err
	}
	target.DB.NoSync = false
	s.inUse.mu.Lock() // no loads either
	defer s.inUse.mu.Unlock()
	if s.inUse.closed {
		return ErrClosed
	}
	replacing = true
	s.inUse.file, err = s.inUse.file.ReplaceWith(target)
	return err
}

// divertSaves sends saves to the journal, from which the compaction copies them
// later. The part of the tree that they belong to may be copied already.
func (s *Store) divertSaves(divert bool) {
	s.saves.mu.Lock()
	defer s.saves.mu.Unlock()
	s.saves.diverted = divert
}

// giveUp returns why a compaction must not go on, or nil.
func (s *Store) giveUp() error {
	switch {
	case s.stopping() && !s.maintenance.last:
		return errStopped
	case s.journal.is((*journalState).outpacedLocked):
		return errOutpaced
	}
	return nil
}

// copyAll copies all of the file. Until it returns, only the end of the journal
// changes. The caller copies that end while saves wait.
func (s *Store) copyAll(target *boltfile.File) error {
	labels, err := s.names.current(s)
	if err != nil {
		return err
	}
	var names []uint16
	err = s.copyTo(target, func(to, from *bolt.Tx) error {
		names = boltfile.BucketNames(from)
		seen, err := boltfile.Seen(from)
		return errors.Join(err, boltfile.LayOut(to, labels), boltfile.PutSeen(to, seen))
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		for batch, err := range s.inTree(name) {
			if err == nil {
				err = target.Update(func(to *bolt.Tx) error {
					return boltfile.Apply(to, nil, batch)
				})
			}
			if err = cmp.Or(err, s.giveUp()); err != nil {
				return err
			}
		}
	}
	if err := s.copyTo(target, copySums); err != nil {
		return err
	}
	if err := s.copyJournal(target); err != nil {
		return err
	}
	return s.giveUp()
}

// copyTo calls fn with a transaction that writes to target, and one that reads
// the file.
func (s *Store) copyTo(target *boltfile.File, fn func(to, from *bolt.Tx) error) error {
	return s.view(func(from *bolt.Tx) error {
		return target.Update(func(to *bolt.Tx) error { return fn(to, from) })
	})
}

// copySums copies the sums of all buckets except the journal.
func copySums(to, from *bolt.Tx) error {
	for _, name := range boltfile.BucketNames(from) {
		bucket := format.BucketOf(name)
		if err := boltfile.KeepSum(to.Bucket(bucket), from.Bucket(bucket)); err != nil {
			return err
		}
	}
	return boltfile.KeepSum(boltfile.NamesTable(to), boltfile.NamesTable(from))
}

// copyJournal copies those records of the journal that target does not have, a
// MiB at a time, and the record of the clock. Saves may go on: the last call, which
// is made when they are stopped, copies what they added.
func (s *Store) copyJournal(target *boltfile.File) error {
	for all := false; !all; {
		err := s.copyTo(target, func(to, from *bolt.Tx) (err error) {
			all, err = copyRecords(to, from)
			return err
		})
		if err != nil {
			return err
		}
	}
	return s.copyTo(target, func(to, from *bolt.Tx) error {
		record, err := boltfile.Clock(from)
		return errors.Join(err, boltfile.PutClock(to, record))
	})
}

func copyRecords(to, from *bolt.Tx) (all bool, err error) {
	next := uint64(0)
	if last, _ := to.Bucket(format.JournalBucket).Cursor().Last(); last != nil {
		next = binary.BigEndian.Uint64(last) + 1
	}
	c := from.Bucket(format.JournalBucket).Cursor()
	k, v := c.Seek(format.BigEndian(next))
	err = boltfile.PutRecords(to, func(yield func(format.Record) bool) {
		for bytes := 0; k != nil && bytes < 1<<20; k, v = c.Next() {
			bytes += len(v)
			if !yield(format.Record{Seq: binary.BigEndian.Uint64(k), Data: slices.Clone(v)}) {
				return
			}
		}
	})
	if k == nil && err == nil {
		err = boltfile.KeepSum(to.Bucket(format.JournalBucket), from.Bucket(format.JournalBucket))
	}
	return k == nil, err
}
