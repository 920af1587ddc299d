package stint

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A file larger than this, of which more than half is free, is rewritten.
const compactMin = 64 << 20

// A compaction copies all of the file: one that failed is not tried again at once.
const compactRetry = 10 * time.Minute

// Compact takes the journal home, rewrites the file without its free pages, and puts the new one in place of the old in one step, while
// saves and loads go on. It is done by itself when more than half of a file over 64 MiB is free. It gives up where more is saved
// meanwhile than the journal has room for. After an error the old file is in place, and in use; or the new one, if all that failed was
// to make its name durable, and then every save tries that again first, and fails if it cannot.
func (s *BoltStore) Compact() error {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	if !s.readOnly {
		s.takeHomeLocked() // after an error the journal is copied as it is
	}
	return s.compactLocked()
}

func (s *BoltStore) compactLocked() error {
	err := s.compactOnceLocked()
	if errors.Is(err, errOutpaced) { // the file was in use, and nothing failed
		return err
	}
	return s.stats.record(&s.stats.compactions, 1, err)
}

func (s *BoltStore) compactOnceLocked() (err error) {
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

var (
	errStopped  = errors.New("the store is being closed")
	errOutpaced = errors.New("more is saved meanwhile than the journal has room for")
)

// giveUp returns why a compaction is not to go on, if there is a reason.
func (s *BoltStore) giveUp() error {
	switch {
	case s.stopping():
		return errStopped
	case s.outpaced():
		return errOutpaced
	}
	return nil
}

// setCopying tells those who wait in pace whether to wait for a compaction, which is going to ask giveUp, or for a snapshot.
func (s *BoltStore) setCopying(is bool) {
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	s.copying = is
	s.stepped.Broadcast()
}

// copyTo copies all, and syncs it. Nothing but the end of the journal changes meanwhile: what comes to it then is left for whoever has
// the saves wait.
func (s *BoltStore) copyTo(target *boltFile) error {
	s.setCopying(true)
	err := s.copyAll(target)
	s.setCopying(false)
	if err != nil {
		return err
	}
	return target.db.Sync()
}

// copyAll copies a few thousand buckets at a time.
func (s *BoltStore) copyAll(target *boltFile) error {
	s.namesMu.Lock()
	err := s.readAgainLocked()
	s.namesMu.Unlock()
	if err != nil {
		return err
	}
	if err := target.update(func(tx *bolt.Tx) error { return layOut(tx, s.Names()) }); err != nil {
		return err
	}
	names, err := s.allNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		for batch, err := range s.homes(name) {
			if err == nil {
				err = target.update(func(tx *bolt.Tx) error { return putHome(tx, nil, slices.Values(batch)) })
			}
			if err == nil {
				err = s.giveUp()
			}
			if err != nil {
				return err
			}
		}
	}
	if err := s.keepSums(target); err != nil {
		return err
	}
	if err := s.giveUp(); err != nil {
		return err
	}
	if err := s.copyJournal(target); err != nil {
		return err
	}
	return s.giveUp()
}

// allNames returns the names that have buckets in the tree, with a label or without, and Unknown, for the holds.
func (s *BoltStore) allNames() (names []Name, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		names = namesIn(tx)
		return nil
	})
	return names, err
}

func namesIn(tx *bolt.Tx) []Name {
	names := []Name{Unknown}
	c := tx.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if n, err := strconv.ParseUint(string(k), 10, 16); err == nil && n > 0 {
			names = append(names, Name(n))
		}
	}
	return names
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

// copyJournal copies what is in the journal's tree, behind what it copied before, a MiB at a time.
func (s *BoltStore) copyJournal(target *boltFile) error {
	for all := false; !all; {
		err := s.view(func(from *bolt.Tx) error {
			return target.update(func(to *bolt.Tx) (err error) {
				all, err = copyRecords(to.Bucket(journalBucket), from.Bucket(journalBucket))
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func copyRecords(to, from *bolt.Bucket) (all bool, err error) {
	to.FillPercent = 1
	next := uint64(0)
	if last, _ := to.Cursor().Last(); last != nil {
		next = binary.BigEndian.Uint64(last) + 1
	}
	var sum uint64
	c := from.Cursor()
	k, v := c.Seek(bigEndian(next))
	for bytes := 0; k != nil && bytes < 1<<20; k, v = c.Next() {
		bytes += len(v)
		sum += recordSumOf(k, v)
		if err := to.Put(slices.Clone(k), slices.Clone(v)); err != nil {
			return false, err
		}
	}
	if k == nil {
		return true, errors.Join(addSum(to, sum), keepSum(to, from))
	}
	return false, addSum(to, sum)
}

// swapLocked puts the new file in the place of the old one. Whoever waits for the lock of the old one finds, when the lock is
// his, that another file stands at the path, and that one is locked already.
func (s *BoltStore) swapLocked(temp string, target *boltFile) error {
	old := s.file
	if old.replaced() { // it was moved, or the path is relative, and the process is elsewhere by now
		target.close()
		return fmt.Errorf("%s is another file by now, or none", s.path)
	}
	if err := target.keepAccess(old); err != nil {
		target.close()
		return err
	}
	if !renamesOpen {
		return s.swapClosedLocked(temp, target)
	}
	err := syncDir(filepath.Dir(s.path)) // where that is impossible, there is a way back yet
	if err == nil {
		err = os.Rename(temp, s.path)
	}
	if err != nil {
		target.close()
		return err
	}
	target.path = s.path
	s.file = target
	s.unnamed.Store(true)
	return errors.Join(s.syncName(), old.close())
}

var renamesOpen = runtime.GOOS != "windows" // a test has it so

// swapClosedLocked is swapLocked where no file is renamed that is open. Nobody has the lock for a moment: if another has it then, or has written to
// the file, this store is done for, and each call says so.
func (s *BoltStore) swapClosedLocked(temp string, target *boltFile) error {
	want, err := readMeta(s.file.file)
	renamed, targetErr := readMeta(target.file)
	if err := errors.Join(err, targetErr, target.close()); err != nil {
		return err
	}
	err = s.file.close()
	if err == nil {
		err = os.Rename(temp, s.path)
	}
	if err == nil {
		want = renamed
	}
	file, lost := openBoltFile(s.path, time.Second, 0, toWrite)
	if lost == nil {
		lost = file.view(func(tx *bolt.Tx) error {
			if m, err := readMeta(file.file); err != nil || m != want {
				return cmp.Or(err, fmt.Errorf("%w: %s: another has written to it while it was compacted", ErrLocked, s.path))
			}
			_, err := file.openLog(tx)
			return err
		})
		if lost != nil {
			file.close()
		}
	}
	if lost != nil {
		s.file.broken.Store(&lost)
		return errors.Join(err, lost)
	}
	s.file = file
	return err
}

// keepAccess sees to it that whoever could use the old file can use the new one, as far as this process may.
func (f *boltFile) keepAccess(old *boltFile) error {
	info, err := old.file.Stat()
	if err != nil {
		return err
	}
	if err := keepOwner(f.file, info); err != nil {
		return err
	}
	return f.file.Chmod(info.Mode().Perm())
}

// syncName makes the name of a file that replaced another durable. Until then a power cut brings the other one back: nothing is saved.
func (s *BoltStore) syncName() error {
	if !s.unnamed.Load() {
		return nil
	}
	if err := syncDir(filepath.Dir(s.path)); err != nil {
		return fmt.Errorf("make the name of the new %s durable: %w", s.path, err)
	}
	s.unnamed.Store(false)
	return nil
}
