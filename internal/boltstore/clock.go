package boltstore

import (
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
)

// LoadClock returns the record of the clock that was last saved, or nil.
func (s *Store) LoadClock() (record []byte, err error) {
	err = s.view(func(tx *bolt.Tx) (err error) {
		record, err = boltfile.Clock(tx)
		return err
	})
	return record, err
}

// SaveClock saves a record of the clock, in a transaction of its own: records
// are rare.
func (s *Store) SaveClock(record []byte) error {
	s.saves.mu.Lock()
	defer s.saves.mu.Unlock()
	return s.update(func(tx *bolt.Tx) error { return boltfile.PutClock(tx, record) })
}
