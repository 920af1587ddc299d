package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/stint-go/stint/internal/format"
)

var errFault = errors.New("the disk is on fire")

// openNew makes a file and opens it on its own FS.
func openNew(t *testing.T) (f *File, files *FS) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "new.db")
	files = OS()
	require.NoError(t, Make(path, files, func(f *File) error {
		return f.Update(func(tx *bolt.Tx) error { return LayOut(tx, map[uint16]string{1: "one"}) })
	}))
	f, err := Open(path, Options{LockTimeout: time.Minute, FS: files})
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	require.NoError(t, f.View(func(tx *bolt.Tx) error {
		names, err := f.ReadHead(tx)
		require.Equal(t, map[uint16]string{1: "one"}, names)
		return errors.Join(err, f.ReadJournal(tx, func(uint64, []byte) error { return nil }))
	}))
	return f, files
}

// records returns the numbers of the records in the journal's tree.
func records(t *testing.T, f *File) (seqs []uint64) {
	t.Helper()
	require.NoError(t, f.View(func(tx *bolt.Tx) error {
		return tx.Bucket(format.JournalBucket).ForEach(func(k, _ []byte) error {
			seqs = append(seqs, binary.BigEndian.Uint64(k))
			return nil
		})
	}))
	return seqs
}

// What the operating system says is no damage: a file is not set aside for it.
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
	for _, err := range []error{bolterrors.ErrInvalid, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch, errors.New("file size too small 4097")} {
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

// A memory fault in a file that was truncated says so, and any other panic what
// it was.
func TestGuard(t *testing.T) {
	for what, want := range map[string]string{
		"truncated": "the file is shorter than it says: 4096 bytes, want ",
		"sound":     ": a page that makes no sense",
	} {
		t.Run(what, func(t *testing.T) {
			f, _ := openNew(t)
			if what == "truncated" {
				require.NoError(t, os.Truncate(f.Path, bboltpage.Size))
			}
			err := f.View(func(tx *bolt.Tx) error { panic("a page that makes no sense") })
			require.ErrorIs(t, err, format.ErrCorrupt)
			require.ErrorContains(t, err, f.Path)
			require.ErrorContains(t, err, want)
			require.Equal(t, err, f.Broken())
			require.Equal(t, err, f.Update(func(*bolt.Tx) error { return nil }))
			require.NoError(t, f.Close())
		})
	}
}

// A record that a failed transaction has brought to the journal all the same is
// not brought there twice.
func TestTakeOver(t *testing.T) {
	f, _ := openNew(t)
	f.MakeLog()
	require.NoError(t, f.Update(func(*bolt.Tx) error { return nil }))
	n, err := f.Append(1, []format.Entry{{Name: 1, ID: "logged", TAT: 1 << 60}})
	require.NoError(t, err)
	require.Positive(t, n)
	pending := f.LogState().Pending
	require.NoError(t, f.EmptyLog())
	require.Equal(t, []uint64{1}, records(t, f))
	f.commitLog.Pending, f.commitLog.failed = slices.Clone(pending), true // as if that commit had failed
	n, err = f.Append(2, nil)
	require.NoError(t, err)
	require.Zero(t, n, "the next save is a transaction")
	require.NoError(t, f.EmptyLog())
	require.Equal(t, []uint64{1}, records(t, f))
	var sum uint64
	require.NoError(t, f.View(func(tx *bolt.Tx) error { sum = tx.Bucket(format.JournalBucket).Sequence(); return nil }))
	require.Equal(t, format.SumStart+format.EntrySum(format.JournalBucket, format.BigEndian(1), pending[0].Data), sum)
}

// The meta page is written again before anything is built upon it, because the
// system takes a page that it could not write for written.
func TestBuildUpon(t *testing.T) {
	f, files := openNew(t)
	want, err := bboltpage.ReadMeta(f.OS())
	require.NoError(t, err)
	var done []string
	sound := *files
	files.WriteAt = func(_ *os.File, p []byte, at int64) (int, error) {
		require.Equal(t, want.Page(), p)
		require.EqualValues(t, want.Tx%2*bboltpage.Size, at)
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

// After a failed commit, readers that began before are waited for, before the
// pages that it freed are used.
func TestSettleWaitsForReaders(t *testing.T) {
	f, files := openNew(t)
	var settled, tooSoon atomic.Bool
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
			if err := f.settle(); err != nil {
				t.Error(err)
			}
			settled.Store(true)
		}()
		<-synced
		for range 10_000 {
			runtime.Gosched()
		}
		tooSoon.Store(settled.Load())
		return nil
	}))
	<-done
	require.False(t, tooSoon.Load())
}

// A file has its name when it is complete, and replaces no other, also if the
// file system has no links.
func TestMake(t *testing.T) {
	links := OS()
	links.Link = func(old, name string) error {
		return &os.LinkError{Op: "link", Old: old, New: name, Err: errors.ErrUnsupported}
	}
	unsynced := OS()
	unsynced.SyncDir = func(string) error { return errFault }
	for name, c := range map[string]struct {
		files *FS
		fill  error
		want  error
	}{"links": {nil, nil, nil}, "no links": {links, nil, nil}, "fails": {nil, errFault, errFault}, "its name is not durable": {unsynced, nil, errFault}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "made.db")
			made := func() error {
				return Make(path, c.files, func(f *File) error {
					require.NoFileExists(t, path)
					return errors.Join(c.fill, f.Update(func(tx *bolt.Tx) error { return LayOut(tx, nil) }))
				})
			}
			require.ErrorIs(t, made(), c.want)
			left, err := filepath.Glob(path + ".*")
			require.NoError(t, err)
			require.Empty(t, left)
			if c.want == nil {
				before, err := os.ReadFile(path)
				require.NoError(t, err)
				err = Make(path, c.files, func(f *File) error { return f.Update(func(tx *bolt.Tx) error { return LayOut(tx, nil) }) })
				require.ErrorIs(t, err, fs.ErrExist)
				after, err := os.ReadFile(path)
				require.NoError(t, err)
				require.True(t, bytes.Equal(before, after))
			}
		})
	}
}

// A snapshot has what the transaction sees, and an empty log. A file that takes
// the place of another has its name.
func TestReplaceWith(t *testing.T) {
	for _, renames := range []bool{true, false} {
		t.Run(fmt.Sprint("renames open files ", renames), func(t *testing.T) {
			f, files := openNew(t)
			files.RenamesOpen = renames
			f.MakeLog()
			require.NoError(t, f.Update(func(tx *bolt.Tx) error {
				return Apply(tx, f.Check, []format.Entry{{Name: 1, ID: "a", TAT: 1}, {Name: 1, ID: "b", TAT: 2}})
			}))
			_, err := f.Append(1, []format.Entry{{Name: 1, ID: "logged", TAT: 3}})
			require.NoError(t, err)
			target, err := Create(f.Path, "copy", files)
			require.NoError(t, err)
			require.NoError(t, target.Update(func(tx *bolt.Tx) error { return LayOut(tx, nil) }))
			copied := filepath.Join(t.TempDir(), "copy.db")
			to, err := os.Create(copied)
			require.NoError(t, err)
			require.NoError(t, f.View(func(tx *bolt.Tx) error {
				require.Equal(t, []uint16{format.Holds, 1}, BucketNames(tx))
				n, err := f.Snapshot(tx, true, to, func() {})
				require.Equal(t, tx.Size(), n)
				return err
			}))
			require.NoError(t, to.Close())
			c, err := Open(copied, Options{LockTimeout: time.Minute, ReadOnly: true})
			require.NoError(t, err)
			require.NoError(t, c.View(func(tx *bolt.Tx) error {
				read := func(uint64, []byte) error { return errors.New("its log is empty") }
				return c.ReadJournal(tx, read)
			}))
			require.NoError(t, c.Close())

			require.NoError(t, f.EmptyLog())
			require.NoError(t, f.Update(func(tx *bolt.Tx) error {
				all, err := DropRecords(tx, 1)
				require.True(t, all)
				return errors.Join(err, Apply(tx, f.Check, []format.Entry{{Name: 1, ID: "a"}}))
			}))
			require.Empty(t, records(t, f))
			used, err := f.ReplaceWith(target)
			require.NoError(t, err)
			require.NotSame(t, f, used)
			require.NoError(t, used.InPlace())
			require.Zero(t, used.LogState().Begin)
			require.NoError(t, used.Close())
			left, err := filepath.Glob(used.Path + ".*")
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
