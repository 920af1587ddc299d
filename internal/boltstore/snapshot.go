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
// length. The copy is made beside the file first (FILE.snapshot-…), so that
// nobody waits for w. Saves go on, except one that needs the file to grow beyond
// what is mapped, or a checkpoint.
func (s *Store) Snapshot(w io.Writer) (n int64, err error) {
	if s.readOnly { // nobody is waiting
		err = s.view(func(tx *bolt.Tx) error {
			n, err = s.inUse.file.Snapshot(tx, false, w, func() {})
			return err
		})
		return n, err
	}
	file, err := s.copyBeside()
	if err != nil {
		return 0, fmt.Errorf("stint: copy %s: %w", s.path, err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	return io.Copy(w, file)
}

// copyBeside returns a copy of the file, to be read from its beginning.
func (s *Store) copyBeside() (file *os.File, err error) {
	temp, err := boltfile.TempName(s.path, "snapshot")
	if err != nil {
		return nil, err
	}
	if file, err = os.OpenFile(temp, os.O_RDWR, 0); err == nil {
		if err = s.snapshotTo(file); err == nil {
			_, err = file.Seek(0, io.SeekStart)
		}
		if err != nil {
			file.Close()
		}
	}
	if err != nil {
		os.Remove(temp)
	}
	return file, err
}

// snapshotTo puts all that was saved into the tree, and copies the file. What
// comes to the log from then on is not in the copy.
func (s *Store) snapshotTo(file *os.File) error {
	s.maintenance.mu.Lock() // a compaction would wait for the transaction, and saves for the compaction
	defer s.maintenance.mu.Unlock()
	s.saves.mu.Lock()
	unlock := sync.OnceFunc(s.saves.mu.Unlock)
	defer unlock()
	s.journal.setCopying(true) // only with saves.mu: a save that has it would wait for this in pace, and this for the save
	defer s.journal.setCopying(false)
	if err := s.write((*boltfile.File).EmptyLog); err != nil {
		return err
	}
	return s.view(func(tx *bolt.Tx) error {
		_, err := s.inUse.file.Snapshot(tx, true, file, unlock)
		return err
	})
}
