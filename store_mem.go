package stint

import (
	"errors"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// MemStore is a Store in memory: for tests, for simulations, and for limits
// that need not outlive the process. It outlives its Limiter: after Close it
// may be given to the next one, as a file would be.
type MemStore struct {
	mu    sync.Mutex
	tats  map[Key]int64
	clock []byte // record of the clock
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

// LoadClock implements ClockStore.
func (s *MemStore) LoadClock() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock, nil
}

// SaveClock implements ClockStore.
func (s *MemStore) SaveClock(record []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = slices.Clone(record)
	return nil
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
