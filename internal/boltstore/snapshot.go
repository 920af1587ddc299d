package boltstore

import (
	"fmt"
	"io"
	"os"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
)

// Snapshot writes a copy of the file, as it is at one moment, and returns its
// length. The copy is made beside the file first (FILE.snapshot-…), so saves
// and loads do not wait for w. Saves go on, unless one needs a larger mapping
// or a checkpoint.
func (s *Store) Snapshot(w io.Writer) (n int64, err error) {
	if s.readOnly { // there are no saves to wait
		err = s.view(func(tx *bolt.Tx) error {
			n, err = s.inUse.file.Snapshot(tx, false, w, func() {})
			return err
		})
		return n, err
	}
	file, err := boltfile.CreateTemp(s.path, "snapshot")
	if err == nil {
		defer os.Remove(file.Name())
		defer file.Close()
		err = s.snapshotTo(file)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return 0, fmt.Errorf("stint: copy %s: %w", s.path, err)
	}
	return io.Copy(w, file)
}

// snapshotTo puts all that was saved into the tree, and copies the file. Later
// saves to the log are not in the copy.
func (s *Store) snapshotTo(file *os.File) error {
	// A compaction would wait for the transaction, and saves for the compaction.
	s.maintenance.mu.Lock()
	defer s.maintenance.mu.Unlock()
	s.saves.mu.Lock()
	unlock := sync.OnceFunc(s.saves.mu.Unlock)
	defer unlock()
	// Only with saves.mu: a save that has it would wait for this in pace, and this
	// for the save.
	s.journal.setCopying(true)
	defer s.journal.setCopying(false)
	if err := s.write((*boltfile.File).EmptyLog); err != nil {
		return err
	}
	return s.view(func(tx *bolt.Tx) error {
		_, err := s.inUse.file.Snapshot(tx, true, file, unlock)
		return err
	})
}
