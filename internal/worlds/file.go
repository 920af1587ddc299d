package worlds

import (
	"iter"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
)

// LongLock is the longest that a test waits for a lock that is about to be free.
const LongLock = time.Minute

// File is a file of stint's as a Store, on a file system that may fail. Its
// other methods are those of its Store.
type File struct{ *boltstore.Store }

// OpenFile opens a file, which is closed when the test ends. A nil file system is
// the operating system's.
func OpenFile(t testing.TB, path string, names stint.Names, files *boltfile.FS) File {
	t.Helper()
	store, err := boltstore.Open(path, labels(names),
		boltstore.Options{LockTimeout: LongLock, MaxResident: 1 << 20, FS: files})
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	return File{store}
}

func labels(names stint.Names) map[uint16]string {
	labels := make(map[uint16]string, len(names))
	for name, spec := range names {
		labels[uint16(name)] = spec.Label
	}
	return labels
}

// LimitsOf returns Limits of the names, with these limits.
func LimitsOf(t testing.TB, names stint.Names, defaults map[stint.Name]stint.Limit) *stint.Limits {
	t.Helper()
	ls, err := stint.NewLimits(names.WithLimits(defaults))
	require.NoError(t, err)
	return ls
}

// Declare implements stint.Store.
func (f File) Declare(names stint.Names) error { return f.Store.Declare(labels(names)) }

// Load implements stint.Store.
func (f File) Load(key stint.Key) (tat int64, err error) {
	return f.Store.Load(uint16(key.Name), key.ID)
}

// Save implements stint.Store.
func (f File) Save(changes []stint.Change) error {
	entries := make([]format.Entry, len(changes))
	for i, c := range changes {
		entries[i] = format.Entry{Name: uint16(c.Key.Name), ID: c.Key.ID, TAT: c.TAT}
	}
	return f.Store.Save(entries)
}

// All implements stint.Store.
func (f File) All(name stint.Name) iter.Seq2[stint.Change, error] {
	return func(yield func(stint.Change, error) bool) {
		for e, err := range f.Store.All(uint16(name)) {
			if !yield(stint.Change{Key: stint.Key{Name: stint.Name(e.Name), ID: e.ID}, TAT: e.TAT}, err) {
				return
			}
		}
	}
}

// Stats implements stint.Store.
func (f File) Stats() stint.FileStats {
	st := f.Store.Stats()
	return stint.FileStats{Format: st.Format, Bytes: st.Bytes, Free: st.Free, Journal: st.Journal, Journaled: st.Journaled}
}

// Unsynced is a file system that syncs nothing, for tests that cut no power.
func Unsynced() *boltfile.FS {
	files := boltfile.OS()
	files.SyncFile = func(*os.File) error { return nil }
	files.SyncDir, files.NoSync = func(string) error { return nil }, true
	return files
}

// Path returns the path of a file that does not exist yet.
func Path(t testing.TB) string { return filepath.Join(t.TempDir(), "store.db") }

// CopyOf copies a file, as a killed process would leave it.
func CopyOf(t testing.TB, path string) string { return filecopy.Of(t, path) }
