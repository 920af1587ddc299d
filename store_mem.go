package stint

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
)

// MemStore is a Store in memory: for tests, for simulations, and for limits that need not outlive the process.
// It outlives its Limiter, though: after Close it may be given to the next one, as a file would be.
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
		maps.DeleteFunc(tats, func(k Key, _ int64) bool { return k.Name != name })
		for _, key := range slices.SortedFunc(maps.Keys(tats), Key.compare) {
			if !yield(Change{key, tats[key]}, nil) {
				return
			}
		}
	}
}

// Close implements Store.
func (s *MemStore) Close() error { return nil }
