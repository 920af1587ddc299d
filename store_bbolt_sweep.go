package stint

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	bolt "go.etcd.io/bbolt"
)

const (
	// sweepStep is how many buckets are looked at in one step of the sweep, and sweepRush how many steps are made at
	// once while there is much to be found out.
	sweepStep = 4096
	sweepRush = 64
)

// remember notes for which keys something is stored after the changes.
func (s *BoltStore) remember(changes ...Change) {
	for _, f := range []*filter{s.filter.Load(), s.next.Load()} {
		if f != nil {
			f.addAll(changes)
		}
	}
}

// sweepPass is where the sweep is on its way through the file.
type sweepPass struct {
	names []Name // yet to be walked
	after []byte // the last key looked at, of names[0]
	found int64  // buckets left stored so far

	checks *pageChecker // of the file, when it began
}

// sweep looks at the next few thousand buckets in the file, deletes those that are past by now, and notes the others in a
// filter; when it has been through all of the file, the filter is complete, and it begins again. While there is no
// filter, or the one there is overfull, it hurries. While the file is in the care of others it does nothing,
// and is done once they are through.
func (s *BoltStore) sweep(now int64) error {
	s.now.Store(now)
	if s.readOnly {
		return nil
	}
	s.indexMu.Lock()
	if s.tired++; s.checkpointDueLocked() {
		s.wake()
	}
	s.indexMu.Unlock()
	if !s.careMu.TryLock() {
		s.missed.Store(true)
		return nil // the flusher, which calls this, does not wait for a checkpoint or a compaction
	}
	defer s.careMu.Unlock()
	steps := 1
	for i := 0; i < steps && (i == 0 || !s.outpaced()); i++ {
		if f := s.filter.Load(); f == nil || f.overfull() {
			steps = sweepRush
		}
		deleted, done, err := s.sweepStepLocked(now)
		if s.stats.record(&s.stats.swept, deleted, err) != nil || done {
			return err
		}
		if deleted > sweepStep/4 {
			steps = min(steps+1, sweepRush)
		}
	}
	return nil
}

func (s *BoltStore) sweepStepLocked(now int64) (deleted int64, done bool, err error) {
	p := &s.pass
	if s.next.Load() == nil {
		if err := s.beginPassLocked(); err != nil {
			return 0, false, fmt.Errorf("sweep: %w", err)
		}
	}
	next := s.next.Load()
	if len(p.names) == 0 {
		s.saveMu.Lock() // a save notes its keys in both filters
		s.filter.Store(next)
		s.next.Store(nil)
		s.saveMu.Unlock()
		s.mu.RLock()
		if p.checks != nil && p.checks == s.file.check {
			p.checks.whole.Store(true) // that has seen all of it
		}
		s.mu.RUnlock()
		s.wake() // to see whether the file is worth compacting
		return 0, true, nil
	}
	name := p.names[0]
	var past []Change
	looked := 0
	err = s.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketOf(name))
		if b == nil {
			return nil
		}
		if err := s.file.check.run(b, p.after, sweepStep); err != nil {
			return err
		}
		c := b.Cursor()
		k, v := c.Seek(p.after)
		if p.after != nil && string(k) == string(p.after) {
			k, v = c.Next()
		}
		for ; k != nil && looked < sweepStep; k, v = c.Next() {
			looked++
			p.after = append(p.after[:0], k...)
			key := Key{name, decodeID(k)}
			tat, err := decodeUint64(v)
			if err != nil {
				next.add(key) // the sweep goes on behind it, and whoever loads it is told, too
				return fmt.Errorf("%s: %w", key, err)
			}
			if int64(tat) <= now {
				past = append(past, Change{Key: key})
			} else {
				next.add(key)
				p.found++
			}
		}
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("sweep: %w", err)
	}
	if looked < sweepStep {
		p.names, p.after = p.names[1:], nil
	}
	if len(past) == 0 {
		return 0, false, nil
	}
	err = s.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketOf(name))
		past = slices.DeleteFunc(past, func(c Change) bool { // saved anew since
			v := b.Get(encodeID(c.Key.ID))
			return v == nil || int64(binary.BigEndian.Uint64(v)) > now
		})
		return s.putHome(tx, slices.Values(past))
	})
	if err != nil {
		return 0, false, fmt.Errorf("sweep: %w", err)
	}
	return int64(len(past)), false, nil
}

// beginPassLocked makes the filter that the next pass is to fill. What is in the journal is noted at once, what is saved from
// then on as it is saved.
func (s *BoltStore) beginPassLocked() error {
	room := 2 * s.pass.found
	if f := s.filter.Load(); f != nil {
		room = max(room, 2*f.added.Load())
	} else {
		size, _ := s.sizes()
		room = max(room, size/64)
	}
	next := newFilter(room)
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	names, err := s.allNames()
	if err != nil {
		return err
	}
	s.next.Store(next)
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	for e := range s.journalLocked() {
		next.add(e.change().Key)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.pass = sweepPass{names: names, checks: s.file.check}
	return nil
}

// journalLocked yields the entries of the journal, older ones first.
func (s *BoltStore) journalLocked() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for _, x := range []*journalIndex{s.old, s.fresh} {
			if x == nil {
				continue
			}
			for e := range x.all() {
				if !yield(e) {
					return
				}
			}
		}
	}
}
