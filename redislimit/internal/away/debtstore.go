package away

import (
	"strings"
	"sync"

	"github.com/stint-go/stint"
)

// debtStore is the Store of a home without a file. It keeps own buckets, because
// they are debts, but at most as many as most says: then it forgets any one for
// each new one. It does not keep seen buckets, which the server has.
type debtStore struct {
	stint.Store
	most int

	mu   sync.Mutex
	keys map[stint.Key]struct{} // of the buckets in MemStore
}

func newDebtStore(most int) *debtStore {
	return &debtStore{Store: stint.NewMemStore(), most: most, keys: make(map[stint.Key]struct{})}
}

// Save implements stint.Store.
func (s *debtStore) Save(changes []stint.Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var debts []stint.Change
	for _, c := range changes {
		if c.Key.Name&ownBit == 0 {
			continue
		}
		if c.TAT == 0 {
			delete(s.keys, c.Key)
		} else if _, has := s.keys[c.Key]; !has {
			for other := range s.keys {
				if len(s.keys) < s.most {
					break
				}
				delete(s.keys, other)
				debts = append(debts, stint.Change{Key: other})
			}
			s.keys[stint.Key{Name: c.Key.Name, ID: strings.Clone(c.Key.ID)}] = struct{}{}
		}
		debts = append(debts, c)
	}
	return s.Store.Save(debts)
}
