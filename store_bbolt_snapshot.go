package stint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// Snapshot writes a copy of the file, as it is at one moment, and returns how many bytes that were. It is a file like any
// other, journal and all. The copy is made beside the file first (FILE.snapshot-…), and then written to w, so that nobody waits
// for w; saves go on meanwhile, but for one that needs the file to grow beyond what is mapped of it, or its journal
// taken home at last: that one waits for the copy.
func (s *BoltStore) Snapshot(w io.Writer) (n int64, err error) {
	if s.readOnly { // nobody is there who might wait
		err = s.view(func(tx *bolt.Tx) error {
			n, err = s.file.snapshot(tx, 0, w, func() {})
			return err
		})
		return n, err
	}
	temp, err := tempName(s.path, "snapshot")
	if err != nil {
		return 0, fmt.Errorf("stint: copy %s: %w", s.path, err)
	}
	defer os.Remove(temp)
	file, err := os.OpenFile(temp, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("stint: copy %s: %w", s.path, err)
	}
	defer file.Close()
	if err := s.snapshotTo(file); err != nil {
		return 0, fmt.Errorf("stint: copy %s: %w", s.path, err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("stint: copy %s: %w", s.path, err)
	}
	return io.Copy(w, file)
}

// snapshotTo has all that was saved in the tree, at the moment of the transaction: what comes to the log from then on is not in the
// copy.
func (s *BoltStore) snapshotTo(file *os.File) error {
	s.careMu.Lock() // a compaction would wait for the transaction, and saves for it; what a checkpoint frees would not be free
	defer s.careMu.Unlock()
	s.saveMu.Lock()
	unlock := sync.OnceFunc(s.saveMu.Unlock)
	defer unlock()
	s.setCopying(true) // not before saveMu is had: whoever has it would wait for this in pace, and this for him
	defer s.setCopying(false)
	if err := s.emptyLog(); err != nil {
		return err
	}
	return s.view(func(tx *bolt.Tx) error {
		_, err := s.file.snapshot(tx, s.file.log.begin, file, unlock)
		return err
	})
}

// snapshot writes the file as a transaction sees it. None of the pages that are in use to it is written while it lasts, but
// for its meta page: a commit writes the one that is older. bbolt's own WriteTo opens the file anew, by a name that it
// no longer has after a compaction. Where log is not 0, the log that begins there is empty in the copy. Until begun is called there must be
// no commits, of which the second would overwrite that meta page.
func (f *boltFile) snapshot(tx *bolt.Tx, log int64, w io.Writer, begun func()) (int64, error) {
	id := uint64(tx.ID())
	meta, err := f.metaOf(id)
	if err != nil {
		return 0, err
	}
	if meta == nil {
		return 0, damaged(f.path, "it has no meta page of transaction %d", id)
	}
	begun()
	for i := range uint64(2) { // bbolt takes turns; in the other page it is taken for that of the commit before
		binary.NativeEndian.PutUint64(meta, i)
		binary.NativeEndian.PutUint64(meta[64:], id-(i^id&1))
		binary.NativeEndian.PutUint64(meta[72:], metaSum(meta))
		if n, err := w.Write(meta); err != nil {
			return int64(i)*pageSize + int64(n), err
		}
	}
	var rest io.Reader = io.NewSectionReader(f.file, 2*pageSize, tx.Size()-2*pageSize)
	if log > 0 {
		behind := log + logSize
		rest = io.MultiReader(io.NewSectionReader(f.file, 2*pageSize, log-2*pageSize),
			bytes.NewReader(make([]byte, logSize)), io.NewSectionReader(f.file, behind, tx.Size()-behind))
	}
	n, err := io.Copy(w, rest)
	return n + 2*pageSize, err
}
