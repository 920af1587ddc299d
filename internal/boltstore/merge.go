package boltstore

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

// mergeBatch is the number of entries that Merge has in memory. If they are in no
// order, bbolt takes up to 33 KB of memory for each.
const mergeBatch = 128

// mergeSave is the most entries of a Merge that is a Save.
const mergeSave = 4096

// Merge saves those entries that have a later TAT than in the file: all of them or,
// after an error, none. It calls saved with each. If they are more than fit into
// memory, it puts them into the tree of a copy, which then takes the file's place.
func (s *Store) Merge(entries iter.Seq2[format.Entry, error], saved func(format.Entry)) error {
	next, stop := iter.Pull2(entries)
	defer stop()
	first, more, err := mergeable(next, mergeSave)
	if err != nil {
		return err
	}
	if !more {
		have := func(e format.Entry) (int64, error) { return s.Load(e.Name, e.ID) }
		if first, err = later(first, have); err == nil && len(first) > 0 {
			err = s.Save(slices.Clone(first))
		}
		for _, e := range first {
			saved(e)
		}
		return err
	}
	s.maintenance.mu.Lock()
	defer s.maintenance.mu.Unlock()
	if err := s.checkpointLocked(); err != nil {
		return err
	}
	err = s.copyAndReplaceLocked(func(target *boltfile.File) error {
		if s.journal.is(func(j *journalState) bool { return j.lenLocked() > 0 }) {
			return errors.New("other entries are being saved") // the journal's would come before those of the tree
		}
		for batch := first; ; {
			for part := range slices.Chunk(batch, mergeBatch) {
				if err := s.mergeInto(target, part, saved); err != nil {
					return err
				}
			}
			if !more {
				return nil
			}
			if batch, more, err = mergeable(next, mergeBatch); err != nil {
				return err
			}
		}
	})
	if err != nil {
		err = fmt.Errorf("stint: merge into %s: %w", s.path, err)
	}
	return err
}

// mergeable returns the next entries, at most so many, in the order of the tree, and
// whether there may be more. Of those of one bucket it has the latest.
func mergeable(next func() (format.Entry, error, bool), most int) (batch []format.Entry, more bool, err error) {
	for len(batch) < most {
		e, err, ok := next()
		if err != nil {
			return nil, false, err
		}
		if !ok {
			break
		}
		batch = append(batch, e)
	}
	more = len(batch) == most
	slices.SortFunc(batch, func(a, b format.Entry) int { return cmp.Or(a.CompareStored(b), cmp.Compare(b.TAT, a.TAT)) })
	return slices.CompactFunc(batch, func(a, b format.Entry) bool { return a.CompareStored(b) == 0 }), more, nil
}

// later returns the entries with a later TAT than the file has.
func later(entries []format.Entry, have func(format.Entry) (int64, error)) (_ []format.Entry, err error) {
	entries = slices.DeleteFunc(entries, func(e format.Entry) bool {
		tat, wrong := have(e)
		err = cmp.Or(err, wrong)
		return e.TAT <= tat
	})
	return entries, err
}

func (s *Store) mergeInto(target *boltfile.File, batch []format.Entry, saved func(format.Entry)) error {
	err := target.Update(func(tx *bolt.Tx) (err error) {
		batch, err = later(batch, func(e format.Entry) (int64, error) {
			var v []byte
			if b := tx.Bucket(format.BucketOf(e.Name)); b != nil {
				v = b.Get(format.EncodeID(e.ID))
			}
			if v == nil {
				return 0, nil
			}
			tat, err := format.Uint64(v)
			return int64(tat), err
		})
		return errors.Join(err, boltfile.Apply(tx, nil, batch))
	})
	s.addToFilters(batch)
	for _, e := range batch {
		saved(e)
	}
	return cmp.Or(err, s.giveUp())
}
