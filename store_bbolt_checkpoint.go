package stint

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	// checkpointStep is how many buckets are taken home in one transaction: nobody waits for longer than that takes.
	// Where saves come faster than it takes them home, and wait anyway, a step is larger: most of it is the disk's.
	checkpointStep = 2000
	checkpointRush = 10_000

	// A journal is taken home once it is this long, and this many times as long as what it comes to.
	journalMin    = 8 << 20
	journalRepeat = 8

	// It is taken home sooner where what it comes to is longer than this, or than a limiter's buckets in memory may make
	// it: that much is kept in memory, up to four times while a checkpoint is under way; and where nothing was saved for
	// so many sweeps.
	indexMost    = 16 << 20
	indexEver    = 40 << 20
	indexPer     = 32
	journalTired = 16

	longestRetry = time.Minute // of a checkpoint that fails, from one second on
)

func (s *BoltStore) checkpointDue() bool {
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	return s.checkpointDueLocked()
}

func (s *BoltStore) checkpointDueLocked() bool {
	fresh := s.fresh.size
	if s.backoff > 0 {
		return !time.Now().Before(s.retry) && (s.old != nil || s.journal > 0)
	}
	return s.journal > max(journalMin, journalRepeat*fresh) || fresh > s.indexMost ||
		s.journal > 0 && s.tired >= journalTired
}

// fullLocked reports whether the journal, or what it comes to, is twice as long as it should be: nothing takes it home.
func (s *BoltStore) fullLocked() bool {
	size := s.fresh.size
	if s.old != nil {
		size += s.old.size
	}
	return s.journal > 2*max(journalMin, journalRepeat*size) || s.fresh.size > 2*s.indexMost
}

// outpacedLocked reports whether the journal is full because a compaction or a sweep keeps the checkpoint waiting.
func (s *BoltStore) outpacedLocked() bool { return s.backoff == 0 && s.fullLocked() }

func (s *BoltStore) outpaced() bool {
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	return s.outpacedLocked()
}

// journaledLocked returns how many buckets the journal has, those twice that came again while it is taken home.
func (s *BoltStore) journaledLocked() int {
	n := s.fresh.len()
	if s.old != nil {
		n += s.old.len()
	}
	return n
}

// expect prepares for saves of so many buckets at once: the limiter keeps that many in memory, and all may be dirty.
func (s *BoltStore) expect(resident int) {
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	s.indexMost = max(indexMost, min(indexEver, indexPer*int64(resident)))
}

// pace waits, where saves are faster than the checkpoint that is under way, until it has gone on a little: what is in
// the journal is kept in memory, too. A compaction, which has the journal wait, gives up then; a snapshot is waited for.
func (s *BoltStore) pace() {
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	for s.checkpointing && s.fresh.size > s.indexMost+int64(float64(s.indexMost)*s.progress) || s.copying && s.outpacedLocked() {
		s.stepped.Wait()
	}
}

// pressed reports whether saves are about to wait for the checkpoint.
func (s *BoltStore) pressed() bool {
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	return s.fresh.size > s.indexMost/2
}

// progressed tells those who wait in pace how much of a checkpoint is done; 1 and more: it has ended.
func (s *BoltStore) progressed(part float64) {
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	s.progress, s.checkpointing = part, part < 1
	s.stepped.Broadcast()
}

// checkpoint takes the journal home, in the order of the keys, and drops its records. Close interrupts that of a long journal, and
// what it has not done then is done after the next Open.
func (s *BoltStore) checkpoint() error {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	return s.takeHomeLocked()
}

func (s *BoltStore) takeHomeLocked() error {
	done, err := s.checkpointLocked()
	if err != nil {
		s.indexMu.Lock()
		s.backoff = min(max(2*s.backoff, time.Second), longestRetry)
		s.retry = time.Now().Add(s.backoff)
		s.indexMu.Unlock()
	}
	return s.stats.record(&s.stats.checkpoints, done, err)
}

func (s *BoltStore) checkpointLocked() (done int64, err error) {
	s.saveMu.Lock()
	s.indexMu.Lock()
	// Where there is an old one, the last checkpoint failed, and is to be finished first. A save that failed may have left records, too.
	if s.old == nil && (s.fresh.len() > 0 || s.journal > 0) {
		s.old, s.oldSeq, s.fresh = s.fresh, s.seq, newJournalIndex()
	}
	old, last := s.old, s.oldSeq
	s.indexMu.Unlock()
	s.saveMu.Unlock()
	if old == nil {
		return 0, nil
	}
	s.progressed(0)
	defer s.progressed(1)
	interrupted := func() bool { return old.len() > checkpointStep && s.stopping() }
	rest := old.sorted(interrupted)
	if rest == nil {
		return 0, nil
	}
	for {
		most := checkpointStep
		if s.pressed() {
			most = checkpointRush
		}
		step := rest.take(most)
		dropped := true
		err := s.update(func(tx *bolt.Tx) (err error) {
			err = s.putHome(tx, func(yield func(Change) bool) {
				for _, e := range step {
					c := e.change()
					if c.TAT <= s.now.Load() {
						c.TAT = 0
					} else {
						s.remember(c)
					}
					if !yield(c) {
						return
					}
				}
			})
			if err == nil && rest.left == 0 {
				dropped, err = dropRecords(tx, last)
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("checkpoint: %w", err)
		}
		if rest.left == 0 && dropped {
			break
		}
		s.progressed(float64(old.len()-rest.left) / float64(old.len()+1))
		if rest.left > 0 && interrupted() {
			return 0, nil
		}
	}
	s.indexMu.Lock()
	s.old, s.backoff = nil, 0
	s.journal = 0
	if s.seq > last { // there is something behind, be it only of a save that failed: nothing goes home past that
		s.journal = max(1, s.fresh.size) // about: what came meanwhile, less what it repeats
	}
	s.indexMu.Unlock()
	return 1, nil
}

// dropRecords deletes journal records up to the one numbered last, some at a time, and reports whether that were all.
func dropRecords(tx *bolt.Tx, last uint64) (all bool, err error) {
	const most = 512
	journal := tx.Bucket(journalBucket)
	c := journal.Cursor()
	var keys [][]byte // a cursor does not survive what is deleted under it
	var sum uint64
	for k, v := c.First(); k != nil && len(keys) < most && binary.BigEndian.Uint64(k) <= last; k, v = c.Next() {
		keys = append(keys, slices.Clone(k))
		sum -= recordSumOf(k, v)
	}
	for _, k := range keys {
		if err := journal.Delete(k); err != nil {
			return false, err
		}
	}
	return len(keys) < most, addSum(journal, sum)
}
