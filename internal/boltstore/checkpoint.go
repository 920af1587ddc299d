package boltstore

import (
	"fmt"
	"iter"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
)

const (
	// checkpointStep is the number of buckets that the first transaction applies.
	// Later ones have as many as take about stepTime, because a save waits for one
	// or two transactions. Below stepLeast the syncs would take most of the time.
	checkpointStep = 2000
	stepTime       = 40 * time.Millisecond
	stepLeast      = 1000
	stepMost       = 10_000

	// A step has at most one bucket for each stepPer bytes of the index's bound.
	// bbolt takes 5 KB of memory for a bucket that is alone in its leaf.
	stepPer = 1024

	// The index is the journal in memory, and has each bucket once. A checkpoint
	// is due if the records in the file are journalRepeat times as long as the
	// index, and longer than journalMost. If the bound of the index is small,
	// journalRepeat times that bound replaces journalMost. With 8, the file is a
	// third longer if buckets are saved again and again, and a tenth less is written.
	journalRepeat = 6
	journalMost   = 8 << 20

	// A checkpoint is due sooner if the index is larger than its bound. That is
	// indexPer bytes for each bucket in memory, but at least indexLeast and at
	// most indexMost. It is also due if idleSweeps sweeps have passed without a
	// save. During a checkpoint the index may be four times its bound.
	indexPer   = 32
	indexLeast = 256 << 10
	indexMost  = 40 << 20
	idleSweeps = 16

	roomLeast = 1000 // buckets of a save while saves wait for the checkpoint

	longestRetry = time.Minute // between checkpoints that fail; the first wait is a second
)

// journalState is the journal in memory.
type journalState struct {
	mu      sync.RWMutex
	fresh   *journal.Index // receives saves
	old     *journal.Index // applied by a checkpoint; nil if there is none
	oldSeq  uint64         // the last record of old
	bytes   int64          // size of the records in the file
	idle    int            // sweeps since the last save
	most    int64          // size of fresh at which a checkpoint is due
	least   int64          // size of the records at which a checkpoint may be due
	step    int            // buckets of the next step of a checkpoint
	steps   int            // most buckets of a step
	backoff time.Duration  // wait after a failed checkpoint; 0 after a success
	retry   time.Time      // earliest time of the next attempt

	checkpointing bool
	copying       bool       // a compaction or a snapshot copies the file; no checkpoint begins
	progress      float64    // of the checkpoint, 0 to 1
	stepped       *sync.Cond // signals progress, or a change of copying
}

// bound sets the bounds of the journal for a program with so many buckets in
// memory.
func (j *journalState) bound(resident int) {
	j.most = max(indexLeast, min(indexMost, indexPer*int64(resident)))
	j.least = min(journalMost, journalRepeat*j.most)
	j.steps = min(stepMost, int(j.most/stepPer))
	j.step = min(checkpointStep, j.steps)
}

// get returns what the journal has for a bucket. A TAT of 0 means deleted.
func (j *journalState) get(name uint16, id string) (tat int64, ok bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if tat, ok = j.fresh.Get(name, id); !ok && j.old != nil {
		tat, ok = j.old.Get(name, id)
	}
	return tat, ok
}

// allLocked yields the newest entry of each bucket.
func (j *journalState) allLocked() iter.Seq[format.RawEntry] {
	return func(yield func(format.RawEntry) bool) {
		for _, x := range []*journal.Index{j.old, j.fresh} {
			if x == nil {
				continue
			}
			for e := range x.All() {
				newer := false
				if x == j.old {
					_, newer = j.fresh.Get(e.Name, string(e.ID))
				}
				if !newer && !yield(e) {
					return
				}
			}
		}
	}
}

// lenLocked returns the number of buckets. A bucket that was saved again during
// a checkpoint counts twice.
func (j *journalState) lenLocked() int {
	n := j.fresh.Len()
	if j.old != nil {
		n += j.old.Len()
	}
	return n
}

// is returns the result of one of the functions below, which it calls with mu
// held.
func (j *journalState) is(reported func(*journalState) bool) bool {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return reported(j)
}

// dueLocked reports whether it is time for a checkpoint.
func (j *journalState) dueLocked() bool {
	fresh := j.fresh.Size()
	if j.backoff > 0 {
		return !time.Now().Before(j.retry) && (j.old != nil || j.bytes > 0)
	}
	return j.bytes > max(j.least, journalRepeat*fresh) || fresh > j.most ||
		j.bytes > 0 && j.idle >= idleSweeps
}

// fullLocked reports whether the journal or its index is twice as large as it
// is when a checkpoint is due.
func (j *journalState) fullLocked() bool {
	size := j.fresh.Size()
	if j.old != nil {
		size += j.old.Size()
	}
	return j.bytes > 2*max(j.least, journalRepeat*size) || j.fresh.Size() > 2*j.most
}

// outpacedLocked reports whether the journal is full because other maintenance
// keeps the checkpoint waiting.
func (j *journalState) outpacedLocked() bool { return j.backoff == 0 && j.fullLocked() }

// pace makes a save wait while saves are faster than the checkpoint, because
// the journal is also in memory. A save also waits if the journal is full and a
// compaction or a snapshot delays the checkpoint. Then the compaction gives up;
// a snapshot goes on to its end. pace reports whether the journal is full after
// that.
func (j *journalState) pace() (full bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.checkpointing && j.fresh.Size() > j.roomLocked() || j.copying && j.outpacedLocked() {
		j.stepped.Wait()
	}
	return j.fresh.Full() || j.backoff > 0 && j.fullLocked()
}

// room returns how many buckets a save may have. It is a fraction of those that
// the index takes before a save waits: so saves are small when the waits begin.
func (j *journalState) room() int {
	j.mu.RLock()
	defer j.mu.RUnlock()
	left := 2*j.most - j.fresh.Size()
	if j.checkpointing {
		left = j.roomLocked() - j.fresh.Size()
	}
	return max(roomLeast, int(left/(4*indexPer)))
}

// roomLocked returns the size of the index from which saves wait for the
// checkpoint.
func (j *journalState) roomLocked() int64 { return j.most + int64(float64(j.most)*j.progress) }

// pacedStep sets the buckets of the next step, after one of n that took so long.
func (j *journalState) pacedStep(n int, took time.Duration) {
	next := 2 * n
	if took > 0 {
		next = min(next, int(int64(n)*int64(stepTime)/int64(took)))
	}
	j.step = min(max(next, stepLeast), j.steps)
}

// progressed tells the waiting saves which part of the checkpoint is done. At 1
// the checkpoint has ended.
func (j *journalState) progressed(part float64) {
	j.change(func() { j.progress, j.checkpointing = part, part < 1 })
}

// change changes the state, and wakes the waiting saves.
func (j *journalState) change(change func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
	j.stepped.Broadcast()
}

// setCopying tells the waiting saves whether the file is being copied.
func (j *journalState) setCopying(is bool) {
	j.change(func() { j.copying = is })
}

// begin returns the index that a checkpoint applies, and the number of its last
// record. If there is nothing to apply, old is nil. After a failed checkpoint
// it returns the same index again. The caller holds saves.mu.
func (j *journalState) begin(seq uint64) (old *journal.Index, last uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// A failed save may have left records, too.
	if j.old == nil && (j.fresh.Len() > 0 || j.bytes > 0) {
		j.old, j.oldSeq, j.fresh = j.fresh, seq, journal.New()
	}
	return j.old, j.oldSeq
}

// checkpoint applies the journal to the tree, in the order of the keys, and
// deletes its records. If the journal is long, Close interrupts the checkpoint,
// and the next Open continues it.
func (s *Store) checkpoint() error {
	s.maintenance.mu.Lock()
	defer s.maintenance.mu.Unlock()
	return s.checkpointLocked()
}

func (s *Store) checkpointLocked() error {
	done, err := s.applyLocked()
	if err != nil {
		s.journal.mu.Lock()
		s.journal.backoff = min(max(2*s.journal.backoff, time.Second), longestRetry)
		s.journal.retry = time.Now().Add(s.journal.backoff)
		s.journal.mu.Unlock()
	}
	return s.record(&s.stats.checkpoints, done, err)
}

func (s *Store) applyLocked() (done int64, err error) {
	s.saves.mu.Lock()
	old, last := s.journal.begin(s.saves.seq)
	s.saves.mu.Unlock()
	if old == nil {
		return 0, nil
	}
	s.journal.progressed(0)
	defer s.journal.progressed(1)
	interrupted := func() bool { return old.Len() > checkpointStep && s.stopping() }
	rest := old.Sorted(interrupted)
	if rest == nil {
		return 0, nil
	}
	for dropped := false; rest.Left > 0 || !dropped; {
		step := rest.Take(s.journal.step)
		var begun time.Time
		err := s.update(func(tx *bolt.Tx) (err error) {
			begun = time.Now() // no save is under way
			err = boltfile.Apply(tx, s.inUse.file.Check, s.unexpired(step))
			if err == nil && rest.Left == 0 {
				dropped, err = boltfile.DropRecords(tx, last)
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("checkpoint: %w", err)
		}
		if len(step) == s.journal.step {
			s.journal.pacedStep(len(step), time.Since(begun))
		}
		s.journal.progressed(float64(old.Len()-rest.Left) / float64(old.Len()+1))
		if rest.Left > 0 && interrupted() {
			return 0, nil
		}
	}
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	s.journal.old, s.journal.backoff = nil, 0
	s.journal.bytes = 0
	if s.saves.seq > last {
		// There are later records, perhaps only of a failed save. While bytes is not
		// 0, no save bypasses these records by going straight to the tree.
		s.journal.bytes = max(1, s.journal.fresh.Size()) // a lower bound, because records repeat buckets
	}
	return 1, nil
}

// unexpired returns the entries, with a TAT of 0 for each bucket that is full
// by now. The filters already have the other keys, from the save or from the
// start of a pass.
func (s *Store) unexpired(step []format.RawEntry) []format.Entry {
	entries := make([]format.Entry, len(step))
	for i, raw := range step {
		entries[i] = raw.Entry()
		if raw.TAT <= s.now.Load() && !entries[i].IsTime() {
			entries[i].TAT = 0
		}
	}
	return entries
}
