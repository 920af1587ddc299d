package stint

import (
	"maps"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
)

// faultDisk is a memStore, or a file whose log is in use, with faults.
type faultDisk struct {
	Store
	path   string       // "" for a memStore
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

func (d *faultDisk) Save(changes []Change) error {
	if d.path == "" || d.failed && len(changes) > 0 {
		if err := d.fault(); err != nil {
			return err
		}
	}
	return d.Store.Save(changes)
}

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
	d := &faultDisk{Store: NewMemStore()}
	if kind == "mem" {
		return d
	}
	d.path = storePath(t)
	faultFile.once.Do(func() {
		store := openBoltOn(t, d.path, levelNames, unsynced())
		useLog(t, store)
		require.NoError(t, store.Close())
		var err error
		faultFile.content, err = os.ReadFile(d.path)
		require.NoError(t, err)
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
	d.Store = openBoltOn(t, d.path, levelNames, files)
	useLog(t, d.Store)
	return d
}

// useLog saves until the saves go to the log of the file.
func useLog(t *testing.T, s Store) {
	for range 4 {
		require.NoError(t, s.Save([]Change{{Name(1).Key("log"), 1}}))
	}
}

// afterCrash returns what a crash would leave of the tokens of a key: 0 if it is
// held.
func (d *faultDisk) afterCrash(t *testing.T, key Key) int64 {
	t.Helper()
	var store Store = NewMemStore()
	if d.path != "" {
		store = openBolt(t, copyOf(t, d.path), levelNames)
	} else {
		mem := d.Store.(*memStore)
		mem.mu.Lock()
		store.(*memStore).tats = maps.Clone(mem.tats)
		mem.mu.Unlock()
	}
	l, err := New(store, tenADay(t), &Options{FlushInterval: time.Hour, MaxResident: fewResident})
	require.NoError(t, err)
	defer l.Close()
	if d, err := l.Check(key, 1); err == nil && d.RetryAfter > 24*time.Hour {
		return 0
	}
	return remainingOf(t, l, key)
}
