package redislimit

import (
	"iter"
	"strings"
	"sync"

	"github.com/stint-go/stint"
)

// debtStore is the Store of a home without a file. It keeps own buckets, because
// they are debts, but at most as many as most says: then it forgets any one for
// each new one. It does not keep seen buckets, which the server has.
type debtStore struct {
	*stint.MemStore // has nothing
	most            int

	mu   sync.Mutex
	tats map[stint.Key]int64
}

func newDebtStore(most int) *debtStore {
	return &debtStore{MemStore: stint.NewMemStore(), most: most, tats: make(map[stint.Key]int64)}
}

// Load implements stint.Store.
func (s *debtStore) Load(key stint.Key) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tats[key], nil
}

// Save implements stint.Store.
func (s *debtStore) Save(changes []stint.Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if c.TAT == 0 || c.Key.Name&ownBit == 0 {
			delete(s.tats, c.Key)
			continue
		}
		if _, has := s.tats[c.Key]; !has && len(s.tats) >= s.most {
			for other := range s.tats {
				delete(s.tats, other)
				break
			}
		}
		s.tats[stint.Key{Name: c.Key.Name, ID: strings.Clone(c.Key.ID)}] = c.TAT
	}
	return nil
}

// All implements stint.Store.
func (s *debtStore) All(name stint.Name) iter.Seq2[stint.Change, error] {
	return func(yield func(stint.Change, error) bool) {
		var all []stint.Change
		s.mu.Lock()
		for key, tat := range s.tats {
			if key.Name == name {
				all = append(all, stint.Change{Key: key, TAT: tat})
			}
		}
		s.mu.Unlock()
		for _, c := range all {
			if !yield(c, nil) {
				return
			}
		}
	}
}
