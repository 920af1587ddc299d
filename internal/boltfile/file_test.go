package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
)

var errFault = errors.New("the disk is on fire")

func layOut(f *File) error { return f.Update(func(tx *bolt.Tx) error { return LayOut(tx, nil) }) }

// openNew makes a file and opens it on its own FS.
func openNew(t *testing.T) (f *File, files *FS) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "new.db")
	files = OS()
	require.NoError(t, Make(path, files, layOut))
	f, err := Open(path, Options{LockTimeout: time.Minute, FS: files})
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f, files
}

// An error of the operating system is not damage, so the file is not set aside.
func TestOpenError(t *testing.T) {
	const path = "dir/stint.db"
	for _, err := range []error{
		syscall.ENOLCK, syscall.ENOMEM, syscall.EIO, errors.New("mmap too large"), errors.New("truncate: there is no room"),
		&fs.PathError{Op: "read", Path: path, Err: syscall.EIO}, fmt.Errorf("file stat error: %w", syscall.EIO),
	} {
		err := openError(path, time.Second, err)
		require.NotErrorIs(t, err, format.ErrCorrupt)
		require.Equal(t, 1, strings.Count(err.Error(), path), err)
		require.True(t, strings.HasPrefix(err.Error(), "stint: "))
	}
	for _, err := range []error{bolterrors.ErrInvalid, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch,
		errors.New("file size too small 4097")} {
		err := openError(path, time.Second, err)
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, path)
	}
	f := &File{Path: path}
	for _, err := range []error{syscall.EIO, &fs.PathError{Op: "read", Path: path, Err: os.ErrClosed}} {
		require.ErrorIs(t, f.Explain(err), err)
		require.NotErrorIs(t, f.Explain(err), format.ErrCorrupt)
	}
	require.ErrorIs(t, f.Explain(errors.New("it has no journal")), format.ErrCorrupt)
	require.NoError(t, f.Explain(nil))
}

// takeOver skips a record that a failed transaction has already put into the
// journal.
func TestTakeOver(t *testing.T) {
	f, _ := openNew(t)
	f.MakeLog()
	require.NoError(t, f.Update(func(*bolt.Tx) error { return nil }))
	_, err := f.Append(1, []format.Entry{{Name: 1, ID: "logged", TAT: 1 << 60}})
	require.NoError(t, err)
	pending := f.LogState().Pending
	require.NoError(t, f.EmptyLog())
	f.commitLog.Pending, f.commitLog.failed = pending, true // as if that commit had failed
	n, err := f.Append(2, nil)
	require.NoError(t, err)
	require.Zero(t, n, "the next save is a transaction")
	want := format.SumStart + format.EntrySum(format.JournalBucket, format.BigEndian(1), pending[0].Data)
	pending[0].Data = []byte("not written")
	require.NoError(t, f.EmptyLog())
	require.NoError(t, f.View(func(tx *bolt.Tx) error {
		require.Equal(t, want, tx.Bucket(format.JournalBucket).Sequence())
		return nil
	}))
}

// BuildUpon writes the meta page again before anything relies on it, because
// the operating system reports a failed page as written. The page goes to its
// own place, even if the number in it is wrong, because the checksum does not
// cover that number.
func TestBuildUpon(t *testing.T) {
	f, files := openNew(t)
	want, err := bboltpage.ReadMeta(f.OS())
	require.NoError(t, err)
	place := int64(want.Tx % 2 * bboltpage.Size)
	_, err = f.OS().WriteAt([]byte{5}, place)
	require.NoError(t, err)
	var done []string
	sound := *files
	files.WriteAt = func(_ *os.File, p []byte, at int64) (int, error) {
		require.Equal(t, want.Page(), p)
		require.Equal(t, place, at)
		done = append(done, "written")
		return len(p), nil
	}
	files.SyncFile = func(*os.File) error { done = append(done, "synced"); return nil }
	files.SyncDir = func(string) error { done = append(done, "named"); return nil }
	require.NoError(t, f.BuildUpon())
	require.Equal(t, []string{"written", "synced", "named"}, done)
	files.SyncFile = func(*os.File) error { return errFault }
	require.ErrorIs(t, f.BuildUpon(), errFault)
	err = f.Update(func(*bolt.Tx) error { return nil })
	require.ErrorIs(t, err, errFault)
	require.ErrorContains(t, err, "write the first pages of")
	*files = sound
	require.NoError(t, f.Update(func(*bolt.Tx) error { return nil }))
}

// After a failed commit, the next write waits for earlier readers before it
// uses the pages that the commit freed.
func TestConfirmWithReaders(t *testing.T) {
	f, files := openNew(t)
	var confirmed, tooSoon atomic.Bool
	done := make(chan struct{})
	require.NoError(t, f.View(func(*bolt.Tx) error {
		m, err := bboltpage.ReadMeta(f.OS())
		require.NoError(t, err)
		f.unsure = &m
		synced := make(chan struct{})
		sync := files.SyncFile
		files.SyncFile = func(file *os.File) error { defer close(synced); return sync(file) }
		go func() {
			defer close(done)
			if err := f.confirm(); err != nil {
				t.Error(err)
			}
			confirmed.Store(true)
		}()
		<-synced
		for range 10_000 {
			runtime.Gosched()
		}
		tooSoon.Store(confirmed.Load())
		return nil
	}))
	<-done
	require.False(t, tooSoon.Load())
}

// Make gives a file its name when the file is complete, and replaces no other
// file, even if the file system has no links.
func TestMake(t *testing.T) {
	links, unsynced := OS(), OS()
	links.Link = func(string, string) error { return errors.ErrUnsupported }
	unsynced.SyncDir = func(string) error { return errFault }
	for name, c := range map[string]struct {
		files *FS
		err   error
	}{"links": {OS(), nil}, "no links": {links, nil}, "its name is not durable": {unsynced, errFault}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "made.db")
			fails := func(f *File) error {
				require.NoFileExists(t, path)
				return errors.Join(layOut(f), errFault)
			}
			require.ErrorIs(t, Make(path, c.files, fails), errFault)
			require.NoFileExists(t, path)
			require.ErrorIs(t, Make(path, c.files, layOut), c.err)
			before := filecopy.Read(t, path)
			require.ErrorIs(t, Make(path, c.files, layOut), fs.ErrExist)
			require.Equal(t, before, filecopy.Read(t, path))
			left, err := filepath.Glob(path + ".*")
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// TestFreePages: a file whose buckets change all the time does not grow. bbolt
// writes the list of free pages to pages in a row at each commit. If single pages
// were taken from the middle of such rows, none would be left, and the list would
// go to the end of the file each time.
func TestFreePages(t *testing.T) {
	f, files := openNew(t)
	files.NoSync, f.DB.NoSync = true, true
	const ids, steps = 50_000, 20
	rnd := rand.New(rand.NewPCG(1, 2))
	numbered := func(i int) format.Entry {
		return format.Entry{Name: 1, ID: fmt.Sprintf("%024d", i), TAT: rnd.Int64N(1<<62) + 1}
	}
	for i := 0; i < ids; i += 1000 {
		require.NoError(t, f.Update(func(tx *bolt.Tx) error {
			if b := tx.Bucket(format.BucketOf(1)); b != nil {
				b.FillPercent = 0.7
			}
			var entries []format.Entry
			for j := range 1000 {
				entries = append(entries, numbered(i+j))
			}
			return Apply(tx, nil, entries)
		}))
	}
	var last uint64
	var sizes []int64
	for range 12 { // each writes a journal, applies it in the order of its keys, and drops the one before
		dropped := last
		var entries []format.Entry
		for range ids / 5 {
			entries = append(entries, numbered(rnd.IntN(ids)))
		}
		sorted := slices.SortedFunc(slices.Values(entries), format.Entry.CompareStored)
		for range steps {
			n := ids / 5 / steps
			require.NoError(t, f.Update(func(tx *bolt.Tx) error {
				records := func(yield func(format.Record) bool) {
					for record := range format.Records(entries[:n], 64<<10) {
						last++
						format.Seal(last, record)
						yield(format.Record{Seq: last, Data: record})
					}
				}
				return errors.Join(PutRecords(tx, records), Apply(tx, nil, sorted[:n]))
			}))
			entries, sorted = entries[n:], sorted[n:]
		}
		require.NoError(t, f.Update(func(tx *bolt.Tx) error {
			sizes = append(sizes, tx.Size())
			_, err := DropRecords(tx, dropped)
			return err
		}))
	}
	require.Less(t, sizes[len(sizes)-1], sizes[3]*21/20, sizes)
}

// Open does not read a file of a machine of the other byte order. Such a machine
// writes each word of the meta pages the other way round.
func TestOpenOtherByteOrder(t *testing.T) {
	t.Parallel()
	f, _ := openNew(t)
	require.NoError(t, f.Close())
	b := filecopy.Read(t, f.Path)
	for page := range 2 {
		meta := b[page*bboltpage.Size:]
		at := 0
		for _, word := range []int{8, 2, 2, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8} {
			slices.Reverse(meta[at : at+word])
			at += word
		}
	}
	require.NoError(t, os.WriteFile(f.Path, b, 0o600))
	for _, readOnly := range []bool{false, true} {
		_, err := Open(f.Path, Options{ReadOnly: readOnly})
		require.ErrorIs(t, err, format.ErrFormat)
		require.ErrorContains(t, err, "written by a machine of the other byte order; use stint export there")
	}
	require.Equal(t, b, filecopy.Read(t, f.Path))
}
