package stint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// The file is described byte by byte in docs/format.md.
const formatNumber = 1

var (
	metaBucket    = []byte("meta")
	formatKey     = []byte("format")
	namesBucket   = []byte("names")
	holdsBucket   = []byte("holds")
	journalBucket = []byte("journal")
)

// BoltOptions are the options of OpenBolt; nil or the zero value means the defaults.
type BoltOptions struct {
	LockTimeout time.Duration // wait for the file lock; default 1s, then ErrLocked

	// ReadOnly leaves the file as it is, byte for byte: it has to be there, its journal is read into memory, names that it
	// does not have are not entered, and whatever would write fails. Several may have a file open so, and while they do
	// nobody else has it.
	ReadOnly bool

	maxSize int // of the file: a full disk, for tests
}

// BoltStore is a Store in one bbolt file, which it keeps locked until Close. Small saves go straight to their places in
// the tree, others to a journal in the same file, which is taken home in the background.
//
// Damage is ErrCorrupt, from each call that meets it; others go on. Where it made bbolt panic, or fault, every call returns that
// error from then on, and the file is not touched again by this process.
type BoltStore struct {
	path     string
	readOnly bool

	mu     sync.RWMutex // held to read by each transaction, to write by those who replace file
	file   *boltFile
	closed bool

	unnamed atomic.Bool // the name of file may not be durable

	closing  sync.Once
	closeErr error

	namesMu sync.Mutex
	names   map[Name]string
	unread  bool // names could not be entered: what the file has of them is not known

	saveMu   sync.Mutex // held by a save: records are in the order of the saves
	seq      uint64     // of the last record
	lastSave time.Time
	company  int  // saves just before the next, each soon after the other
	compacts bool // the file is being copied: what is saved goes to the journal, where the copy finds it

	indexMu sync.RWMutex
	fresh   *journalIndex // what is in the journal
	old     *journalIndex // what is being taken home from it; nil where nothing is
	oldSeq  uint64        // the last record of old
	journal int64         // bytes of the records
	tired   int           // sweeps since the last save
	backoff time.Duration // after a checkpoint that failed; 0: the last one did not
	retry   time.Time     // until then, another one is not due

	compactMin   int64     // the size of a file that is compacted by itself
	notCompacted time.Time // when that last failed

	indexMost     int64 // when the journal is taken home at the latest, by the length of its index
	checkpointing bool
	copying       bool       // the file is being copied: nobody takes the journal home until that is done, or given up
	progress      float64    // of the checkpoint, 0 to 1
	stepped       *sync.Cond // on indexMu: progress was made, or copying has changed

	careMu sync.Mutex  // held by one at a time of checkpoint, sweep, compaction and snapshot
	missed atomic.Bool // a sweep found it held
	pass   sweepPass
	filter atomic.Pointer[filter] // of all that is stored; nil while that is not known
	next   atomic.Pointer[filter] // the one that the sweep is filling
	now    atomic.Int64           // when the owner last swept: what is past by then need not be stored

	work    chan struct{} // wakes the goroutine that takes the journal home
	stop    chan struct{}
	stopped chan struct{}
	stats   storeStats
}

// OpenBolt opens the file, or makes it (mode 0600) where there is none, and enters the names that it does not have.
// A crash while the file is being made leaves none. The errors are ErrLocked, ErrCorrupt, ErrFormat, ErrNameMismatch, or
// the operating system's.
func OpenBolt(path string, names Names, opts *BoltOptions) (*BoltStore, error) {
	var o BoltOptions
	if opts != nil {
		o = *opts
	}
	if o.LockTimeout < 0 {
		return nil, fmt.Errorf("stint: LockTimeout %v: want more than 0", o.LockTimeout)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	if err := errors.Join(names.mistakes()...); err != nil {
		return nil, err
	}
	path, err := resolve(path)
	if err != nil {
		return nil, fmt.Errorf("stint: %w", err)
	}
	s := &BoltStore{
		path:      path,
		readOnly:  o.ReadOnly,
		fresh:     newJournalIndex(),
		indexMost: indexMost,

		compactMin: compactMin,
		work:       make(chan struct{}, 1),
		stop:       make(chan struct{}),
		stopped:    make(chan struct{}),
	}
	s.stepped = sync.NewCond(&s.indexMu)
	s.stats.now = time.Now
	for begun := time.Now(); s.file == nil; {
		if err := checkRegular(path); errors.Is(err, fs.ErrNotExist) && !o.ReadOnly {
			if err := makeFile(path, names); err != nil {
				return nil, fmt.Errorf("stint: make %s: %w", path, err)
			}
		} else if err != nil {
			return nil, fmt.Errorf("stint: %w", err)
		}
		purpose := toWrite
		if o.ReadOnly {
			purpose = toRead
		}
		file, err := openBoltFile(path, o.LockTimeout, o.maxSize, purpose)
		replaced := errors.Is(err, fs.ErrNotExist) && !o.ReadOnly // set aside by another, since
		if err != nil && !replaced {
			return nil, err
		}
		if err == nil && file.replaced() {
			file.close()
			replaced = true
		}
		if !replaced {
			s.file = file
		} else if time.Since(begun) > o.LockTimeout {
			return nil, fmt.Errorf("%w: %s: replaced by others for all of %v", ErrLocked, path, o.LockTimeout)
		}
	}
	if err := s.read(); err != nil {
		s.file.close()
		return nil, err
	}
	if !o.ReadOnly {
		if err := s.file.buildUpon(); err != nil {
			s.file.close()
			return nil, fmt.Errorf("stint: sync %s: %w", path, err)
		}
	}
	if err := s.Declare(names); err != nil {
		s.file.close()
		return nil, err
	}
	if o.ReadOnly {
		close(s.stopped)
	} else {
		go s.care()
	}
	return s, nil
}

// read reads what stint keeps in memory of its file: the names, and what is in the journal.
func (s *BoltStore) read() error {
	err := s.view(func(tx *bolt.Tx) error {
		check := s.file.check
		if err := check.run(tx.Cursor().Bucket(), nil, 0); err != nil {
			return err
		}
		meta := tx.Bucket(metaBucket)
		if meta != nil {
			if err := check.run(meta, nil, 0); err != nil {
				return err
			}
		}
		if meta == nil || meta.Get(formatKey) == nil {
			return foreign(s.path)
		}
		format, err := decodeUint64(meta.Get(formatKey))
		if err != nil {
			return err
		}
		if format != formatNumber {
			return otherFormat(s.path, format)
		}
		names, journal := meta.Bucket(namesBucket), tx.Bucket(journalBucket)
		switch {
		case names == nil:
			return errors.New("it has no names table")
		case journal == nil:
			return errors.New("it has no journal")
		}
		if err := errors.Join(check.run(names, nil, 0), check.run(journal, nil, 0)); err != nil {
			return err
		}
		if err := s.readNames(names); err != nil {
			return err
		}
		if err := s.replay(journal); err != nil {
			return err
		}
		return s.replayLog(tx)
	})
	switch sysErr, pathErr := syscall.Errno(0), (*fs.PathError)(nil); {
	case err == nil:
	case errors.As(err, &sysErr), errors.As(err, &pathErr):
		err = fmt.Errorf("stint: %w", err)
	case !errors.Is(err, ErrFormat) && !errors.Is(err, ErrCorrupt):
		err = fmt.Errorf("%w: %s: %w", ErrCorrupt, s.path, err)
	case !strings.Contains(err.Error(), s.path):
		err = fmt.Errorf("%s: %w", s.path, err)
	}
	return err
}

// foreign returns what there is to say of a bbolt file that no stint wrote, and otherFormat of one that another version wrote.
func foreign(path string) error {
	return fmt.Errorf("%w: %s: a bbolt file, but not one of stint's", ErrFormat, path)
}

func otherFormat(path string, format uint64) error {
	return fmt.Errorf("%w: %s: format %d, and this version reads %d", ErrFormat, path, format, formatNumber)
}

func (s *BoltStore) replay(journal *bolt.Bucket) error {
	return journal.ForEach(func(k, record []byte) error {
		seq, err := decodeUint64(k)
		if err != nil {
			return err
		}
		return s.replayRecord(seq, record)
	})
}

func (s *BoltStore) replayRecord(seq uint64, record []byte) error {
	for e, err := range entries(seq, record) {
		if err != nil {
			return err
		}
		s.fresh.put(e.change())
	}
	s.seq = seq
	s.journal += int64(len(record))
	return nil
}

func (s *BoltStore) replayLog(tx *bolt.Tx) error {
	if log := tx.Bucket(logBucket); log != nil {
		if err := s.file.check.run(log, nil, 0); err != nil {
			return err
		}
	}
	records, err := s.file.openLog(tx)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.seq <= s.seq {
			return fmt.Errorf("record %d of its log is not behind its journal, which ends with %d", r.seq, s.seq)
		}
		if err := s.replayRecord(r.seq, r.record); err != nil {
			return err
		}
	}
	return nil
}

// view and update run fn in a transaction on the file.
func (s *BoltStore) view(fn func(tx *bolt.Tx) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return ErrClosed
	}
	return s.heardLocked(s.file.view(fn))
}

func (s *BoltStore) update(fn func(tx *bolt.Tx) error) error {
	return s.write(func(f *boltFile) error { return f.update(fn) })
}

// write runs fn on the file, which it may change.
func (s *BoltStore) write(fn func(f *boltFile) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.readOnly:
		return fmt.Errorf("stint: %s was opened to be read only", s.path)
	}
	if err := s.syncName(); err != nil {
		return err
	}
	return s.heardLocked(fn(s.file))
}

// Load implements Store.
func (s *BoltStore) Load(key Key) (tat int64, err error) {
	if f := s.filter.Load(); f != nil && !f.has(key) {
		return 0, nil
	}
	if tat, ok := s.journaled(key); ok {
		return tat, nil
	}
	err = s.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketOf(key.Name))
		if b == nil {
			return nil
		}
		id := encodeID(key.ID)
		if err := s.file.check.key(b, id); err != nil {
			return err
		}
		v := b.Get(id)
		if v == nil {
			return nil
		}
		n, err := decodeUint64(v)
		tat = int64(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("load %s: %w", key, err)
	}
	return tat, nil
}

// journaled returns what the journal has for a key: 0 where it was deleted.
func (s *BoltStore) journaled(key Key) (tat int64, ok bool) {
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	if tat, ok = s.fresh.get(key); !ok && s.old != nil {
		tat, ok = s.old.get(key)
	}
	return tat, ok
}

const (
	// A record of a large save ends and the next begins here: larger ones make bbolt rewrite more of their neighbours. Two
	// share a leaf, and fill its 16 pages with the 64 bytes that bbolt adds to them.
	maxRecord = 32<<10 - 32
	// What is no more than this is taken for a commit, for which somebody waits, and goes to the log.
	commitSave = 2048

	// A save of no more than this goes straight home, if it is alone, or has but one for company: who spends once and
	// closes saves a lease, and then the exact TAT, which is worth no log.
	smallSave = 64
	// It is alone where none came for so long before it.
	aloneAfter = 50 * time.Millisecond
)

// Save implements Store, in one transaction.
func (s *BoltStore) Save(changes []Change) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.remember(changes...)
	if time.Since(s.lastSave) > aloneAfter {
		s.company = 0
	}
	few := s.company <= 1
	s.company++
	s.lastSave = time.Now()
	s.indexMu.Lock()
	s.tired = 0
	home := few && len(changes) <= smallSave && s.journal == 0 && !s.compacts
	s.indexMu.Unlock()
	if home {
		slices.SortFunc(changes, func(a, b Change) int { return a.Key.compare(b.Key) })
		return s.update(func(tx *bolt.Tx) error { return s.putHome(tx, slices.Values(changes)) })
	}
	return s.append(changes)
}

// append adds the changes to the journal.
func (s *BoltStore) append(changes []Change) error {
	s.pace()
	s.indexMu.RLock()
	full := s.fresh.full() || s.backoff > 0 && s.fullLocked()
	s.indexMu.RUnlock()
	if full {
		if s.checkpointDue() {
			s.wake()
		}
		return fmt.Errorf("the journal of %s is full: %w", s.path, cmp.Or(s.stats.why(&s.stats.checkpoints), errUnderWay))
	}
	seq, bytes, err := s.record(changes)
	s.indexMu.Lock()
	defer s.indexMu.Unlock()
	s.seq = seq // after an error too: what failed may be in the file all the same, and what comes later must be behind it
	if err != nil {
		s.journal = max(s.journal, 1) // there may be something
		return err
	}
	s.journal += bytes
	for part := range slices.Chunk(changes, commitSave) {
		s.fresh.put(part...)
		s.indexMu.Unlock() // so that nobody who loads a bucket waits for all of a flush
		s.indexMu.Lock()
	}
	if s.checkpointDueLocked() {
		s.wake()
	}
	return nil
}

var errUnderWay = errors.New("it is about to be taken home")

// record writes the changes to the journal: to its end, which is the log, or else to the tree. It returns the number of the last
// record, and their bytes.
func (s *BoltStore) record(changes []Change) (seq uint64, bytes int64, err error) {
	done := false
	if len(changes) <= commitSave {
		seq = s.seq + 1
		err = s.write(func(f *boltFile) (err error) {
			var n int
			f.makeLog()
			done, n, err = f.appendLog(seq, changes)
			bytes = int64(n)
			return err
		})
	}
	if done || err != nil {
		return seq, bytes, err
	}
	seq = s.seq
	err = s.update(func(tx *bolt.Tx) error {
		var sum uint64
		journal := tx.Bucket(journalBucket)
		journal.FillPercent = 1
		for record := range records(changes, maxRecord) {
			seq++
			sealRecord(seq, record)
			if err := journal.Put(bigEndian(seq), record); err != nil {
				return err
			}
			bytes += int64(len(record))
			sum += recordSumOf(bigEndian(seq), record)
		}
		return addSum(journal, sum)
	})
	return seq, bytes, err
}

// putHome writes changes, in the order of their keys, to their places in the tree.
func (s *BoltStore) putHome(tx *bolt.Tx, changes iter.Seq[Change]) error {
	return putHome(tx, s.file.check, changes)
}

func putHome(tx *bolt.Tx, check *pageChecker, changes iter.Seq[Change]) error {
	var b *bolt.Bucket
	var in []byte // its name
	last := -1
	for c := range changes {
		if int(c.Key.Name) != last {
			last, in = int(c.Key.Name), bucketOf(c.Key.Name)
			b = tx.Bucket(in)
		}
		var err error
		if b != nil {
			if err := check.key(b, encodeID(c.Key.ID)); err != nil {
				return fmt.Errorf("save %s: %w", c.Key, err)
			}
		}
		if c.TAT == 0 {
			if b != nil {
				err = putSummed(b, in, encodeID(c.Key.ID), nil)
			}
		} else {
			if b == nil {
				if b, err = tx.CreateBucketIfNotExists(in); err == nil {
					err = b.SetSequence(sumStart)
				}
			}
			if err == nil {
				err = putSummed(b, in, encodeID(c.Key.ID), bigEndian(uint64(c.TAT)))
			}
		}
		if err != nil {
			return fmt.Errorf("save %s: %w", c.Key, err)
		}
	}
	return nil
}

// All implements Store. It reads a few thousand buckets at a time, so that no transaction stays open while the caller
// looks at them.
func (s *BoltStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		journaled := s.journaledOf(name)
		newest := func(c Change) bool { // yields what the journal has up to c, and c unless the journal has it
			for len(journaled) > 0 && compareStored(journaled[0], c) <= 0 {
				j := journaled[0]
				journaled = journaled[1:]
				if j.TAT != 0 && !yield(j, nil) {
					return false
				}
				if j.Key == c.Key {
					return true
				}
			}
			return yield(c, nil)
		}
		for batch, err := range s.homes(name) {
			for _, c := range batch {
				if !newest(c) {
					return
				}
			}
			if err != nil {
				yield(Change{}, err)
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

// journaledOf returns what the journal has of a name, in the order in which bbolt has the ids.
func (s *BoltStore) journaledOf(name Name) []Change {
	s.indexMu.RLock()
	defer s.indexMu.RUnlock()
	newest := make(map[Key]int64)
	for e := range s.journalLocked() {
		if e.name == name {
			newest[Key{name, string(e.id)}] = e.tat
		}
	}
	changes := make([]Change, 0, len(newest))
	for key, tat := range newest {
		changes = append(changes, Change{key, tat})
	}
	slices.SortFunc(changes, compareStored)
	return changes
}

// compareStored orders changes as bbolt has them.
func compareStored(a, b Change) int {
	return cmp.Or(cmp.Compare(a.Key.Name, b.Key.Name), bytes.Compare(encodeID(a.Key.ID), encodeID(b.Key.ID)))
}

// homes yields what is stored in the tree for a name, a few thousand at a time.
func (s *BoltStore) homes(name Name) iter.Seq2[[]Change, error] {
	const most = 4096
	return func(yield func([]Change, error) bool) {
		var after []byte // the last key read
		for {
			var batch []Change
			err := s.view(func(tx *bolt.Tx) error {
				b := tx.Bucket(bucketOf(name))
				if b == nil {
					return nil
				}
				if err := s.file.check.run(b, after, most); err != nil {
					return err
				}
				c := b.Cursor()
				k, v := c.Seek(after)
				if after != nil && bytes.Equal(k, after) {
					k, v = c.Next()
				}
				for ; k != nil && len(batch) < most; k, v = c.Next() {
					tat, err := decodeUint64(v)
					if err != nil {
						return fmt.Errorf("%s: %w", Key{name, decodeID(k)}, err)
					}
					batch = append(batch, Change{Key{name, decodeID(k)}, int64(tat)})
					after = append(after[:0], k...)
				}
				return nil
			})
			if !yield(batch, err) || err != nil || len(batch) < most {
				return
			}
		}
	}
}

// Close implements Store. A journal that is short is taken home first; a long one is left to the next Open. A second
// Close returns what the first did.
func (s *BoltStore) Close() error {
	s.closing.Do(func() {
		s.stopCare()
		s.indexMu.RLock()
		short := s.journaledLocked() <= checkpointStep
		s.indexMu.RUnlock()
		s.mu.RLock() // a compaction may be about to replace it
		broken := s.file.broken.Load() != nil
		s.mu.RUnlock()
		if !s.readOnly && !broken {
			if short {
				s.closeErr = s.checkpoint()
			}
			s.closeErr = errors.Join(s.closeErr, s.emptyLog()) // damage to the last save in it looks like a crash
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
		s.closeErr = errors.Join(s.closeErr, s.file.close())
	})
	return s.closeErr
}

// stopCare ends what is done in the background.
func (s *BoltStore) stopCare() {
	close(s.stop)
	<-s.stopped
}

// encodeID returns the key that an id is stored under: bbolt has no empty key, so that the id of a Shared limit is "*",
// and an id that is itself nothing but stars has one more.
func encodeID(id string) []byte {
	if onlyStars(id) {
		return []byte(id + "*")
	}
	return []byte(id)
}

func decodeID(k []byte) string {
	if onlyStars(string(k)) {
		return string(k[1:])
	}
	return string(k)
}

func onlyStars(id string) bool {
	for i := range len(id) {
		if id[i] != '*' {
			return false
		}
	}
	return true
}

func decodeUint64(v []byte) (uint64, error) {
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: a value of %d bytes, want 8", ErrCorrupt, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}
