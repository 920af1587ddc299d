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
// length. It first makes the copy beside the file (FILE.snapshot-….tmp), so that
// a slow w delays nothing. Saves go on, unless one needs a checkpoint, or needs
// the file to grow beyond what is mapped.
func (s *Store) Snapshot(w io.Writer) (n int64, err error) {
	if s.readOnly { // a slow w delays no save
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

// snapshotTo moves the log into the tree, and copies the file. Later records of
// the log are not in the copy.
func (s *Store) snapshotTo(file *os.File) error {
	// This lock keeps compactions out. A compaction would wait for the transaction
	// here, and saves would wait for the compaction.
	s.maintenance.mu.Lock()
	defer s.maintenance.mu.Unlock()
	s.saves.mu.Lock()
	unlock := sync.OnceFunc(s.saves.mu.Unlock)
	defer unlock()
	// copying is set only under saves.mu. Otherwise a save could hold saves.mu and
	// wait for this copy in pace, while the copy waits for saves.mu.
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
