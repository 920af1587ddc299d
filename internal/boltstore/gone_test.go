package boltstore

import (
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

// A file that is taken away under a running store is noticed by the next save.
// If the path is free, a new file with all entries is put there. A file of
// somebody else is never touched.
func TestTakenAway(t *testing.T) {
	t.Parallel()
	const foreign = "somebody else's"
	move := func(t *testing.T, path string) (moved string) {
		moved = path + ".moved"
		require.NoError(t, os.Rename(path, moved))
		return moved
	}
	replace := func(t *testing.T, path string) {
		require.NoError(t, os.WriteFile(path+".other", []byte(foreign), 0o600))
		require.NoError(t, os.Rename(path+".other", path))
	}
	saved := []format.Entry{entry(Key{1, "later"}, 1<<60)}
	open := func(t *testing.T) (s *Store, want map[Key]int64) {
		s = openLogged(t)
		s.maintenance.notCompacted = time.Now() // the background leaves it to the test
		want = with(fill(t, s, 2000), entry(Key{1, "the log is made"}, 1), entry(Key{1, "logged"}, 1<<60))
		require.NoError(t, s.append([]format.Entry{entry(Key{1, "logged"}, 1<<60)}))
		return s, want
	}
	restore := func(s *Store) {
		s.maintenance.mu.Lock()
		s.maintenance.notCompacted = time.Time{}
		s.maintenance.mu.Unlock()
		s.compactIfDue()
	}

	t.Run("removed", func(t *testing.T) {
		s, want := open(t)
		require.NoError(t, s.Save(nil))
		require.NoError(t, os.Remove(s.path))
		require.ErrorIs(t, s.Save(nil), ErrGone)
		err := s.Save(saved)
		require.ErrorIs(t, err, ErrGone)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, s.path)
		want = with(want, saved...) // it is in the open file
		restore(s)
		require.NoError(t, s.Save(nil))
		require.Empty(t, temporaries(t, s))
		requireCrash(t, s, want)
		_, err = Open(s.path, storeNames, Options{LockTimeout: time.Millisecond})
		require.ErrorIs(t, err, ErrLocked)
		more := entry(Key{2, "more"}, 1<<60)
		require.NoError(t, s.Save([]format.Entry{more}))
		requireCrash(t, s, with(want, more))
		require.NoError(t, s.Health())
	})
	t.Run("removed, by the background", func(t *testing.T) {
		s := openStore(t, storePath(t))
		want := fill(t, s, 100)
		require.NoError(t, os.Remove(s.path))
		require.ErrorIs(t, s.Save(saved), ErrGone)
		for s.Save(nil) != nil {
			require.NoError(t, s.Health())
		}
		requireCrash(t, s, with(want, saved...))
	})
	t.Run("soon after a look", func(t *testing.T) {
		s, want := open(t)
		s.fs.LookEvery = time.Hour
		require.NoError(t, s.Save(saved))
		move(t, s.path)
		more := entry(Key{2, "more"}, 1<<60)
		require.NoError(t, s.Save([]format.Entry{more}))
		require.ErrorIs(t, s.Save(nil), ErrGone)
		restore(s)
		requireCrash(t, s, with(want, append(saved, more)...))
	})
	t.Run("renamed", func(t *testing.T) {
		s, want := open(t)
		moved := move(t, s.path)
		require.ErrorIs(t, s.Save(nil), fs.ErrNotExist)
		restore(s)
		require.NoError(t, s.Save(saved))
		got, err := found(t, moved)
		require.NoError(t, err)
		require.Equal(t, want, got)
		requireCrash(t, s, with(want, saved...))
	})
	t.Run("renamed and back", func(t *testing.T) {
		s, want := open(t)
		moved := move(t, s.path)
		require.ErrorIs(t, s.Save(saved), ErrGone)
		require.NoError(t, os.Rename(moved, s.path))
		require.NoError(t, s.Save(nil))
		restore(s)
		require.Zero(t, s.Stats().Compactions)
		requireCrash(t, s, with(want, saved...))
	})
	t.Run("replaced", func(t *testing.T) {
		s, want := open(t)
		replace(t, s.path)
		err := s.Save(saved)
		require.ErrorIs(t, err, ErrGone)
		require.NotErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, "another file is there, which is left as it is; remove that one, or restart the program to use it")
		restore(s)
		require.ErrorIs(t, s.Compact(), ErrGone)
		require.ErrorIs(t, s.Health(), ErrGone)
		require.Equal(t, foreign, string(readFile(t, s.path)))
		s.sameAs(t, with(want, saved...), nil)

		require.NoError(t, os.Remove(s.path)) // as the error says
		require.ErrorIs(t, s.Save(nil), ErrGone)
		restore(s)
		require.NoError(t, s.Save(nil))
		require.NoError(t, s.Health())
		requireCrash(t, s, with(want, saved...))
	})
	for name, link := range map[string]func(old, path string) error{
		"another process is first":                func(old, path string) error { return os.Link(old, path) },
		"another process is first, without links": func(string, string) error { return fs.ErrInvalid },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t)
			require.NoError(t, os.Remove(s.path))
			require.ErrorIs(t, s.Save(nil), fs.ErrNotExist)
			links := 0
			s.fs.Link = func(old, path string) error {
				links++
				require.NoError(t, os.WriteFile(path, []byte(foreign), 0o600))
				return link(old, path)
			}
			restore(s) // or the background has; if it comes later, it leaves the other file alone
			require.Equal(t, 1, links)
			err := s.Save(nil)
			require.ErrorIs(t, err, ErrGone)
			require.NotErrorIs(t, err, fs.ErrNotExist)
			require.Equal(t, foreign, string(readFile(t, s.path)))
			require.Equal(t, []string{"store.db"}, listDir(t, s.path[:len(s.path)-len("/store.db")]))
		})
	}
	t.Run("without links", func(t *testing.T) {
		s, want := open(t)
		require.NoError(t, os.Remove(s.path))
		require.ErrorIs(t, s.Save(nil), fs.ErrNotExist)
		s.fs.Link = func(string, string) error { return fs.ErrInvalid }
		restore(s)
		require.NoError(t, s.Save(nil))
		require.Empty(t, temporaries(t, s))
		requireCrash(t, s, want)
	})
	t.Run("its directory, too", func(t *testing.T) {
		dir := t.TempDir() + "/sub"
		require.NoError(t, os.Mkdir(dir, 0o700))
		s := openStore(t, dir+"/store.db")
		want := fill(t, s, 10)
		s.maintenance.mu.Lock()
		s.maintenance.notCompacted = time.Now()
		s.maintenance.mu.Unlock()
		require.NoError(t, os.RemoveAll(dir))
		require.ErrorIs(t, s.Save(nil), ErrGone)
		restore(s)
		require.ErrorIs(t, s.Health(), fs.ErrNotExist)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.ErrorIs(t, s.Save(nil), ErrGone)
		restore(s)
		require.NoError(t, s.Save(nil))
		requireCrash(t, s, want)
	})
	t.Run("closed", func(t *testing.T) {
		s, _ := open(t)
		require.NoError(t, os.Remove(s.path))
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.Save(nil), ErrClosed)
		require.NoFileExists(t, s.path)
	})
	t.Run("on a system that renames no open file", func(t *testing.T) {
		files := boltfile.OS()
		files.RenamesOpen = false
		s, err := Open(storePath(t), storeNames, Options{LockTimeout: longLock, FS: files})
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, os.Remove(s.path)) // there, this fails
		require.ErrorIs(t, s.Compact(), ErrGone)
	})
}
