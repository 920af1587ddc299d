package boltstore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bloom"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
)

var (
	// ErrClosed: the store, or its limiter, is closed.
	ErrClosed = format.ErrClosed

	// ErrLocked: another process, or another store of this one, has the file.
	ErrLocked = boltfile.ErrLocked

	// ErrGone: the file is not at its path any more.
	ErrGone = boltfile.ErrGone
)

// Options are the options of Open.
type Options struct {
	LockTimeout time.Duration
	ReadOnly    bool
	MustExist   bool         // do not make a file
	NamesLater  bool         // a file that is there gets no labels before Declare
	MaxResident int          // most buckets in memory; 0 means half a million
	FS          *boltfile.FS // nil means boltfile.OS()
}

// Store is an open file. The package comment has the order of its locks.
type Store struct {
	path     string
	readOnly bool
	fs       *boltfile.FS

	maintenance maintenance
	names       names
	saves       saves
	journal     journalState
	inUse       inUse
	stats       stats

	filter atomic.Pointer[bloom.Filter] // all keys in the file; nil until complete
	next   atomic.Pointer[bloom.Filter] // filled by the sweep
	now    atomic.Int64                 // time of the last Maintain
	wrote  atomic.Bool                  // something was written to the file, or tried to be

	closing  sync.Once
	closeErr error
	work     chan struct{} // wakes the goroutine in the background
	stop     chan struct{}
	running  sync.WaitGroup // the goroutine in the background
}

// inUse is the open file, which a compaction replaces.
type inUse struct {
	mu     sync.RWMutex
	file   *boltfile.File
	closed bool
}

// Resolve follows the links at path to a file that may or may not exist.
func Resolve(path string) (string, error) { return boltfile.Resolve(path) }

// SetAside renames the corrupt file at path to another name beside it, and
// returns that name. done is false if another process has done so since the
// file was found.
func SetAside(path string, found os.FileInfo,
	lockTimeout time.Duration) (to string, done bool, err error) {
	to = path + ".corrupt-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	done, err = boltfile.SetAside(path, to, found, lockTimeout)
	return to, done, err
}

// Open opens the file, and adds the labels that it does not have. If there is
// no file, it makes one with mode 0600. A crash before the new file is complete
// leaves no file. A file that is refused keeps each of its bytes.
func Open(path string, labels map[uint16]string, o Options) (*Store, error) {
	path, err := Resolve(path)
	if err != nil {
		return nil, fmt.Errorf("stint: %w", err)
	}
	if o.FS == nil {
		o.FS = boltfile.OS()
	}
	s := &Store{path: path, readOnly: o.ReadOnly, fs: o.FS,
		work: make(chan struct{}, 1), stop: make(chan struct{})}
	s.maintenance.compactMin = compactMin(strconv.IntSize)
	s.journal.fresh = journal.New()
	s.journal.bound(cmp.Or(o.MaxResident, 1<<19))
	s.journal.stepped = sync.NewCond(&s.journal.mu)
	if s.inUse.file, err = openFile(path, labels, o); err != nil {
		return nil, err
	}
	if !o.ReadOnly {
		boltfile.RemoveLeft(path)
	}
	err = s.read()
	if err == nil && !o.ReadOnly {
		if err = s.inUse.file.BuildUpon(); err != nil {
			err = fmt.Errorf("stint: sync %s: %w", path, err)
		}
	}
	if err == nil {
		err = s.enter(labels, false, o.ReadOnly || o.NamesLater)
	}
	if err != nil {
		s.inUse.file.Close()
		return nil, err
	}
	if !o.ReadOnly {
		if abs, err := filepath.Abs(path); err == nil { // the process may change its directory
			s.path, s.inUse.file.Path = abs, abs
		}
		s.running.Go(s.background)
	}
	return s, nil
}

// openFile opens the file at the path, and checks that the file is still there
// once it is locked. Before that, other processes may replace it or set it
// aside.
func openFile(path string, labels map[uint16]string, o Options) (*boltfile.File, error) {
	makes := !o.ReadOnly && !o.MustExist
	for begun := time.Now(); ; {
		if err := boltfile.CheckRegular(path); errors.Is(err, fs.ErrNotExist) && makes {
			err := boltfile.Make(path, o.FS, func(f *boltfile.File) error {
				return f.Update(func(tx *bolt.Tx) error { return boltfile.LayOut(tx, labels) })
			})
			if err != nil && !errors.Is(err, fs.ErrExist) { // ErrExist: another process has made the file
				return nil, fmt.Errorf("stint: make %s: %w", path, err)
			}
		} else if err != nil {
			return nil, fmt.Errorf("stint: %w", err)
		}
		file, err := boltfile.Open(path,
			boltfile.Options{LockTimeout: o.LockTimeout, ReadOnly: o.ReadOnly, FS: o.FS})
		switch {
		case err == nil && file.InPlace() == nil:
			return file, nil
		case err == nil:
			file.Close()
		case !errors.Is(err, fs.ErrNotExist) || !makes:
			return nil, err
		}
		if time.Since(begun) > o.LockTimeout {
			return nil, fmt.Errorf("%w: %s: other processes kept replacing it for %v",
				ErrLocked, path, o.LockTimeout)
		}
	}
}

// read reads what the Store keeps in memory: the labels and the journal.
func (s *Store) read() error {
	var entries []format.Entry // of a record
	return s.inUse.file.Explain(s.view(func(tx *bolt.Tx) (err error) {
		if s.names.labels, err = s.inUse.file.ReadHead(tx); err != nil {
			return err
		}
		return s.inUse.file.ReadJournal(tx, func(seq uint64, record []byte) error {
			entries = entries[:0]
			for e, err := range format.Entries(seq, record) {
				if err != nil {
					return err
				}
				entries = append(entries, e.Entry())
			}
			s.journal.fresh.Put(entries...)
			s.saves.seq = seq
			s.journal.bytes += int64(len(record))
			return nil
		})
	}))
}

// view runs fn in a transaction that reads the file.
func (s *Store) view(fn func(tx *bolt.Tx) error) error {
	return s.use(func(f *boltfile.File) error { return s.noteBroken(f.View(fn)) })
}

// update runs fn in a transaction that writes to the file.
func (s *Store) update(fn func(tx *bolt.Tx) error) error {
	return s.write(func(f *boltfile.File) error { return f.Update(fn) })
}

// write runs fn, which may write to the file.
func (s *Store) write(fn func(f *boltfile.File) error) error {
	return s.use(func(f *boltfile.File) error {
		if s.readOnly {
			return fmt.Errorf("stint: %s was opened read-only", s.path)
		}
		s.wrote.Store(true)
		return s.noteBroken(fn(f))
	})
}

// use calls fn with the open file, and nothing replaces the file before fn
// returns. If the store is closed, use returns ErrClosed instead.
func (s *Store) use(fn func(f *boltfile.File) error) error {
	s.inUse.mu.RLock()
	defer s.inUse.mu.RUnlock()
	if s.inUse.closed {
		return ErrClosed
	}
	return fn(s.inUse.file)
}

// noteBroken reports a broken file to Health. It returns err. The caller holds
// inUse.mu.
func (s *Store) noteBroken(err error) error {
	if err != nil && s.inUse.file.Broken() != nil {
		s.record(&s.stats.broken, 0, err)
	}
	return err
}

// Load returns the TAT that was last saved for a bucket, or 0.
func (s *Store) Load(name uint16, id string) (tat int64, err error) {
	isTime := format.Entry{Name: name, ID: id}.IsTime()
	if f := s.filter.Load(); f != nil && !isTime && !f.Has(name, id) {
		return 0, nil
	}
	if tat, ok := s.journal.get(name, id); ok {
		return tat, nil
	}
	err = s.view(func(tx *bolt.Tx) (err error) {
		if isTime {
			tat, err = boltfile.Seen(tx)
			return err
		}
		b := tx.Bucket(format.BucketOf(name))
		if b == nil {
			return nil
		}
		key := format.EncodeID(id)
		if err := s.inUse.file.Check.Key(b, key); err != nil {
			return err
		}
		v := b.Get(key)
		if v == nil {
			return nil
		}
		n, err := format.Uint64(v)
		tat = int64(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("load %s: %w", format.Entry{Name: name, ID: id}, err)
	}
	return tat, nil
}

// Close closes the file. It applies a short journal to the tree first, and
// leaves a long one to the next Open. If nothing was written since Open, it leaves
// the file as it is: its caller may have refused it. If the file was removed, Close
// puts a copy at the path. A second Close returns the same error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.stop)
		s.running.Wait()
		short := s.journal.is(func(j *journalState) bool { return j.lenLocked() <= checkpointStep })
		broken := s.use((*boltfile.File).Broken) != nil
		if s.wrote.Load() && !broken {
			if short {
				s.closeErr = s.checkpoint()
			}
			// An empty log cannot be damaged. Damage to the last record of a log would
			// look like a crash during that save.
			s.closeErr = errors.Join(s.closeErr, s.write((*boltfile.File).EmptyLog))
		}
		if !s.readOnly && !broken {
			s.closeErr = errors.Join(s.closeErr, s.putBack()) // the next Open must find what was saved
		}
		s.inUse.mu.Lock()
		defer s.inUse.mu.Unlock()
		s.inUse.closed = true
		s.closeErr = errors.Join(s.closeErr, s.inUse.file.Close())
	})
	return s.closeErr
}

// background runs checkpoints, missed sweeps and compactions when they are due,
// until Close.
func (s *Store) background() {
	for {
		select {
		case <-s.stop:
			return
		case <-s.work:
		}
		if s.journal.is((*journalState).dueLocked) {
			s.checkpoint() // a failure is in the stats, and is tried again
		}
		if s.maintenance.missed.Swap(false) { // now, because the next checkpoint may be due at once
			s.sweep(s.now.Load())
		}
		s.compactIfDue()
	}
}

func (s *Store) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

func (s *Store) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}
