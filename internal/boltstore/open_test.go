package boltstore

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
)

// A wrong path is the operating system's error, and so is a missing permission.
// If Open fails, it leaves no lock.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	paths := map[string]error{
		filepath.Join(dir, "absent", "store.db"): fs.ErrNotExist, dir: nil, "": nil, filepath.Join(file, "store.db"): nil,
	}
	if os.Geteuid() > 0 { // root may do everything
		closed, readable := t.TempDir(), makeFile(t, nil)
		require.NoError(t, errors.Join(os.Chmod(closed, 0o500), os.Chmod(readable, 0o400)))
		paths[filepath.Join(closed, "store.db")], paths[readable] = fs.ErrPermission, fs.ErrPermission
	}
	for path, want := range paths {
		_, err := Open(path, nil, Options{LockTimeout: longLock})
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrLocked)
		require.NotErrorIs(t, err, format.ErrCorrupt)
		if want != nil {
			require.ErrorIs(t, err, want)
		}
	}
	require.Equal(t, []string{"file"}, listDir(t, dir), "no file is left")

	path := makeFile(t, nil)
	require.NoError(t, os.Truncate(path, 2*bboltpage.Size))
	for range 2 {
		_, err := Open(path, nil, Options{LockTimeout: time.Millisecond})
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, "the file is shorter than it says: 8192 bytes, want")
	}
}

// Open follows links to the end, even if the last one leads to no file. The
// file is made, replaced and set aside at that place.
func TestOpenLink(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("not every user may make links")
	}
	dir := t.TempDir()
	target, link := filepath.Join(dir, "real", "in"), filepath.Join(dir, "link")
	require.NoError(t, os.MkdirAll(target, 0o700))
	require.NoError(t, os.Symlink(target, filepath.Join(dir, "short")))
	require.NoError(t, os.Symlink("short/store.db", filepath.Join(dir, "another")))
	for _, to := range []string{filepath.Join(target, "store.db"), "short/store.db", "short/../store.db", "another"} {
		require.NoError(t, os.Symlink(to, link))
		for range 2 { // the first Open makes the file, the second finds it
			s := openStore(t, link)
			require.NoError(t, s.Compact())
			require.NoError(t, s.inUse.file.InPlace())
			require.NoError(t, s.Close())
			info, err := os.Lstat(link)
			require.NoError(t, err)
			require.Equal(t, fs.ModeSymlink, info.Mode().Type(), "the link was not replaced")
		}
		resolved, err := Resolve(link)
		require.NoError(t, err)
		found, err := os.Stat(link)
		require.NoError(t, err)
		aside, done, err := SetAside(resolved, found, longLock)
		require.NoError(t, err)
		require.True(t, done)
		require.True(t, strings.HasPrefix(aside, resolved+".corrupt-"))
		_, done, err = SetAside(resolved, found, longLock)
		require.NoError(t, err)
		require.False(t, done, "the file was replaced since")
		require.NoError(t, errors.Join(os.Remove(link), os.Remove(aside)))
	}
	for to, want := range map[string]string{"absent/store.db": "no such file", "link": "too many links"} {
		require.NoError(t, os.Symlink(to, link))
		_, err := Open(link, nil, Options{LockTimeout: longLock})
		require.ErrorContains(t, err, want)
		require.NoError(t, os.Remove(link))
	}
}

// A read-only store reads a journal that was not applied yet. None of its
// methods changes the file.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	s := openNamed(t, storePath(t), labels{1: "One"})
	path := s.path
	require.NoError(t, s.Save(numbered(1, 0, 3)))
	changes := []format.Entry{entry(Key{1, "journal"}, 1<<61), entry(Key{1, "1"}, 1<<61), entry(Key{1, "2"}, 0)}
	s.put(t, changes...)
	abandon(t, s)
	before := filecopy.Read(t, path)
	past := time.Unix(1_000_000_000, 0)
	require.NoError(t, os.Chtimes(path, past, past))

	o := Options{ReadOnly: true, LockTimeout: time.Millisecond}
	r, err := Open(path, labels{1: "One", 2: "Two"}, o)
	require.NoError(t, err)
	require.Equal(t, labels{1: "One"}, r.Names(), "a new label is not added")
	_, err = Open(path, nil, Options{LockTimeout: time.Millisecond})
	require.ErrorIs(t, err, ErrLocked)
	other, err := Open(path, nil, o)
	require.NoError(t, err, "several may read")
	require.NoError(t, other.Close())
	r.sameAs(t, with(with(nil, numbered(1, 0, 3)...), changes...), Key{1, "2"})
	require.EqualValues(t, 3, r.Stats().Journaled)
	var copied bytes.Buffer
	_, err = r.Snapshot(&copied)
	require.NoError(t, err)
	requireCrash(t, openNamed(t, filecopy.New(t, copied.Bytes()), nil), allOf(t, r))
	for what, act := range map[string]func() error{
		"save":       func() error { return r.Save(numbered(1, 0, 1)) },
		"append":     func() error { return r.append(numbered(1, 0, 1)) },
		"number":     func() error { _, err := r.Number("Two"); return err },
		"declare":    func() error { return r.Declare(labels{2: "Two"}) },
		"compact":    r.Compact,
		"checkpoint": r.checkpoint,
	} {
		require.ErrorContains(t, act(), "read-only", what)
	}
	require.NoError(t, r.sweep(1<<62))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.Equal(t, before, filecopy.Read(t, path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, past, info.ModTime())
	require.Equal(t, []string{"store.db"}, listDir(t, filepath.Dir(path)))

	_, err = Open(path, labels{1: "Else"}, o)
	require.ErrorIs(t, err, ErrNameMismatch)
	_, err = Open(path+"-none", nil, o)
	require.ErrorIs(t, err, fs.ErrNotExist)
	openNamed(t, path, nil)
	_, err = Open(path, nil, o)
	require.ErrorIs(t, err, ErrLocked)
}

// After bbolt has panicked once it is not called again, and Health says so.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, call := range []func(*Store, func(*bolt.Tx) error) error{(*Store).view, (*Store).update} {
		truncated := openStore(t, storePath(t))
		err := call(truncated, func(*bolt.Tx) error {
			require.NoError(t, os.Truncate(truncated.path, bboltpage.Size)) // then reading a page is a memory fault
			panic("a fault")
		})
		require.ErrorContains(t, err, "the file is shorter than it says: 4096 bytes, want ")
		require.NoError(t, truncated.Close())

		s := openStore(t, storePath(t))
		require.NoError(t, s.Maintain(time.Unix(1e9, 0)))
		s.put(t, entry(Key{1, "journaled"}, 1<<62))
		err = call(s, func(*bolt.Tx) error { panic("a page that makes no sense") })
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, "a page that makes no sense")
		require.Equal(t, err, s.view(func(*bolt.Tx) error { t.Error("it is called"); return nil }))
		require.ErrorIs(t, s.Save(nil), err, "a save of no entries fails, too")
		require.Equal(t, int64(1<<62), load(t, s, Key{1, "journaled"}), "it is in memory")
		require.ErrorContains(t, s.Health(), "stint: the file is broken since 2001-09-09T01:46:40Z: "+err.Error())
		require.NoError(t, s.Close(), "and does not hang")
		openStore(t, s.path)
	}
}

// Health has the failures of the maintenance. Each has the time of the first
// failure in a row, by the clock of the last Maintain.
func TestHealth(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	now := time.Unix(1e9, 0)
	fails := func(what string, do func() error) {
		t.Helper()
		want := "stint: no " + what + " since " + now.UTC().Format(time.RFC3339) + ": "
		for range 2 {
			s.now.Store(now.UnixNano())
			err := do()
			require.Error(t, err)
			require.EqualError(t, s.Health(), want+err.Error())
			now = now.Add(time.Minute)
		}
	}
	works := func(do func() error) {
		t.Helper()
		require.NoError(t, do())
		require.NoError(t, s.Health())
	}
	s.put(t, entry(Key{1, strings.Repeat("x", bolt.MaxKeySize+1)}, 1<<62)) // too long for the tree
	fails("checkpoint", s.checkpoint)
	s.journal.mu.Lock()
	s.journal.old = nil
	s.journal.mu.Unlock()
	works(s.checkpoint)

	unblock := block(t, s)
	fails("compaction", s.Compact)
	s.compactIfDue()
	require.NoError(t, s.Health(), "it need not be compacted")
	fails("compaction", s.Compact)
	unblock()
	works(s.Compact)

	require.NoError(t, s.Save([]format.Entry{entry(Key{1, "a"}, 1<<62)}))
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("1"))
		return errors.Join(b.Put([]byte("bad"), []byte("short")), b.Put([]byte("worse"), nil))
	}))
	sweep := func() error { return s.Maintain(now) }
	fails("sweep", sweep)
	works(sweep) // the next sweep goes on after them
	for _, mu := range []sync.Locker{&s.maintenance.mu, &s.names.mu, &s.saves.mu, &s.journal.mu, &s.inUse.mu} {
		mu.Lock()
		defer mu.Unlock()
	}
	require.NoError(t, s.Health(), "it waits for no lock under which the disk is used")
}

// A writer that maps more of the file waits for readers. If a reader meets
// damage, the writer does not wait for ever.
func TestDamageDuringMap(t *testing.T) {
	files := boltfile.OS()
	files.MaxSize = 1 << 30 // then a growing file must be mapped again
	s := openOn(t, storePath(t), storeNames, files)
	reading, goOn := make(chan struct{}), make(chan struct{})
	read, saved := make(chan error, 1), make(chan error, 1)
	go func() {
		read <- s.view(func(*bolt.Tx) error { close(reading); <-goOn; panic("damage") })
	}()
	<-reading
	go func() {
		entries := numbered(1, 1e6, 50_000)
		saved <- s.update(func(tx *bolt.Tx) error { return boltfile.Apply(tx, nil, entries) })
	}()
	awaitWaiter("mmap", saved)
	require.Empty(t, saved, "it did not need to map")
	close(goOn)
	require.ErrorIs(t, <-read, format.ErrCorrupt)
	<-saved // an error or not: the file is not used any more
}
