package stint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint/internal/boltstore"
	fileformat "github.com/stint-go/stint/internal/format"
)

// BoltOptions are the options of OpenBolt; nil or the zero value means the
// defaults.
type BoltOptions struct {
	LockTimeout time.Duration // wait for the file lock; default 1s, then ErrLocked

	// ErrorIfNotExists makes OpenBolt return fs.ErrNotExist if there is no file,
	// instead of making one.
	ErrorIfNotExists bool

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
		MustExist:   o.ErrorIfNotExists,
	})
	if err != nil {
		return nil, err
	}
	return &BoltStore{store: store}, nil
}

// Declare implements Store. It enters the names that the file does not have:
// all of them, or none if one is ErrNameMismatch.
func (s *BoltStore) Declare(names Names) error { return s.store.Declare(names.labels()) }

// InPlace implements FileStore.
func (s *BoltStore) InPlace() error { return s.store.InPlace() }

// Labels returns the labels that the file has, by number.
func (s *BoltStore) Labels() map[Name]string {
	labels := map[Name]string{}
	for name, label := range s.store.Names() {
		labels[Name(name)] = label
	}
	return labels
}

// Number returns the number that the file has for a label. A new label gets the
// lowest free number, and keeps it for ever. If no number is free, the error is
// ErrNameMismatch.
func (s *BoltStore) Number(label string) (Name, error) {
	if label == "" {
		return 0, errors.New("stint: Number: no label")
	}
	name, err := s.store.Number(label)
	return Name(name), err
}

// Relabel gives numbers new labels. Their buckets stay. Numbers are permanent:
// if the file has another number for one of the labels, the error is
// ErrNameMismatch and the file keeps all of its labels.
func (s *BoltStore) Relabel(labels map[Name]string) error {
	numbered := map[uint16]string{}
	for name, label := range labels {
		numbered[uint16(name)] = label
	}
	return s.store.Relabel(numbered)
}

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

// Room implements PacedStore.
func (s *BoltStore) Room() int { return s.store.Room() }

// LoadClock implements ClockStore.
func (s *BoltStore) LoadClock() ([]byte, error) { return s.store.LoadClock() }

// SaveClock implements ClockStore, in one transaction.
func (s *BoltStore) SaveClock(record []byte) error { return s.store.SaveClock(record) }

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
// moment. The copy is made beside the file first (FILE.snapshot-….tmp), so that
// no save waits for w.
func (s *BoltStore) Snapshot(w io.Writer) (int64, error) { return s.store.Snapshot(w) }

// Close implements Store. It applies a short journal first, and leaves a long
// one to the next Open. A second Close returns what the first did.
func (s *BoltStore) Close() error { return s.store.Close() }

// Stats implements Store.
func (s *BoltStore) Stats() FileStats { return FileStats(s.store.Stats()) }
