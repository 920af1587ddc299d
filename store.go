package stint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint/internal/boltstore"
	fileformat "github.com/stint-go/stint/internal/format"
)

// Store keeps buckets between runs. One Limiter owns it, and calls it from
// several goroutines. A wrapper may embed a Store.
//
// Holds are kept under the Name Unknown, which no limit can have: the id is the
// held bucket's key as text, and the TAT is the end of the hold. The entry with
// the empty id is no hold: its TAT is the time of the last save. The iterator
// All may leave it out.
type Store interface {
	// Declare adds the names of the Limiter's limits. New and SetLimits call
	// it. The error is ErrNameMismatch if the Store has another label for a
	// number, or another number for a label.
	Declare(names Names) error

	// Load returns the TAT that was last saved for the key, or 0.
	Load(key Key) (tat int64, err error)

	// Save carries out all of the changes or none, and returns nil when they are
	// durable. No two changes have the same key. Save may reorder the slice, but
	// keeps neither the slice nor anything that it points to. Without changes,
	// Save returns nil if the next process would find everything that was saved.
	Save(changes []Change) error

	// All yields every bucket stored under the name, in the order of the ids'
	// bytes, except that ids that consist of stars may come elsewhere. A bucket
	// that is saved during the loop may be missing. An error is the last thing
	// yielded.
	All(name Name) iter.Seq2[Change, error]

	// Maintain does a small part of the Store's upkeep. The Limiter calls it
	// after each periodic flush, with the time of its own clock. A failure must
	// show in Health.
	Maintain(now time.Time) error

	// Health returns what is wrong with the Store now, or nil. It must not
	// wait.
	Health() error

	// Stats describe the Store's file. They are zero if it has none.
	Stats() FileStats

	// Snapshot writes a copy of the Store's file, and returns its length. It is
	// an error if there is no file.
	Snapshot(w io.Writer) (int64, error)

	// Close releases what the Store holds. It saves nothing.
	Close() error
}

// Change is the state of one bucket: its TAT in Unix nanoseconds, or 0 if there
// is no such bucket.
type Change struct {
	Key Key
	TAT int64
}

// MemStore is a Store in memory: for tests, for simulations, and for limits
// that need not outlive the process. It outlives its Limiter: after Close it
// may be given to the next one, as a file would be.
type MemStore struct {
	mu   sync.Mutex
	tats map[Key]int64
}

// NewMemStore returns an empty MemStore.
func NewMemStore() *MemStore { return &MemStore{tats: make(map[Key]int64)} }

// Load implements Store.
func (s *MemStore) Load(key Key) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tats[key], nil
}

// Save implements Store.
func (s *MemStore) Save(changes []Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if c.TAT == 0 {
			delete(s.tats, c.Key)
		} else {
			s.tats[Key{c.Key.Name, strings.Clone(c.Key.ID)}] = c.TAT
		}
	}
	return nil
}

// All implements Store.
func (s *MemStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		s.mu.Lock()
		tats := maps.Clone(s.tats)
		s.mu.Unlock()
		maps.DeleteFunc(tats, func(k Key, _ int64) bool { return k.Name != name || k == (Key{}) })
		for _, key := range slices.SortedFunc(maps.Keys(tats), Key.compare) {
			if !yield(Change{key, tats[key]}, nil) {
				return
			}
		}
	}
}

// Declare implements Store. A MemStore takes all names.
func (s *MemStore) Declare(Names) error { return nil }

// Maintain implements Store. A MemStore needs no upkeep.
func (s *MemStore) Maintain(time.Time) error { return nil }

// Health implements Store. A MemStore has nothing that could fail.
func (s *MemStore) Health() error { return nil }

// Stats implements Store. A MemStore has no file.
func (s *MemStore) Stats() FileStats { return FileStats{} }

// Snapshot implements Store. A MemStore has no file to copy.
func (s *MemStore) Snapshot(io.Writer) (int64, error) {
	return 0, errors.New("stint: a MemStore has no file to copy")
}

// Close implements Store.
func (s *MemStore) Close() error { return nil }

// BoltOptions are the options of OpenBolt; nil or the zero value means the
// defaults.
type BoltOptions struct {
	LockTimeout time.Duration // wait for the file lock; default 1s, then ErrLocked

	// MaxResident is how many buckets the Limiter keeps in memory: one flush
	// may save all of them. The default is 1<<20. Open sets it.
	MaxResident int

	// ReadOnly leaves the file as it is, byte for byte. The file has to exist,
	// OpenBolt enters no names, and calls that would write fail. Several
	// processes may have a file open with ReadOnly. While they do, no process
	// can open it to write.
	ReadOnly bool
}

// BoltStore is a Store in one bbolt file, which it keeps locked until Close.
// docs/format.md describes the file.
//
// Each call that meets damage returns ErrCorrupt, and other calls go on. If
// damage makes bbolt panic, every later call returns that error, and this
// process does not touch the file again.
type BoltStore struct {
	store *boltstore.Store

	saves   sync.Mutex         // before all locks of store
	entries []fileformat.Entry // memory for the next Save
}

func init() {
	boltstore.Of = func(store any) *boltstore.Store { return store.(*BoltStore).store }
}

// OpenBolt opens the file, or makes it (mode 0600) if there is none, and enters
// the names that it does not have. A crash while the file is being made leaves
// no file. The errors are ErrLocked, ErrCorrupt, ErrFormat, ErrNameMismatch, or
// the operating system's.
func OpenBolt(path string, names Names, opts *BoltOptions) (*BoltStore, error) {
	var o BoltOptions
	if opts != nil {
		o = *opts
	}
	switch {
	case o.LockTimeout < 0:
		return nil, fmt.Errorf("stint: LockTimeout %v: want more than 0", o.LockTimeout)
	case o.MaxResident < 0:
		return nil, fmt.Errorf("stint: MaxResident %d: want more than 0", o.MaxResident)
	}
	if err := errors.Join(names.mistakes()...); err != nil {
		return nil, err
	}
	store, err := boltstore.Open(path, names.labels(), boltstore.Options{
		LockTimeout: cmp.Or(o.LockTimeout, time.Second),
		MaxResident: cmp.Or(o.MaxResident, 1<<20),
		ReadOnly:    o.ReadOnly,
	})
	if err != nil {
		return nil, err
	}
	return &BoltStore{store: store}, nil
}

// labels returns the labels by number, as the file has them.
func (ns Names) labels() map[uint16]string {
	labels := make(map[uint16]string, len(ns))
	for name, spec := range ns {
		labels[uint16(name)] = spec.Label
	}
	return labels
}

// Declare implements Store. It enters the names that the file does not have:
// all of them, or none if one is ErrNameMismatch.
func (s *BoltStore) Declare(names Names) error { return s.store.Declare(names.labels()) }

// Load implements Store.
func (s *BoltStore) Load(key Key) (tat int64, err error) {
	return s.store.Load(uint16(key.Name), key.ID)
}

// Save implements Store, in one transaction.
func (s *BoltStore) Save(changes []Change) error {
	s.saves.Lock()
	defer s.saves.Unlock()
	entries := slices.Grow(s.entries[:0], len(changes))
	for _, c := range changes {
		entries = append(entries, fileformat.Entry{Name: uint16(c.Key.Name), ID: c.Key.ID, TAT: c.TAT})
	}
	s.entries = entries
	err := s.store.Save(entries)
	clear(entries) // the ids are the caller's
	return err
}

// All implements Store. No transaction stays open while the caller uses the
// buckets.
func (s *BoltStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		for e, err := range s.store.All(uint16(name)) {
			if !yield(Change{Key{Name(e.Name), e.ID}, e.TAT}, err) {
				return
			}
		}
	}
}

// Maintain implements Store. It applies the journal, deletes buckets that are
// full again, and compacts a file that is mostly free pages. Each call does a
// part, and some of it runs in the background.
func (s *BoltStore) Maintain(now time.Time) error { return s.store.Maintain(now) }

// Health implements Store. It touches no disk.
func (s *BoltStore) Health() error { return s.store.Health() }

// Compact rewrites the file without its free pages, and puts the new one in
// place of the old one in one step, while saves and loads go on. A file over
// 64 MiB, or 8 MiB on 32 bits, is compacted automatically when more than half of
// it is free. After an error the old file stays in use, with one exception. If
// only the name of the new file could not be made durable, the new file is in
// use. Each save then tries first to make the name durable.
func (s *BoltStore) Compact() error { return s.store.Compact() }

// Snapshot implements Store. It writes a copy of the file, as it is at one
// moment. The copy is made beside the file first (FILE.snapshot-…), so that no
// save waits for w.
func (s *BoltStore) Snapshot(w io.Writer) (int64, error) { return s.store.Snapshot(w) }

// Close implements Store. It applies a short journal first, and leaves a long
// one to the next Open. A second Close returns what the first did.
func (s *BoltStore) Close() error { return s.store.Close() }

// FileStats describe a BoltStore's file, and what was done for it since it was
// opened.
type FileStats struct {
	Format      int   // number of the format: docs/format.md
	Bytes       int64 // of the file
	Free        int64 // bytes in free pages
	Journal     int64 // bytes of the journal, about
	Journaled   int64 // buckets whose newest TAT is in the journal
	Checkpoints int64 // times the journal was applied to the tree
	Swept       int64 // buckets deleted because they were full again
	Compactions int64
	Err         error // failures of the last checkpoint, sweep and compaction, joined; or nil
}

// Stats implements Store.
func (s *BoltStore) Stats() FileStats { return FileStats(s.store.Stats()) }
