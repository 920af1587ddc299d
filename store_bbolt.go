package stint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
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
}

// BoltStore is a Store in one bbolt file, which it keeps locked until Close.
//
// A panic or a memory fault inside bbolt, which is how it meets a damaged file, becomes ErrCorrupt; after the first
// one every call returns that error, and the file is not touched again.
type BoltStore struct {
	path string
	db   *bolt.DB
	file *os.File // bbolt's own: closing it lets go of the lock where bbolt itself can no longer be called

	mu     sync.RWMutex // held to read by each call, to write by Close
	closed bool
	broken error // guarded by brokenMu: set inside calls
	names  map[Name]string

	brokenMu sync.Mutex
	namesMu  sync.Mutex
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
		return nil, fmt.Errorf("stint: LockTimeout %v: want 0 or more", o.LockTimeout)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := makeFile(path, names); err != nil {
			return nil, fmt.Errorf("stint: make %s: %w", path, err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("stint: open %s: %w", path, err)
	}
	s := &BoltStore{path: path}
	if err := s.open(o.LockTimeout); err != nil {
		return nil, err
	}
	if err := s.declare(names); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// makeFile makes the file under another name, complete and synced, and links it to its own: bbolt, whose power is cut in
// its first moments, can leave a file that it will not open. A link, unlike a rename, never replaces a file
// that another process has made meanwhile.
func makeFile(path string, names Names) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".new-*") // 0600
	if err != nil {
		return err
	}
	temp := f.Name()
	defer os.Remove(temp)
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bolt.Open(temp, 0o600, boltOptions(time.Second, nil))
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		if err := meta.Put(formatKey, bigEndian(formatNumber)); err != nil {
			return err
		}
		table, err := meta.CreateBucket(namesBucket)
		if err != nil {
			return err
		}
		for name, spec := range names {
			if err := table.Put(name.decimal(), []byte(spec.Label)); err != nil {
				return err
			}
		}
		_, err = tx.CreateBucket(holdsBucket)
		return err
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		if err := os.Rename(temp, path); err != nil { // a file system without links
			return err
		}
	}
	return syncDir(dir)
}

// syncDir makes the names in a directory durable, where the operating system has that notion.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func boltOptions(lockTimeout time.Duration, open func(string, int, os.FileMode) (*os.File, error)) *bolt.Options {
	o := &bolt.Options{
		Timeout:      lockTimeout, // 0 would wait for ever
		FreelistType: bolt.FreelistMapType,
		NoStatistics: true,
		PageSize:     4096,
		OpenFile:     open,
		// NoFreelistSync stays off: with it a bad page is a panic in a goroutine of bbolt's, which nobody can recover.
	}
	if strconv.IntSize == 64 && runtime.GOOS != "windows" {
		o.InitialMmapSize = 1 << 30 // address space only: a growing file need not stop its readers to be mapped anew
	}
	return o
}

// open opens the file that stands at s.path, and checks that it is one of this format.
func (s *BoltStore) open(lockTimeout time.Duration) error {
	err := s.guard(func() (err error) {
		s.db, err = bolt.Open(s.path, 0o600, boltOptions(lockTimeout, func(path string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
			if err != nil {
				return nil, err
			}
			if info, err := f.Stat(); err != nil || info.Size() == 0 { // bbolt would take an empty file for a new one
				f.Close()
				return nil, errors.Join(err, fmt.Errorf("%w: it is empty; remove it to start anew", ErrCorrupt))
			}
			s.file = f
			return f, nil
		}))
		return err
	})
	if err != nil {
		if s.file != nil {
			s.file.Close()
		}
		switch pathErr := (*fs.PathError)(nil); {
		case errors.Is(err, bolterrors.ErrTimeout):
			return fmt.Errorf("%w: %s: still in use by another after %v", ErrLocked, s.path, lockTimeout)
		case errors.Is(err, ErrCorrupt):
			return fmt.Errorf("%s: %w", s.path, err)
		case errors.As(err, &pathErr):
			return fmt.Errorf("stint: %w", err)
		}
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, s.path, err)
	}
	err = s.view(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta == nil || meta.Get(formatKey) == nil {
			return fmt.Errorf("%w: %s: a bbolt file, but not one of stint's", ErrFormat, s.path)
		}
		format, err := decodeUint64(meta.Get(formatKey))
		if err != nil {
			return err
		}
		if format != formatNumber {
			return fmt.Errorf("%w: %s: format %d, and this version reads %d", ErrFormat, s.path, format, formatNumber)
		}
		if journal := tx.Bucket(journalBucket); journal != nil {
			if k, _ := journal.Cursor().First(); k != nil {
				return fmt.Errorf("%w: %s: it has a journal, which this version does not read", ErrFormat, s.path)
			}
		}
		table := meta.Bucket(namesBucket)
		if table == nil {
			return errors.New("no names table")
		}
		s.names = make(map[Name]string)
		return table.ForEach(func(k, v []byte) error {
			n, err := strconv.ParseUint(string(k), 10, 16)
			if err != nil || n == 0 {
				return fmt.Errorf("name number %q", k)
			}
			s.names[Name(n)] = string(v)
			return nil
		})
	})
	if err != nil {
		s.Close()
		if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("%w: %s: %w", ErrCorrupt, s.path, err)
		}
	}
	return err
}

// guard runs f, which calls bbolt, and turns a panic or a memory fault in it into ErrCorrupt, for good.
func (s *BoltStore) guard(f func() error) (err error) {
	s.brokenMu.Lock()
	broken := s.broken
	s.brokenMu.Unlock()
	if broken != nil {
		return broken
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", ErrCorrupt, s.path, r)
			s.brokenMu.Lock()
			s.broken = err
			s.brokenMu.Unlock()
		}
	}()
	return f()
}

// view and update run f in a transaction. They roll back after an error, and leave a transaction that panicked alone:
// its pages cannot be trusted, and guard sees to it that nobody comes after it.
func (s *BoltStore) view(f func(tx *bolt.Tx) error) error   { return s.transact(false, f) }
func (s *BoltStore) update(f func(tx *bolt.Tx) error) error { return s.transact(true, f) }

func (s *BoltStore) transact(writable bool, f func(tx *bolt.Tx) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return ErrClosed
	}
	return s.guard(func() error {
		tx, err := s.db.Begin(writable)
		if err != nil {
			return err
		}
		if err := f(tx); err != nil || !writable {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	})
}

// Names returns the labels that the file has, by number.
func (s *BoltStore) Names() map[Name]string {
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	return maps.Clone(s.names)
}

// Number returns the number that the file has for the label. A label that it does not have is given the lowest number
// that is free, and keeps it: for programs whose limits are named at run time.
func (s *BoltStore) Number(label string) (Name, error) {
	have := s.Names()
	for name, l := range have {
		if l == label {
			return name, nil
		}
	}
	for name := Name(1); name != 0; name++ {
		if _, taken := have[name]; !taken {
			return name, s.declare(Names{name: {Label: label}})
		}
	}
	return Unknown, fmt.Errorf("%w: all 65535 numbers are taken, none is left for %q", ErrNameMismatch, label)
}

// declare checks the names against the file's, and adds those that it does not have.
func (s *BoltStore) declare(names Names) error {
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	numbers := make(map[string]Name, len(s.names))
	for name, label := range s.names {
		numbers[label] = name
	}
	added := make(map[Name]string)
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		label := names[name].Label
		if have, ok := s.names[name]; ok {
			if have != label {
				wrong = append(wrong, fmt.Errorf("%w: %s: name %d is %q in the file, and declared as %q", ErrNameMismatch, s.path, name, have, label))
			}
		} else if number, ok := numbers[label]; ok {
			wrong = append(wrong, fmt.Errorf("%w: %s: %q is name %d in the file, and declared as %d", ErrNameMismatch, s.path, label, number, name))
		} else {
			added[name] = label
		}
	}
	if len(wrong) > 0 || len(added) == 0 {
		return errors.Join(wrong...)
	}
	err := s.update(func(tx *bolt.Tx) error {
		table := tx.Bucket(metaBucket).Bucket(namesBucket)
		for name, label := range added {
			if err := table.Put(name.decimal(), []byte(label)); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		maps.Copy(s.names, added)
	}
	return err
}

// Load implements Store.
func (s *BoltStore) Load(key Key) (tat int64, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketOf(key.Name))
		if b == nil {
			return nil
		}
		v := b.Get(encodeID(key.ID))
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

// Save implements Store: one transaction, in the order of the keys.
func (s *BoltStore) Save(changes []Change) error {
	slices.SortFunc(changes, func(a, b Change) int { return a.Key.compare(b.Key) })
	return s.update(func(tx *bolt.Tx) error {
		var b *bolt.Bucket
		for i, c := range changes {
			if i == 0 || c.Key.Name != changes[i-1].Key.Name {
				b = tx.Bucket(bucketOf(c.Key.Name))
			}
			if b == nil && c.TAT != 0 {
				var err error
				if b, err = tx.CreateBucketIfNotExists(bucketOf(c.Key.Name)); err != nil {
					return err
				}
			}
			var err error
			if c.TAT != 0 {
				err = b.Put(encodeID(c.Key.ID), bigEndian(uint64(c.TAT)))
			} else if b != nil {
				err = b.Delete(encodeID(c.Key.ID))
			}
			if err != nil {
				return fmt.Errorf("save %s: %w", c.Key, err)
			}
		}
		return nil
	})
}

// All implements Store. It reads a few thousand buckets at a time, so that no transaction stays open while the caller
// looks at them.
func (s *BoltStore) All(name Name) iter.Seq2[Change, error] {
	const most = 4096
	return func(yield func(Change, error) bool) {
		var after []byte // the last key read
		for {
			var batch []Change
			err := s.view(func(tx *bolt.Tx) error {
				b := tx.Bucket(bucketOf(name))
				if b == nil {
					return nil
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
			for _, c := range batch {
				if !yield(c, nil) {
					return
				}
			}
			if err != nil {
				yield(Change{}, err)
				return
			}
			if len(batch) < most {
				return
			}
		}
	}
}

// Close implements Store. It lets go of the file and its lock.
func (s *BoltStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.guard(s.db.Close)
	if errors.Is(err, ErrCorrupt) {
		s.file.Close()
		return nil // the calls before have told
	}
	return err
}

// bucketOf returns the name of the bbolt bucket that holds a Name's buckets; for Unknown, that of the holds.
func bucketOf(name Name) []byte {
	if name == Unknown {
		return holdsBucket
	}
	return name.decimal()
}

func (n Name) decimal() []byte { return strconv.AppendUint(nil, uint64(n), 10) }

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

func bigEndian(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func decodeUint64(v []byte) (uint64, error) {
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: a value of %d bytes, want 8", ErrCorrupt, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}
