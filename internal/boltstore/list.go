package boltstore

import (
	"bytes"
	"fmt"
	"iter"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

// All yields every entry of a name, in the order of the stored keys. An error is
// the last thing yielded. It reads a few thousand entries at a time, so that no
// transaction stays open while the caller uses them.
func (s *Store) All(name uint16) iter.Seq2[format.Entry, error] {
	return func(yield func(format.Entry, error) bool) {
		journaled := s.journal.of(name)
		newest := func(e format.Entry) bool { // yields what the journal has up to e, and e unless the journal has it
			for len(journaled) > 0 && journaled[0].CompareStored(e) <= 0 {
				j := journaled[0]
				journaled = journaled[1:]
				if j.TAT != 0 && !yield(j, nil) {
					return false
				}
				if j.ID == e.ID {
					return true
				}
			}
			return yield(e, nil)
		}
		for batch, err := range s.inTree(name) {
			for _, e := range batch {
				if !newest(e) {
					return
				}
			}
			if err != nil {
				yield(format.Entry{}, err)
				return
			}
		}
		for _, j := range journaled {
			if j.TAT != 0 && !yield(j, nil) {
				return
			}
		}
	}
}

// of returns what the journal has of a name, in the order of the stored keys.
func (j *journalState) of(name uint16) []format.Entry {
	j.mu.RLock()
	defer j.mu.RUnlock()
	newest := make(map[string]int64)
	for e := range j.allLocked() {
		if e.Name == name {
			newest[string(e.ID)] = e.TAT
		}
	}
	entries := make([]format.Entry, 0, len(newest))
	for id, tat := range newest {
		entries = append(entries, format.Entry{Name: name, ID: id, TAT: tat})
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
			var batch []format.Entry
			err := s.view(func(tx *bolt.Tx) error {
				return s.after(tx, name, &after, most, func(e format.Entry, err error) error {
					if err == nil {
						batch = append(batch, e)
					}
					return err
				})
			})
			if !yield(batch, err) || err != nil || len(batch) < most {
				return
			}
		}
	}
}

// after reads up to most entries of a name behind the key that last points to,
// and sets that to the last one read. If a value is none, read gets an error
// with the entry.
func (s *Store) after(tx *bolt.Tx, name uint16, last *[]byte, most int,
	read func(e format.Entry, err error) error) error {
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
	for ; k != nil && most > 0; k, v = c.Next() {
		most--
		tat, err := format.Uint64(v)
		e := format.Entry{Name: name, ID: format.DecodeID(k), TAT: int64(tat)}
		if err != nil {
			err = fmt.Errorf("%s: %w", e, err)
		}
		*last = append((*last)[:0], k...)
		if err := read(e, err); err != nil {
			return err
		}
	}
	return nil
}

// treeNames returns the numbers that have buckets in the tree, and format.Holds.
func (s *Store) treeNames() (names []uint16, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		names = boltfile.BucketNames(tx)
		return nil
	})
	return names, err
}
