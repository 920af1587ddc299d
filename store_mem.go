package stint

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// NewMemStore returns an empty Store in memory: for tests, for simulations, and for
// limits that need not outlive the process. It outlives its Limiter: after Close it
// may be given to the next one, as a file would be. It has no file for Snapshot.
func NewMemStore() Store { return &memStore{tats: make(map[Key]int64)} }

type memStore struct {
	mu     sync.Mutex
	tats   map[Key]int64
	labels map[Name]string
	clock  []byte // record of the clock
}

// Load implements Store.
func (s *memStore) Load(key Key) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tats[key], nil
}

// Save implements Store.
func (s *memStore) Save(changes []Change) error {
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
func (s *memStore) All(name Name) iter.Seq2[Change, error] {
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

// LoadClock implements FileStore.
func (s *memStore) LoadClock() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock, nil
}

// Room implements FileStore.
func (s *memStore) Room() int { return math.MaxInt }

// InPlace implements FileStore.
func (s *memStore) InPlace() error { return nil }

// SaveClock implements FileStore.
func (s *memStore) SaveClock(record []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = slices.Clone(record)
	return nil
}

// Declare implements Store.
func (s *memStore) Declare(names Names) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	numbers := make(map[string]Name, len(s.labels))
	for name, label := range s.labels {
		numbers[label] = name
	}
	for name, spec := range names {
		number, known := numbers[spec.Label]
		switch has, taken := s.labels[name]; {
		case taken && has != spec.Label:
			return fmt.Errorf("%w: name %d is %q in the store, and declared as %q", ErrNameMismatch, name, has, spec.Label)
		case known && number != name:
			return fmt.Errorf("%w: %q is name %d in the store, and declared as %d", ErrNameMismatch, spec.Label, number, name)
		}
	}
	if s.labels == nil {
		s.labels = make(map[Name]string, len(names))
	}
	for name, spec := range names {
		s.labels[name] = spec.Label
	}
	return nil
}

// Maintain implements Store. It needs no upkeep.
func (s *memStore) Maintain(time.Time) error { return nil }

// Health implements Store. It has nothing that could fail.
func (s *memStore) Health() error { return nil }

// Stats implements Store. It has no file.
func (s *memStore) Stats() FileStats { return FileStats{} }

// Snapshot implements Store. It has no file to copy.
func (s *memStore) Snapshot(io.Writer) (int64, error) {
	return 0, errors.New("stint: a store in memory has no file to copy")
}

// Close implements Store.
func (s *memStore) Close() error { return nil }
