package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	"github.com/stint-go/stint/internal/format"
)

func TestOpenMakesTheFile(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	dir := filepath.Dir(path)
	for i, half := range [][]byte{nil, make([]byte, 5000), []byte("half")} { // what a crash leaves is not in the way
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("store.db.new-", i)), half, 0o600))
	}
	var wg sync.WaitGroup
	for i := range 8 { // one makes it, and the others find it made
		wg.Go(func() {
			s, err := Open(path, nil, Options{LockTimeout: longLock})
			if err == nil {
				err = errors.Join(s.Save([]format.Entry{entry(Key{1, fmt.Sprint(i)}, 1)}), s.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Len(t, allOf(t, openStore(t, path)), 8)
	require.Equal(t, []string{"store.db", "store.db.new-0", "store.db.new-1", "store.db.new-2"}, listDir(t, dir))
	if runtime.GOOS != "windows" {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
	}
}

func TestOpenFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]error{
		filepath.Join(dir, "absent", "buckets.db"): fs.ErrNotExist,
		dir:                               nil,
		"":                                nil,
		filepath.Join(file, "buckets.db"): nil,
	} {
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
	sound := readFile(t, path)
	s := openStore(t, path)
	_, err := Open(path, nil, Options{LockTimeout: time.Millisecond})
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())
	require.NoError(t, os.WriteFile(path, sound[:2*bboltpage.Size], 0o600))
	for range 2 { // a file that cannot be opened is not locked
		_, err := Open(path, nil, Options{LockTimeout: time.Millisecond})
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, "the file is shorter than it says: 8192 bytes, want")
	}
}

// A file, or a directory, that may not be written is the operating system's
// error.
func TestOpenWithoutPermission(t *testing.T) {
	t.Parallel()
	if os.Geteuid() <= 0 {
		t.Skip("permissions do not bind this user")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500))
	_, err := Open(filepath.Join(dir, "store.db"), nil, Options{LockTimeout: longLock})
	require.ErrorIs(t, err, fs.ErrPermission)
	path := makeFile(t, nil)
	require.NoError(t, os.Chmod(path, 0o400))
	_, err = Open(path, nil, Options{LockTimeout: longLock})
	require.ErrorIs(t, err, fs.ErrPermission)
	require.NotErrorIs(t, err, format.ErrCorrupt)
}

// The process that wrote the file may have been killed before it synced it, or
// its name. Open does both before anything is written.
func TestOpenSyncs(t *testing.T) {
	t.Parallel()
	path := makeFile(t, labels{1: "one"}, entry(Key{1, "a"}, 1))
	before := readFile(t, path)
	files := boltfile.OS()
	var failed error
	synced := 0
	dir := files.SyncDir
	files.SyncFile = func(*os.File) error { synced++; return failed }
	files.SyncDir = func(path string) error { synced += 10; return dir(path) }
	open := func(readOnly bool) error {
		s, err := Open(path, labels{2: "two"}, Options{LockTimeout: longLock, ReadOnly: readOnly, FS: files})
		if err == nil {
			err = s.Close()
		}
		return err
	}
	require.NoError(t, open(true))
	require.Zero(t, synced, "a reader does not care")
	failed = errFault
	for range 2 {
		err := open(false)
		require.ErrorIs(t, err, errFault)
		require.NotErrorIs(t, err, format.ErrCorrupt)
	}
	require.Equal(t, before, readFile(t, path))
	synced, failed = 0, nil
	require.NoError(t, open(false))
	require.Equal(t, 11, synced)
	files.SyncDir = func(string) error { return errFault }
	require.ErrorIs(t, open(false), errFault)
}

// A link is followed to the end, also if there is nothing yet: a file is made,
// replaced and set aside where the link leads.
func TestOpenLink(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("not every user may make links")
	}
	dir := t.TempDir()
	target := filepath.Join(dir, "real", "in")
	require.NoError(t, os.MkdirAll(target, 0o700))
	require.NoError(t, os.Symlink(target, filepath.Join(dir, "short")))
	link := filepath.Join(dir, "link")
	for _, to := range []string{filepath.Join(target, "buckets.db"), "short/buckets.db", "short/../buckets.db", "another"} {
		require.NoError(t, os.Symlink(to, link))
		if to == "another" {
			require.NoError(t, os.Symlink("short/buckets.db", filepath.Join(dir, to)))
		}
		for i := range 2 { // it is made, and found
			s := openStore(t, link)
			require.NoError(t, s.Save([]format.Entry{entry(Key{1, "a"}, int64(i+1))}))
			require.NoError(t, s.Compact())
			require.NoError(t, s.inUse.file.InPlace())
			require.NoError(t, s.Close())
			info, err := os.Lstat(link)
			require.NoError(t, err)
			require.Equal(t, fs.ModeSymlink, info.Mode().Type(), "it is a link still")
		}
		lead, err := filepath.EvalSymlinks(link)
		require.NoError(t, err)
		require.Equal(t, []string{"buckets.db"}, listDir(t, filepath.Dir(lead))[:1])
		resolved, err := Resolve(link)
		require.NoError(t, err)
		found, err := os.Stat(resolved)
		require.NoError(t, err)
		aside, done, err := SetAside(resolved, found, longLock)
		require.NoError(t, err)
		require.True(t, done)
		require.True(t, strings.HasPrefix(aside, resolved+".corrupt-"))
		_, done, err = SetAside(resolved, found, longLock)
		require.NoError(t, err)
		require.False(t, done, "another has done so")
		require.NoError(t, errors.Join(os.Remove(link), os.Remove(aside)))
	}
	require.NoError(t, os.Symlink("absent/buckets.db", link))
	_, err := Open(link, nil, Options{LockTimeout: longLock})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("link", link))
	_, err = Open(link, nil, Options{LockTimeout: longLock})
	require.ErrorContains(t, err, "too many links")
}

// A reader reads a journal that was not applied yet, and leaves the file as it
// is, whatever is asked of it.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	s := openNamed(t, path, labels{1: "One"})
	require.NoError(t, s.Save([]format.Entry{entry(Key{1, "home"}, 1<<60), entry(Key{1, "both"}, 1<<60), entry(Key{1, "gone"}, 1<<60)}))
	s.put(t, entry(Key{1, "journal"}, 1<<61), entry(Key{1, "both"}, 1<<61), entry(Key{1, "gone"}, 0))
	abandon(t, s)
	before := readFile(t, path)
	past := time.Unix(1_000_000_000, 0)
	require.NoError(t, os.Chtimes(path, past, past))

	o := Options{ReadOnly: true, LockTimeout: time.Millisecond}
	r, err := Open(path, labels{1: "One", 2: "Two"}, o)
	require.NoError(t, err)
	require.Equal(t, labels{1: "One"}, r.Names(), "what the file does not have is not entered")
	_, err = Open(path, nil, Options{LockTimeout: time.Millisecond})
	require.ErrorIs(t, err, ErrLocked)
	other, err := Open(path, nil, o)
	require.NoError(t, err, "several may read")
	require.NoError(t, other.Close())
	require.Equal(t, map[Key]int64{{1, "both"}: 1 << 61, {1, "home"}: 1 << 60, {1, "journal"}: 1 << 61}, allOf(t, r))
	require.Zero(t, load(t, r, Key{1, "gone"}))
	require.EqualValues(t, 3, r.Stats().Journaled)
	for what, act := range map[string]func() error{
		"save":       func() error { return r.Save([]format.Entry{entry(Key{1, "new"}, 1)}) },
		"append":     func() error { return r.append([]format.Entry{entry(Key{1, "new"}, 1)}) },
		"number":     func() error { _, err := r.Number("Two"); return err },
		"compact":    r.Compact,
		"checkpoint": r.checkpoint,
	} {
		require.ErrorContains(t, act(), "read only", what)
	}
	n, err := r.Number("One")
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.NoError(t, r.sweep(1<<62))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.Equal(t, before, readFile(t, path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, past, info.ModTime())
	require.Equal(t, []string{"store.db"}, listDir(t, filepath.Dir(path)))

	_, err = Open(path, labels{1: "Else"}, o)
	require.ErrorIs(t, err, ErrNameMismatch)
	_, err = Open(path+"-none", nil, o)
	require.ErrorIs(t, err, fs.ErrNotExist)
	held := openNamed(t, path, nil)
	_, err = Open(path, nil, o)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, held.Close())
}

// A value that is none is ErrCorrupt, and the others are as they were.
func TestDamagedValue(t *testing.T) {
	t.Parallel()
	path := makeFile(t, storeNames, entry(Key{1, "a"}, 1), entry(Key{1, "b"}, 2), entry(Key{1, "c"}, 3))
	for _, value := range [][]byte{nil, make([]byte, 7), make([]byte, 9)} {
		edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("1")).Put([]byte("b"), value) })
		s := openStore(t, path)
		_, err := s.Load(1, "b")
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, "1:b")
		require.EqualValues(t, 3, load(t, s, Key{1, "c"}))
		var got []format.Entry
		for e, end := range s.All(1) {
			if err = end; err == nil {
				got = append(got, e)
			}
		}
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.Equal(t, []format.Entry{entry(Key{1, "a"}, 1)}, got, "the error comes last")
		require.NoError(t, s.Close())
	}
}

// After bbolt has panicked once it is not called again, and Health says so.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, call := range []func(*Store, func(*bolt.Tx) error) error{(*Store).view, (*Store).update} {
		s := openStore(t, storePath(t))
		require.NoError(t, s.Maintain(time.Unix(1e9, 0)))
		s.together()
		require.NoError(t, s.Save([]format.Entry{entry(Key{1, "journaled"}, 1<<62)}))
		err := call(s, func(*bolt.Tx) error { panic("a page that makes no sense") })
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, "a page that makes no sense")
		called := false
		require.Equal(t, err, s.view(func(*bolt.Tx) error { called = true; return nil }))
		require.ErrorIs(t, s.Save(nil), err, "nor for nothing")
		require.False(t, called)
		require.Equal(t, int64(1<<62), load(t, s, Key{1, "journaled"}), "it is in memory")
		require.ErrorContains(t, s.Health(), "stint: the file is broken since 2001-09-09T01:46:40Z: ")
		require.ErrorContains(t, s.Health(), err.Error())
		require.NoError(t, s.Close(), "and does not hang")
		openStore(t, s.path)
	}
}

// Health has the failures of the upkeep, and the time of the first in a row, by
// the clock of the last Maintain.
func TestHealth(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	now := time.Unix(1e9, 0)
	fails := func(what string, do func() error) {
		t.Helper()
		s.now.Store(now.UnixNano())
		want := "stint: no " + what + " since " + now.UTC().Format(time.RFC3339) + ": "
		for range 2 {
			err := do()
			require.Error(t, err)
			require.EqualError(t, s.Health(), want+err.Error())
			now = now.Add(time.Minute)
			s.now.Store(now.UnixNano())
		}
	}
	works := func(do func() error) {
		t.Helper()
		require.NoError(t, do())
		require.NoError(t, s.Health())
	}
	s.put(t, entry(Key{1, strings.Repeat("x", bolt.MaxKeySize+1)}, 1<<62)) // the tree cannot have it
	fails("checkpoint", s.checkpoint)
	s.journal.mu.Lock()
	s.journal.old = nil
	s.journal.mu.Unlock()
	works(s.checkpoint)

	aside := s.path + "-aside"
	require.NoError(t, os.Rename(s.path, aside))
	require.NoError(t, os.Mkdir(s.path, 0o700)) // in the way of the rename
	fails("compaction", s.Compact)
	s.compactIfDue()
	require.NoError(t, s.Health(), "it need not be compacted")
	fails("compaction", s.Compact)
	require.NoError(t, os.Remove(s.path))
	require.NoError(t, os.Rename(aside, s.path))
	works(s.Compact)

	require.NoError(t, s.Save([]format.Entry{entry(Key{1, "a"}, 1<<62)}))
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("1"))
		return errors.Join(b.Put([]byte("bad"), []byte("short")), b.Put([]byte("worse"), nil))
	}))
	sweep := func() error { return s.Maintain(now) }
	fails("sweep", sweep)
	works(sweep) // it goes on behind them
	for _, mu := range []sync.Locker{&s.maintenance.mu, &s.names.mu, &s.saves.mu, &s.journal.mu, &s.inUse.mu} {
		mu.Lock()
		defer mu.Unlock()
	}
	require.NoError(t, s.Health(), "it waits for no lock under which the disk is used")
}

// A writer that waits for a reader, to map more of the file, does not wait for
// ever if the reader meets damage.
func TestDamageWhileAWriterMaps(t *testing.T) {
	t.Parallel()
	files := boltfile.OS()
	files.MaxSize = 1 << 30 // then no more is mapped than there is
	s, err := Open(storePath(t), storeNames, Options{LockTimeout: longLock, FS: files})
	require.NoError(t, err)
	reading, goOn := make(chan struct{}), make(chan struct{})
	read := make(chan error, 1)
	go func() {
		read <- s.view(func(*bolt.Tx) error { close(reading); <-goOn; panic("damage") })
	}()
	<-reading
	var entries []format.Entry
	for i := range 20_000 {
		entries = append(entries, entry(Key{1, fmt.Sprintf("%0100d", i)}, 1<<60))
	}
	saved := make(chan error, 1)
	go func() { saved <- s.update(func(tx *bolt.Tx) error { return boltfile.Apply(tx, nil, entries) }) }()
	awaitWaiter("mmap", saved)
	require.Empty(t, saved, "it did not need to map")
	close(goOn)
	require.ErrorIs(t, <-read, format.ErrCorrupt)
	<-saved // an error or not: the file is not used any more
	s.Close()
}

// The checksum of a meta page leaves its number out. A wrong number there does
// not send the page to another place when it is written again.
func TestFlippedMetaNumber(t *testing.T) {
	t.Parallel()
	path := makeFile(t, storeNames, entry(Key{1, "a"}, 1<<62))
	sound, tx := readFile(t, path), commits(t, path)
	for page := uint64(2); page < 12; page++ {
		content := append([]byte(nil), sound...)
		binary.NativeEndian.PutUint64(content[tx%2*bboltpage.Size:], page)
		path := writeFile(t, content)
		s := openStore(t, path)
		require.Equal(t, int64(1<<62), load(t, s, Key{1, "a"}))
		require.NoError(t, s.Close())
		require.Equal(t, content[2*bboltpage.Size:], readFile(t, path)[2*bboltpage.Size:], "page %d", page)
	}
}
