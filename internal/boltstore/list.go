package boltstore

import (
	"bytes"
	"fmt"
	"iter"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/format"
)

// All yields every entry of a name, in the order of the stored keys. After an
// error it stops. It reads a few thousand entries at a time, so that no
// transaction stays open while the caller uses them.
func (s *Store) All(name uint16) iter.Seq2[format.Entry, error] {
	return func(yield func(format.Entry, error) bool) {
		journaled := s.journal.of(name)
		journaledBefore := func(is func(j format.Entry) bool) bool { // yields entries of the journal
			for len(journaled) > 0 && is(journaled[0]) {
				j := journaled[0]
				journaled = journaled[1:]
				if j.TAT != 0 && !yield(j, nil) {
					return false
				}
			}
			return true
		}
		for batch, err := range s.inTree(name) {
			for _, e := range batch {
				if !journaledBefore(func(j format.Entry) bool { return j.CompareStored(e) < 0 }) {
					return
				}
				newer := len(journaled) > 0 && journaled[0].ID == e.ID
				if !newer && !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(format.Entry{}, err)
				return
			}
		}
		journaledBefore(func(format.Entry) bool { return true })
	}
}

// of returns the journal's entries of a name, in the order of the stored keys.
func (j *journalState) of(name uint16) []format.Entry {
	j.mu.RLock()
	defer j.mu.RUnlock()
	var entries []format.Entry
	for raw := range j.allLocked() {
		if raw.Name != name {
			continue
		}
		if e := raw.Entry(); !e.IsTime() {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, format.Entry.CompareStored)
	return entries
}

// inTree yields the entries of a name in the tree, a few thousand at a time.
func (s *Store) inTree(name uint16) iter.Seq2[[]format.Entry, error] {
	const most = 4096
	return func(yield func([]format.Entry, error) bool) {
		var after []byte // the last key read
		for {
			batch, err := s.readBatch(name, &after, most)
			if !yield(batch, err) || err != nil || len(batch) < most {
				return
			}
		}
	}
}

// readBatch reads up to most entries of a name, from the key after *last. It
// sets *last to the last key that it read. It stops at an invalid value.
func (s *Store) readBatch(name uint16, last *[]byte, most int) (batch []format.Entry, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(format.BucketOf(name))
		if b == nil {
			return nil
		}
		if err := s.inUse.file.Check.Run(b, *last, most); err != nil {
			return err
		}
		c := b.Cursor()
		k, v := c.Seek(*last)
		if *last != nil && bytes.Equal(k, *last) {
			k, v = c.Next()
		}
		for ; k != nil && len(batch) < most; k, v = c.Next() {
			*last = append((*last)[:0], k...)
			tat, err := format.Uint64(v)
			e := format.Entry{Name: name, ID: format.DecodeID(k), TAT: int64(tat)}
			if err != nil {
				return fmt.Errorf("%s: %w", e, err)
			}
			batch = append(batch, e)
		}
		return nil
	})
	return batch, err
}
