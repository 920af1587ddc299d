package stint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

// What a BoltStore does for its file in the background: it takes the journal home, deletes what is past, and rewrites a
// file that is mostly free pages. All of it is done in small steps, between which saves go on.

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
	indexEver    = 64 << 20
	indexPer     = 32
	journalTired = 16

	// sweepStep is how many buckets are looked at in one step of the sweep, and sweepRush how many steps are made at
	// once while there is much to be found out.
	sweepStep = 4096
	sweepRush = 64

	// A file larger than this, of which more than half is free, is rewritten.
	compactMin = 64 << 20
)

// FileStats tell of a BoltStore's file, and of what was done for it since it was opened.
type FileStats struct {
	Format      int   // the number in the file: docs/format.md
	Bytes       int64 // of the file
	Free        int64 // of those, in pages that are free
	Journal     int64 // bytes of the journal, about
	Journaled   int64 // buckets whose newest TAT is in the journal
	Checkpoints int64 // times the journal was taken home
	Swept       int64 // buckets deleted because they were full again
	Compactions int64
	Err         error // why the last checkpoint, sweep or compaction failed; nil if it did not
}

// storeStats count what was done.
type storeStats struct {
	mu          sync.Mutex
	checkpoints int64
	swept       int64
	compactions int64
	err         error
}

// Stats returns what there is to tell of the file.
func (s *BoltStore) Stats() FileStats {
	st := FileStats{Format: formatNumber}
	st.Bytes, st.Free = s.sizes()
	s.indexMu.RLock()
	st.Journal, st.Journaled = s.journal, int64(s.fresh.len())
	if s.old != nil {
		st.Journaled += int64(s.old.len())
	}
	s.indexMu.RUnlock()
	s.stats.mu.Lock()
	defer s.stats.mu.Unlock()
	st.Checkpoints, st.Swept, st.Compactions, st.Err = s.stats.checkpoints, s.stats.swept, s.stats.compactions, s.stats.err
	return st
}

func (st *storeStats) record(count *int64, n int64, err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.err = err
	if err == nil {
		*count += n
	}
	return err
}

// care takes the journal home whenever that is due, until the store is closed.
func (s *BoltStore) care() {
	defer close(s.stopped)
	for {
		select {
		case <-s.stop:
			return
		case <-s.work:
		}
		if s.checkpointDue() {
			s.checkpoint() // a failure is in the stats, and the journal still there
		}
		s.compactIfDue()
	}
}

func (s *BoltStore) compactIfDue() {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	if size, free := s.sizes(); size > s.compactMin && free > size/2 {
		s.stats.record(&s.stats.compactions, 1, s.compactLocked())
	}
}

func (s *BoltStore) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

func (s *BoltStore) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

func (s *BoltStore) checkpointDue() bool {
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	return s.checkpointDueLocked()
}

func (s *BoltStore) checkpointDueLocked() bool {
	fresh := s.fresh.size
	return s.journal > max(journalMin, journalRepeat*fresh) || fresh > s.indexMost ||
		s.journal > 0 && s.tired >= journalTired
}

// expect prepares for saves of so many buckets at once: the limiter keeps that many in memory, and all may be dirty.
func (s *BoltStore) expect(resident int) {
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	s.indexMost = max(indexMost, min(indexEver, indexPer*int64(resident)))
}

// pace waits, where saves are faster than the checkpoint that is under way, until it has gone on a little: what is in
// the journal is kept in memory, too.
func (s *BoltStore) pace() {
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	for s.checkpointing && s.fresh.size > s.indexMost+int64(float64(s.indexMost)*s.progress) {
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

// checkpoint takes the journal home, in the order of the keys, and drops its records. It is not stopped by Close, except
// between two steps; what it has not done then is done after the next Open.
func (s *BoltStore) checkpoint() error {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	done, err := s.checkpointLocked()
	return s.stats.record(&s.stats.checkpoints, done, err)
}

func (s *BoltStore) checkpointLocked() (done int64, err error) {
	s.saveMu.Lock()
	s.indexMu.Lock()
	if s.old == nil && s.fresh.len() > 0 { // otherwise the last one failed, and is to be finished first
		s.old, s.oldSeq, s.fresh = s.fresh, s.seq, newJournalIndex()
	}
	old, last := s.old, s.oldSeq
	s.indexMu.Unlock()
	s.saveMu.Unlock()
	if old == nil {
		return 0, nil
	}
	closing := s.stopping()
	s.progressed(0)
	defer s.progressed(1)
	all := old.sorted()
	for rest := all; ; {
		most := checkpointStep
		if s.pressed() {
			most = checkpointRush
		}
		step := rest[:min(len(rest), most)]
		rest = rest[len(step):]
		dropped := true
		err := s.update(func(tx *bolt.Tx) (err error) {
			err = s.putHome(tx, func(yield func(Change) bool) {
				for _, e := range step {
					c := e.change()
					if c.TAT <= s.now.Load() {
						c.TAT = 0
					} else {
						s.remember(c.Key)
					}
					if !yield(c) {
						return
					}
				}
			})
			if err == nil && len(rest) == 0 {
				dropped, err = dropRecords(tx, last)
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("checkpoint: %w", err)
		}
		if len(rest) == 0 && dropped {
			break
		}
		s.progressed(float64(len(all)-len(rest)) / float64(len(all)+1))
		if !closing && s.stopping() {
			return 0, nil
		}
	}
	s.indexMu.Lock()
	s.old = nil
	if s.fresh.len() == 0 {
		s.journal = 0
	} else {
		s.journal = s.fresh.size // about: what came meanwhile, less what it repeats
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

// remember notes that something is stored for the key.
func (s *BoltStore) remember(key Key) {
	if f := s.filter.Load(); f != nil {
		f.add(key)
	}
	if f := s.next.Load(); f != nil {
		f.add(key)
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
// filter, or the one there is overfull, it hurries.
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
	s.careMu.Lock()
	defer s.careMu.Unlock()
	steps := 1
	for i := 0; i < steps; i++ {
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
		s.beginPassLocked()
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
func (s *BoltStore) beginPassLocked() {
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
	s.next.Store(next)
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	for e := range s.journalLocked() {
		next.add(e.change().Key)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.pass = sweepPass{names: s.allNames(), checks: s.file.check}
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

// sizes returns the bytes of the file, and how many of them are free pages.
func (s *BoltStore) sizes() (size, free int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return 0, 0
	}
	return s.file.sizes()
}

// Compact takes the journal home, rewrites the file without its free pages, and puts the new one in place of the old in one step, while
// saves and loads go on. It is done by itself when more than half of a file over 64 MiB is free. After an error the old file
// is in place, and in use.
func (s *BoltStore) Compact() error {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	if !s.readOnly {
		done, err := s.checkpointLocked()
		s.stats.record(&s.stats.checkpoints, done, err) // after an error the journal is copied as it is
	}
	return s.stats.record(&s.stats.compactions, 1, s.compactLocked())
}

func (s *BoltStore) compactLocked() (err error) {
	if s.readOnly {
		return fmt.Errorf("stint: compact %s: it was opened to be read only", s.path)
	}
	s.saveMu.Lock()
	s.compacts = true
	s.saveMu.Unlock()
	defer func() {
		s.saveMu.Lock()
		s.compacts = false
		s.saveMu.Unlock()
	}()
	temp, err := tempName(s.path, "compact")
	if err != nil {
		return fmt.Errorf("stint: compact %s: %w", s.path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(temp)
		}
	}()
	target, err := makeBoltFile(temp)
	if err != nil {
		return fmt.Errorf("stint: compact %s: %w", s.path, err)
	}
	target.db.NoSync = true // until it is complete
	if err := s.copyTo(target); err != nil {
		target.close()
		return fmt.Errorf("stint: compact %s: %w", s.path, err)
	}

	s.saveMu.Lock() // from here on nothing is saved
	defer s.saveMu.Unlock()
	err = s.emptyLog()
	if err == nil {
		err = s.copyJournal(target)
	}
	if err == nil {
		err = target.db.Sync()
	}
	if err != nil {
		target.close()
		return fmt.Errorf("stint: compact %s: %w", s.path, err)
	}
	target.db.NoSync = false
	s.mu.Lock() // nor loaded
	defer s.mu.Unlock()
	if s.closed {
		target.close()
		return ErrClosed
	}
	if err := s.swapLocked(temp, target); err != nil {
		return fmt.Errorf("stint: compact %s: %w", s.path, err)
	}
	return nil
}

var errStopped = errors.New("the store is being closed")

// copyTo copies all but the journal, a few thousand buckets at a time. Nothing but the journal changes meanwhile.
func (s *BoltStore) copyTo(target *boltFile) error {
	if err := target.update(func(tx *bolt.Tx) error { return layOut(tx, s.Names()) }); err != nil {
		return err
	}
	for _, name := range s.allNames() {
		for batch, err := range s.homes(name) {
			if err == nil {
				err = target.update(func(tx *bolt.Tx) error { return putHome(tx, nil, slices.Values(batch)) })
			}
			if err == nil && s.stopping() {
				err = errStopped
			}
			if err != nil {
				return err
			}
		}
	}
	return s.keepSums(target)
}

// allNames returns the names that the file may have buckets of, and Unknown, for the holds.
func (s *BoltStore) allNames() []Name {
	return append([]Name{Unknown}, slices.Sorted(maps.Keys(s.Names()))...)
}

// emptyLog puts what is in the log into the journal's tree.
func (s *BoltStore) emptyLog() error {
	return s.write(func(f *boltFile) error {
		if !f.isLogged() {
			return nil
		}
		return f.update(func(*bolt.Tx) error { return nil })
	})
}

// copyJournal copies the journal, all of which is in the tree.
func (s *BoltStore) copyJournal(target *boltFile) error {
	return s.view(func(from *bolt.Tx) error {
		return target.update(func(to *bolt.Tx) error {
			journal := to.Bucket(journalBucket)
			journal.FillPercent = 1
			var sum uint64
			err := from.Bucket(journalBucket).ForEach(func(k, v []byte) error {
				sum += recordSumOf(k, v)
				return journal.Put(slices.Clone(k), slices.Clone(v))
			})
			return errors.Join(err, addSum(journal, sum), keepSum(journal, from.Bucket(journalBucket)))
		})
	})
}

// swapLocked puts the new file in the place of the old one. Whoever waits for the lock of the old one finds, when the lock is
// his, that another file stands at the path, and that one is locked already.
func (s *BoltStore) swapLocked(temp string, target *boltFile) error {
	old := s.file
	if runtime.GOOS == "windows" { // which renames no file that is open
		if err := errors.Join(target.close(), old.close(), os.Rename(temp, s.path)); err != nil {
			return err
		}
		reopened, err := openBoltFile(s.path, time.Second, 0, false)
		if err == nil {
			s.file = reopened
		}
		return err
	}
	if err := os.Rename(temp, s.path); err != nil {
		target.close()
		return err
	}
	target.path = s.path
	s.file = target
	return errors.Join(syncDir(filepath.Dir(s.path)), old.close())
}
