package boltstore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/bloom"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

const (
	// sweepStep is the number of buckets that one step of the sweep reads.
	// sweepRush is the number of steps that one call makes if there is no filter,
	// or much to delete.
	sweepStep = 4096
	sweepRush = 64
)

// maintenance is the state of the file's maintenance.
type maintenance struct {
	mu           sync.Mutex
	missed       atomic.Bool // a sweep found mu locked and did nothing
	pass         sweepPass
	part         int       // of the journal's index at which dropPassedLocked goes on
	compactMin   int64     // size from which the file is compacted
	notCompacted time.Time // last failure of a compaction
	last         bool      // no caller waits for the background to stop
}

// sweepPass is the position of the sweep in the file.
type sweepPass struct {
	names []uint16           // names not yet read
	after []byte             // last key read of names[0]
	found int64              // buckets that stay
	check *bboltpage.Checker // of the file at the start of the pass
}

// Maintain does a part of the file's maintenance. It reads the next few
// thousand buckets, deletes those that are full at now, and adds the others to
// a filter. After the last bucket the filter is complete, and the next pass
// begins. It reads more at once while there is no filter, or an overfull one.
//
// If a checkpoint or a compaction is under way, it does nothing, and the
// background sweeps later.
func (s *Store) Maintain(now time.Time) error { return s.sweep(now.UnixNano()) }

func (s *Store) sweep(now int64) error {
	s.now.Store(now)
	if s.readOnly {
		return nil
	}
	s.journal.mu.Lock()
	if s.journal.idle++; s.journal.dueLocked() {
		s.wake()
	}
	s.journal.mu.Unlock()
	if !s.maintenance.mu.TryLock() {
		s.maintenance.missed.Store(true)
		return nil // the flusher, which calls this, does not wait
	}
	defer s.maintenance.mu.Unlock()
	if err := s.dropPassedLocked(now); err != nil {
		return s.record(&s.stats.swept, 0, fmt.Errorf("sweep: %w", err))
	}
	steps := 1
	for i := 0; i < steps && (i == 0 || !s.journal.is((*journalState).outpacedLocked)); i++ {
		if f := s.filter.Load(); f == nil || f.Overfull() {
			steps = sweepRush
		}
		deleted, done, err := s.sweepStepLocked(now)
		if err != nil {
			err = fmt.Errorf("sweep: %w", err)
		}
		if s.record(&s.stats.swept, deleted, err) != nil || done {
			return err
		}
		if deleted > sweepStep/4 {
			steps = min(steps+1, sweepRush)
		}
	}
	return nil
}

// dropShare is the part of the journal's index that one sweep looks through, and
// dropLeast the least number of chunks. dropStep is the number of buckets that one
// lock of the journal covers.
const (
	dropShare = 8
	dropLeast = 2
	dropStep  = 512
)

// dropPassedLocked lets the journal's index go of buckets that are full at now,
// unless the tree has a later TAT. So the index is as long as what lives, a
// checkpoint writes only that, and the length of the records makes it due. The
// records stay in the file until then: the next Open reads them again, in their
// order, and the last one of such a bucket is one that has passed.
func (s *Store) dropPassedLocked(now int64) error {
	m, j := &s.maintenance, &s.journal
	j.mu.RLock()
	chunks := j.fresh.Chunks()
	if j.old != nil { // of a checkpoint that failed: it may have a later TAT
		chunks = 0
	}
	j.mu.RUnlock()
	var passed []format.Entry
	for range min(chunks, max(dropLeast, chunks/dropShare)) {
		m.part = (m.part + 1) % chunks
		j.mu.RLock()
		passed = j.fresh.Passed(passed[:0], m.part, now)
		j.mu.RUnlock()
		var err error
		if passed, err = s.passedInTree(passed, now); err != nil {
			return err
		}
		for step := range slices.Chunk(passed, dropStep) {
			j.mu.Lock()
			for _, e := range step {
				j.fresh.Drop(e.Name, e.ID, now)
			}
			j.mu.Unlock()
		}
	}
	return nil
}

// passedInTree returns the buckets of which the tree has nothing that is later than
// now. The caller holds maintenance.mu, so the tree stays as it is: a save goes
// straight to the tree only if the journal is empty.
func (s *Store) passedInTree(entries []format.Entry, now int64) (passed []format.Entry, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		passed = slices.DeleteFunc(entries, func(e format.Entry) bool {
			if e.IsTime() {
				return true
			}
			b := tx.Bucket(format.BucketOf(e.Name))
			if b == nil {
				return false
			}
			key := format.EncodeID(e.ID)
			if s.inUse.file.Check.Key(b, key) != nil {
				return true // damaged: a load must not find it
			}
			v := b.Get(key)
			return v != nil && (len(v) != 8 || int64(binary.BigEndian.Uint64(v)) > now)
		})
		return nil
	})
	return passed, err
}

func (s *Store) sweepStepLocked(now int64) (deleted int64, done bool, err error) {
	p := &s.maintenance.pass
	if s.next.Load() == nil {
		if err := s.beginPassLocked(); err != nil {
			return 0, false, err
		}
	}
	next := s.next.Load()
	if len(p.names) == 0 {
		s.endPassLocked()
		return 0, true, nil
	}
	name := p.names[0]
	batch, err := s.readBatch(name, &p.after, sweepStep)
	var full []format.Entry
	for _, e := range batch {
		if e.TAT <= now {
			full = append(full, e)
			full[len(full)-1].TAT = 0
		} else {
			next.Add(name, e.ID)
			p.found++
		}
	}
	if err != nil {
		if p.after != nil { // a value is damaged: a load of this key must read the file, and find the error
			next.Add(name, format.DecodeID(p.after))
		}
		return 0, false, err
	}
	if len(batch) < sweepStep {
		p.names, p.after = p.names[1:], nil
	}
	if len(full) == 0 {
		return 0, false, nil
	}
	err = s.update(func(tx *bolt.Tx) error {
		b := tx.Bucket(format.BucketOf(name))
		full = slices.DeleteFunc(full, func(e format.Entry) bool { // saved again since the read
			v := b.Get(format.EncodeID(e.ID))
			return v == nil || int64(binary.BigEndian.Uint64(v)) > now
		})
		return boltfile.Apply(tx, s.inUse.file.Check, full)
	})
	return int64(len(full)), false, err
}

// beginPassLocked makes the filter that the next pass fills. It adds the keys
// in the journal at once. From then on, saves add their keys.
func (s *Store) beginPassLocked() error {
	room := 2 * s.maintenance.pass.found
	if f := s.filter.Load(); f != nil {
		room = max(room, 2*f.Added())
	} else {
		size, _ := s.sizes()
		room = max(room, size/64)
	}
	next := bloom.New(room)
	s.saves.mu.Lock()
	defer s.saves.mu.Unlock()
	pass := sweepPass{}
	err := s.view(func(tx *bolt.Tx) error {
		pass.names, pass.check = boltfile.BucketNames(tx), s.inUse.file.Check
		return nil
	})
	if err != nil {
		return err
	}
	s.next.Store(next)
	s.journal.mu.RLock()
	defer s.journal.mu.RUnlock()
	for e := range s.journal.allLocked() {
		next.Add(e.Name, string(e.ID))
	}
	s.maintenance.pass = pass
	return nil
}

// endPassLocked makes the new filter the one that loads use.
func (s *Store) endPassLocked() {
	s.saves.mu.Lock() // a save adds its keys to both filters
	s.filter.Store(s.next.Load())
	s.next.Store(nil)
	s.saves.mu.Unlock()
	s.maintenance.pass.check.SetWhole() // if the file was replaced since, this is an old Checker
	s.wake()                            // the file may be worth compacting
}
