package stint

import (
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/clock"
	fileformat "github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
)

// boltStore is the Store of OpenBolt. The methods that Store and FileStore do not
// have are those of dbfile.Store, for programs of this module that do not know a
// file's limits.
type boltStore struct {
	store    *boltstore.Store
	readOnly bool

	saves   sync.Mutex         // before all locks of store
	entries []fileformat.Entry // memory for the next Save
}

// BoltOptions are the options of OpenBolt. nil or the zero value means the defaults.
type BoltOptions struct {
	LockTimeout time.Duration // longest wait for the file lock; default 1s, then ErrLocked
	MaxResident int           // buckets that one flush may save; default 1<<20

	// ReadOnly leaves the file as it is, byte for byte. The file has to exist,
	// OpenBolt enters no names, and calls that would write fail. Several processes
	// may have a file open with ReadOnly. While they do, no process can open it to
	// write. A Limiter has to write, so New refuses such a Store.
	ReadOnly bool
}

// OpenBolt returns a Store in the bbolt file at path, which it keeps locked until
// Close. If there is no file, it makes one with mode 0600, and a crash on the way
// leaves none. It enters the names that the file does not have. docs/format.md
// describes the file. The Store is also a FileStore. The errors are ErrLocked,
// ErrCorrupt, ErrFormat, ErrNameMismatch, or the operating system's.
//
// Each call that meets damage returns ErrCorrupt, and other calls go on. If
// damage makes bbolt panic, every later call returns that error, and this
// process does not touch the file again.
//
// Maintain compacts a file over 64 MiB, or 8 MiB on 32 bits, if more than half of
// it is free, while saves and loads go on. Snapshot makes its copy beside the
// file first (FILE.snapshot-….tmp), so that no save waits for the writer.
func OpenBolt(path string, names Names, opts *BoltOptions) (Store, error) {
	var o BoltOptions
	if opts != nil {
		o = *opts
	}
	return openStore(path, names, o, false, false)
}

// openStore is OpenBolt. With mustExist, it makes no file. With namesLater, a file
// that is there gets no names before Declare: the caller may yet refuse it.
func openStore(path string, names Names, o BoltOptions, mustExist, namesLater bool) (Store, error) {
	common := Options{LockTimeout: o.LockTimeout, MaxResident: o.MaxResident}
	c, err := common.withDefaults()
	if err == nil {
		err = errors.Join(names.mistakes()...)
	}
	if err != nil {
		return nil, err
	}
	store, err := boltstore.Open(path, names.labels(), boltstore.Options{
		LockTimeout: c.LockTimeout,
		MaxResident: c.MaxResident,
		ReadOnly:    o.ReadOnly,
		MustExist:   mustExist,
		NamesLater:  namesLater,
	})
	if err != nil {
		return nil, err
	}
	return &boltStore{store: store, readOnly: o.ReadOnly}, nil
}

func isReadOnly(store Store) bool {
	s, ok := store.(*boltStore)
	return ok && s.readOnly
}

// Declare implements Store. It enters the names that the file does not have:
// all of them, or none if one is ErrNameMismatch.
func (s *boltStore) Declare(names Names) error { return s.store.Declare(names.labels()) }

// InPlace implements FileStore.
func (s *boltStore) InPlace() error { return s.store.InPlace() }

// Labels implements dbfile.Store.
func (s *boltStore) Labels() map[Name]string {
	labels := map[Name]string{}
	for name, label := range s.store.Names() {
		labels[Name(name)] = label
	}
	return labels
}

// Number implements dbfile.Store, and serves Limiter.Number.
func (s *boltStore) Number(label string) (Name, error) {
	if label == "" {
		return 0, errors.New("stint: Number: no label")
	}
	name, err := s.store.Number(label)
	return Name(name), err
}

// Relabel implements dbfile.Store.
func (s *boltStore) Relabel(labels map[Name]string) error {
	numbered := map[uint16]string{}
	for name, label := range labels {
		numbered[uint16(name)] = label
	}
	return s.store.Relabel(numbered)
}

// Load implements Store.
func (s *boltStore) Load(key Key) (tat int64, err error) {
	return s.store.Load(uint16(key.Name), key.ID)
}

// Save implements Store, in one transaction.
func (s *boltStore) Save(changes []Change) error {
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

// Room implements FileStore.
func (s *boltStore) Room() int { return s.store.Room() }

// LoadClock implements FileStore.
func (s *boltStore) LoadClock() ([]byte, error) { return s.store.LoadClock() }

// SaveClock implements FileStore, in one transaction.
func (s *boltStore) SaveClock(record []byte) error { return s.store.SaveClock(record) }

// All implements Store. No transaction stays open while the caller uses the
// buckets.
func (s *boltStore) All(name Name) iter.Seq2[Change, error] {
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
func (s *boltStore) Maintain(now time.Time) error { return s.store.Maintain(now) }

// Health implements Store. It touches no disk.
func (s *boltStore) Health() error { return s.store.Health() }

// Compact implements dbfile.Store.
func (s *boltStore) Compact() error { return s.store.Compact() }

// Merge implements dbfile.Store.
func (s *boltStore) Merge(changes iter.Seq2[Change, error], saved func(Key)) error {
	entries := func(yield func(fileformat.Entry, error) bool) {
		for c, err := range changes {
			if !yield(fileformat.Entry{Name: uint16(c.Key.Name), ID: c.Key.ID, TAT: c.TAT}, err) {
				return
			}
		}
	}
	return s.store.Merge(entries, func(e fileformat.Entry) { saved(Key{Name(e.Name), e.ID}) })
}

// Snapshot implements Store.
func (s *boltStore) Snapshot(w io.Writer) (int64, error) { return s.store.Snapshot(w) }

// Close implements Store. It applies a short journal first, and leaves a long
// one to the next Open. If nothing was written since OpenBolt, the file stays as
// it is. A second Close returns what the first did.
func (s *boltStore) Close() error { return s.store.Close() }

// Stats implements Store.
func (s *boltStore) Stats() FileStats {
	st := s.store.Stats()
	return FileStats{Format: st.Format, Bytes: st.Bytes, Free: st.Free, Journal: st.Journal, Journaled: st.Journaled}
}

// Now implements dbfile.Store.
func (s *boltStore) Now() (now time.Time, doubt, err error) {
	c := clock.New(nil, nil, nil, gcra.EndOfTime)
	backing := storeForCache(s)
	_, _, err = backing.BeginClock(c)
	return time.Unix(0, c.Now()), c.Health(), err
}
