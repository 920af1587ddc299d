package worlds

import (
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
)

// faultDisk is a store in memory, or a file whose log is in use, with faults.
type faultDisk struct {
	stint.Store
	path   string       // "" in memory
	files  *boltfile.FS // of the file
	met    func() error // called by each save, or by its write or sync; nil if there is no fault
	failed bool         // the next save goes to bbolt, which would not meet the fault
}

func (d *faultDisk) fault() error {
	if d.met == nil {
		return nil
	}
	err := d.met()
	d.failed = err != nil
	return err
}

func (d *faultDisk) Save(changes []stint.Change) error {
	if d.path == "" || d.failed && len(changes) > 0 {
		if err := d.fault(); err != nil {
			return err
		}
	}
	return d.Store.Save(changes)
}

// faultyStore is a Store whose operations can fail. inject gets the name of each
// before it is carried out, and again when it is done.
type faultyStore struct {
	stint.Store
	inject func(op string, done bool) error
}

func (s *faultyStore) do(op string, carryOut func() error) error {
	if err := s.inject(op, false); err != nil {
		return err
	}
	if err := carryOut(); err != nil {
		return err
	}
	return s.inject(op, true)
}

func (s *faultyStore) Save(changes []stint.Change) error {
	defer slices.Reverse(changes) // a Store may reorder them
	return s.do("save", func() error { return s.Store.Save(changes) })
}

func (s *faultyStore) Load(key stint.Key) (tat int64, err error) {
	err = s.do("load", func() (err error) {
		tat, err = s.Store.Load(key)
		return err
	})
	return tat, err
}

func (s *faultyStore) All(name stint.Name) iter.Seq2[stint.Change, error] {
	return func(yield func(stint.Change, error) bool) {
		enough := false
		err := s.do("all", func() error {
			for c, err := range s.Store.All(name) {
				if err != nil {
					return err
				}
				if enough = !yield(c, nil); enough {
					break
				}
			}
			return nil
		})
		if err != nil && !enough {
			yield(stint.Change{}, err)
		}
	}
}

func (s *faultyStore) Declare(names stint.Names) error {
	return s.do("declare", func() error { return s.Store.Declare(names) })
}

func (s *faultyStore) Maintain(now time.Time) error {
	return s.do("maintain", func() error { return s.Store.Maintain(now) })
}

func (s *faultyStore) Snapshot(w io.Writer) (n int64, err error) {
	err = s.do("snapshot", func() (err error) {
		n, err = s.Store.Snapshot(w)
		return err
	})
	return n, err
}

func (s *faultyStore) Close() error { return s.do("close", s.Store.Close) }

// faultKinds are the kinds of a faultDisk, and the call that meets the fault.
var faultKinds = []string{"mem", "file, write", "file, sync"}

// faultFile is a file that has a log, for faultDisks to begin with.
var faultFile struct {
	once    sync.Once
	content []byte
}

// newFaultDisk returns a faultDisk of a kind. A write that fails leaves nothing
// in the file, so that a crash shows what was not written again.
func newFaultDisk(t *testing.T, kind string) *faultDisk {
	d := &faultDisk{Store: stint.NewMemStore()}
	if kind == "mem" {
		return d
	}
	d.path = Path(t)
	faultFile.once.Do(func() {
		store := OpenFile(t, d.path, levelNames, Unsynced())
		useLog(t, store)
		require.NoError(t, store.Close())
		faultFile.content = filecopy.Read(t, d.path)
	})
	require.NoError(t, filecopy.Write(d.path, faultFile.content))
	files := boltfile.OS()
	files.LookEvery = 0
	d.files = files
	writeAt, syncFile := files.WriteAt, files.SyncFile
	if kind == "file, write" {
		files.WriteAt = func(file *os.File, b []byte, at int64) (int, error) {
			if err := d.fault(); err != nil {
				return 0, err
			}
			return writeAt(file, b, at)
		}
	} else {
		files.SyncFile = func(file *os.File) error {
			if err := d.fault(); err != nil {
				return err
			}
			return syncFile(file)
		}
	}
	d.Store = OpenFile(t, d.path, levelNames, files)
	useLog(t, d.Store)
	return d
}

// useLog saves until the saves go to the log of the file.
func useLog(t *testing.T, s stint.Store) {
	for range 4 {
		require.NoError(t, s.Save([]stint.Change{{Key: stint.Name(1).Key("log"), TAT: 1}}))
	}
}

// all returns all that a store has under the names, and its holds and time.
func all(t *testing.T, s stint.Store, names stint.Names) (changes []stint.Change) {
	seen, err := s.Load(stint.Key{})
	require.NoError(t, err)
	changes = append(changes, stint.Change{TAT: seen})
	for _, name := range append(slices.Collect(maps.Keys(names)), stint.Unknown) {
		for c, err := range s.All(name) {
			require.NoError(t, err)
			if c.Key != (stint.Key{}) {
				changes = append(changes, c)
			}
		}
	}
	return changes
}

// afterCrash returns what a crash would leave of the tokens of a key: 0 if it is
// held.
func (d *faultDisk) afterCrash(t *testing.T, key stint.Key) int64 {
	t.Helper()
	var store stint.Store = stint.NewMemStore()
	if d.path != "" {
		store = OpenFile(t, CopyOf(t, d.path), levelNames, nil)
	} else {
		require.NoError(t, store.Save(all(t, d.Store, levelNames)))
	}
	l, err := stint.New(store, tenADay(t), &stint.Options{FlushInterval: time.Hour, MaxResident: fewResident})
	require.NoError(t, err)
	defer l.Close()
	if d, err := l.Check(key, 1); err == nil && d.RetryAfter > 24*time.Hour {
		return 0
	}
	return remainingOf(t, l, key)
}
