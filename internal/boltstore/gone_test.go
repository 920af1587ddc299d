package boltstore

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
)

// The next save notices that the file was taken away. If the path is free, a
// new file with all entries is put there. The file of another program is never
// touched.
func TestFileTakenAway(t *testing.T) {
	t.Parallel()
	const foreign = "somebody else's"
	saved := []format.Entry{entry(Key{1, "later"}, 1<<60)}
	noLinks := func(string, string) error { return fs.ErrInvalid }
	restore := func(s *Store) {
		s.maintenance.mu.Lock()
		s.maintenance.notCompacted = time.Time{}
		s.maintenance.mu.Unlock()
		s.compactIfDue()
	}
	restored := func(t *testing.T, s *Store, want map[Key]int64) {
		t.Helper()
		restore(s)
		require.NoError(t, s.Save(nil))
		require.NoError(t, s.Health())
		require.Empty(t, temporaries(t, s))
		requireCrash(t, s, want)
	}
	for name, test := range map[string]func(t *testing.T, s *Store, want map[Key]int64){
		"removed": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, s.Save(nil))
			require.NoError(t, os.Remove(s.path))
			require.ErrorIs(t, s.Save(nil), ErrGone)
			err := s.Save(saved)
			require.ErrorIs(t, err, ErrGone)
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, s.path)
			want = with(want, saved...) // it is in the open file
			restored(t, s, want)
			_, err = Open(s.path, storeNames, Options{LockTimeout: time.Millisecond})
			require.ErrorIs(t, err, ErrLocked)
			require.NoError(t, s.Save(numbered(2, 0, 1)))
			requireCrash(t, s, with(want, numbered(2, 0, 1)...))
		},
		"removed, without links": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, os.Remove(s.path))
			require.ErrorIs(t, s.Save(nil), fs.ErrNotExist)
			s.fs.Link = noLinks
			restored(t, s, want)
		},
		"soon after a look": func(t *testing.T, s *Store, want map[Key]int64) {
			s.fs.LookEvery = time.Hour
			require.NoError(t, s.Save(saved))
			require.NoError(t, os.Remove(s.path))
			require.NoError(t, s.Save(numbered(2, 0, 1)))
			require.ErrorIs(t, s.Save(nil), ErrGone)
			for range 3 { // no save is acknowledged until a look has found the file
				require.ErrorIs(t, s.Save(numbered(2, 1, 1)), ErrGone)
			}
			restored(t, s, with(want, append(numbered(2, 0, 2), saved...)...))
			require.NoError(t, s.Save(saved))
		},
		"during a save": func(t *testing.T, s *Store, want map[Key]int64) {
			s.fs.LookEvery = 50 * time.Millisecond
			s.together()
			require.NoError(t, s.Save(saved))
			sync := s.fs.SyncFile
			s.fs.SyncFile = func(file *os.File) error { // the disk hangs
				require.NoError(t, os.Remove(s.path))
				<-time.After(60 * time.Millisecond)
				s.fs.SyncFile = sync
				return sync(file)
			}
			s.together()
			require.ErrorIs(t, s.Save(saved), ErrGone)
			s.fs.LookEvery = 0
			restored(t, s, with(want, saved...))
		},
		"replaced during a compaction": func(t *testing.T, s *Store, want map[Key]int64) {
			exchange := s.fs.Exchange
			s.fs.Exchange = func(a, b string) error {
				require.NoError(t, os.WriteFile(s.path+".other", []byte(foreign), 0o600))
				require.NoError(t, os.Rename(s.path+".other", s.path))
				s.fs.Exchange = exchange
				return exchange(a, b)
			}
			require.ErrorIs(t, s.Compact(), ErrGone)
			require.Equal(t, foreign, string(filecopy.Read(t, s.path)))
			require.Empty(t, temporaries(t, s))
			s.sameAs(t, want)
			require.NoError(t, os.Remove(s.path))
			require.ErrorIs(t, s.Save(nil), ErrGone)
			restored(t, s, want)
		},
		"closed, and another file is there": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, os.Remove(s.path))
			require.NoError(t, os.WriteFile(s.path, []byte(foreign), 0o600))
			require.ErrorIs(t, s.Close(), ErrGone)
			require.Equal(t, foreign, string(filecopy.Read(t, s.path)))
		},
		"renamed": func(t *testing.T, s *Store, want map[Key]int64) {
			moved := filepath.Join(t.TempDir(), "moved")
			require.NoError(t, os.Rename(s.path, moved))
			require.ErrorIs(t, s.Save(nil), fs.ErrNotExist)
			restored(t, s, want)
			require.NoError(t, s.Save(saved))
			got, err := found(t, moved)
			require.NoError(t, err)
			require.Equal(t, want, got)
			requireCrash(t, s, with(want, saved...))
		},
		"renamed and back": func(t *testing.T, s *Store, want map[Key]int64) {
			moved := filepath.Join(t.TempDir(), "moved")
			require.NoError(t, os.Rename(s.path, moved))
			require.ErrorIs(t, s.Save(saved), ErrGone)
			require.NoError(t, os.Rename(moved, s.path))
			restored(t, s, with(want, saved...))
			require.Zero(t, s.Stats().Compactions)
		},
		"replaced": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, os.Remove(s.path))
			require.NoError(t, os.WriteFile(s.path, []byte(foreign), 0o600))
			err := s.Save(saved)
			require.ErrorIs(t, err, ErrGone)
			require.NotErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, "another file is at its path, and was not touched; remove that one, or restart")
			restore(s)
			require.ErrorIs(t, s.Compact(), ErrGone)
			require.ErrorIs(t, s.Health(), ErrGone)
			require.Equal(t, foreign, string(filecopy.Read(t, s.path)))
			want = with(want, saved...)
			s.sameAs(t, want)
			require.NoError(t, os.Remove(s.path)) // as the error says
			require.ErrorIs(t, s.Save(nil), ErrGone)
			restored(t, s, want)
		},
		"its directory, too": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, os.RemoveAll(filepath.Dir(s.path)))
			require.ErrorIs(t, s.Save(nil), ErrGone)
			restore(s)
			require.ErrorIs(t, s.Health(), fs.ErrNotExist)
			require.NoError(t, os.Mkdir(filepath.Dir(s.path), 0o700))
			require.ErrorIs(t, s.Save(nil), ErrGone)
			restored(t, s, want)
		},
		"closed": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, os.Remove(s.path))
			require.ErrorIs(t, s.Save(saved), ErrGone)
			require.NoError(t, s.Close())
			require.ErrorIs(t, s.Save(nil), ErrClosed)
			require.Empty(t, temporaries(t, s))
			got, err := found(t, s.path)
			require.NoError(t, err)
			require.Equal(t, with(want, saved...), got)
		},
		"closed, and nothing was written": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, s.Close())
			s, err := Open(s.path, storeNames, Options{})
			require.NoError(t, err)
			require.NoError(t, os.Remove(s.path))
			require.NoError(t, s.Close())
			got, err := found(t, s.path)
			require.NoError(t, err)
			require.Equal(t, want, got)
		},
		"closed, and it cannot be put back": func(t *testing.T, s *Store, want map[Key]int64) {
			require.NoError(t, os.RemoveAll(filepath.Dir(s.path)))
			err := s.Close()
			require.ErrorIs(t, err, ErrGone)
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.NoFileExists(t, s.path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, want := openLogged(t)
			s.maintenance.notCompacted = time.Now().Add(time.Hour) // the background leaves it to the test
			want = with(want, numbered(1, 0, 2000)...)
			fill(t, s, 2000)
			logged := entry(Key{1, "logged"}, 1<<60)
			s.put(t, logged)
			test(t, s, with(want, logged))
		})
	}
	for name, link := range map[string]func(old, path string) error{
		"another process is first": os.Link, "another process is first, without links": noLinks,
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := openLogged(t)
			s.maintenance.notCompacted = time.Now().Add(time.Hour)
			require.NoError(t, os.Remove(s.path))
			require.ErrorIs(t, s.Save(nil), fs.ErrNotExist)
			links := 0
			s.fs.Link = func(old, path string) error {
				links++
				require.NoError(t, os.WriteFile(path, []byte(foreign), 0o600))
				return link(old, path)
			}
			restore(s) // unless the background did; if it comes later, it leaves the other file alone
			require.Equal(t, 1, links)
			err := s.Save(nil)
			require.ErrorIs(t, err, ErrGone)
			require.NotErrorIs(t, err, fs.ErrNotExist)
			require.Equal(t, foreign, string(filecopy.Read(t, s.path)))
			require.Empty(t, temporaries(t, s))
		})
	}
	t.Run("on a system that renames no open file", func(t *testing.T) {
		files := boltfile.OS()
		files.RenamesOpen = false
		s := openOn(t, storePath(t), storeNames, files)
		require.NoError(t, os.Remove(s.path)) // on such a system this fails
		require.ErrorIs(t, s.Compact(), ErrGone)
	})
}
