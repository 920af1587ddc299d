package boltstore

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
)

// After a failed write or sync of the log, no save is acknowledged until a
// transaction has succeeded.
func TestLogFailure(t *testing.T) {
	t.Parallel()
	for what, written := range map[string]func(b []byte) []byte{
		"nothing is written": func(b []byte) []byte { return nil },
		"half is written":    func(b []byte) []byte { return b[:len(b)/2] },
		"all is written":     func(b []byte) []byte { return b },
		"the sync fails":     nil,
	} {
		t.Run(what, func(t *testing.T) {
			s, have := openLogged(t)
			sound := *s.fs
			s.fs.SyncFile = func(*os.File) error { return errFault }
			if written != nil {
				failWrites(written)(s)
			}
			lost := []format.Entry{entry(Key{1, strings.Repeat("lost", 128)}, 1<<60), entry(Key{1, "lost, too"}, 1<<60)}
			seq := s.saves.seq
			require.ErrorIs(t, s.append(lost), errFault)
			s.sameAs(t, have)
			require.Equal(t, seq+1, s.saves.seq, "the number is not given to another")
			got, err := foundUnverified(t, crash(t, s))
			require.NoError(t, err, "the file is as a crash may leave it")
			if len(got) != len(have) {
				require.Equal(t, with(have, lost...), got, "all, or nothing")
			}
			restore := failCommits(s.inUse.file, func([]byte, int64) (int, error) { return 0, errFault })
			require.ErrorIs(t, s.append(numbered(1, 0, 1)), errFault)
			restore()

			*s.fs = sound
			made := filecopy.Commits(t, s.path)
			for i := range 2 {
				next := entry(Key{1, fmt.Sprint("next", i)}, 1<<60)
				have = with(have, next)
				s.alone()
				require.NoError(t, s.Save([]format.Entry{next}))
				require.Equal(t, made+1, filecopy.Commits(t, s.path), "a transaction, and then the log again")
				s.sameAs(t, have)
				requireCrash(t, s, have)
			}
		})
	}
}

// A truncated file is not written to, even if the last look at the path was a
// moment ago. Otherwise the log would extend the file, and hide the damage.
func TestLogTruncated(t *testing.T) {
	t.Parallel()
	s := openOn(t, storePath(t), storeNames, boltfile.OS())
	s.fs.LookEvery = longLock
	s.put(t, entry(Key{1, "first"}, 1<<60))
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.Save(nil))
	require.NoError(t, os.Truncate(s.path, 2*bboltpage.Size))
	for range 2 {
		s.together()
		err := s.Save([]format.Entry{entry(Key{1, "second"}, 1<<60)})
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, "the file is shorter than it says")
		require.Len(t, filecopy.Read(t, s.path), 2*bboltpage.Size)
	}
}

// A commit whose meta page could not be synced is in force, but perhaps not on
// the disk. Nothing is written until that page is durable.
func TestFailedCommit(t *testing.T) {
	t.Parallel()
	s, _ := openLogged(t)
	const n = 5_000
	fill(t, s, n)
	entries := numbered(1, 0, n)
	slices.SortFunc(entries, format.Entry.CompareStored)
	apply := func(tat int64) error {
		for i := range entries {
			entries[i].TAT = tat
		}
		return s.update(func(tx *bolt.Tx) error { return boltfile.Apply(tx, s.inUse.file.Check, entries) })
	}
	restore := failCommits(s.inUse.file, unsynced(s.inUse.file))
	require.ErrorIs(t, apply(1<<60), errFault)
	restore()
	left := filecopy.Read(t, s.path)
	sound, at := *s.fs, int64(-1)
	var did []string
	s.fs.WriteAt = func(file *os.File, b []byte, where int64) (int, error) {
		require.Equal(t, left[where:][:len(b)], b)
		did, at = append(did, "written"), where
		return file.WriteAt(b, where)
	}
	s.fs.SyncFile = func(*os.File) error { return errFault }
	for range 2 {
		require.ErrorIs(t, apply(1<<61), errFault)
		require.Equal(t, newerMeta(left), at)
		require.Equal(t, left, filecopy.Read(t, s.path))
	}
	did = nil
	s.fs.SyncFile = func(file *os.File) error {
		require.Equal(t, left, filecopy.Read(t, s.path))
		did = append(did, "synced")
		return sound.SyncFile(file)
	}
	require.NoError(t, apply(1<<61))
	require.NoError(t, apply(1<<61+1))
	require.Equal(t, []string{"written", "synced"}, did, "once")
	require.EqualValues(t, int64(1<<61+1), load(t, s, Key{1, "0"}))
}

// After a failed sync, a killed process leaves pages that may not be on the
// disk. The next process makes them durable before it relies on them.
func TestKillAfterFailedSync(t *testing.T) {
	t.Parallel()
	s, _ := openLogged(t)
	s.put(t, entry(Key{1, "a"}, 1<<60))
	disk := filecopy.Read(t, s.path)
	s.fs.SyncFile = func(*os.File) error { return errFault }
	require.ErrorIs(t, s.append([]format.Entry{entry(Key{1, "b"}, 1<<60)}), errFault)
	_, err := Open(crash(t, s), nil, Options{LockTimeout: longLock, FS: s.fs})
	require.ErrorIs(t, err, errFault, "it is made durable first")
	require.NotErrorIs(t, err, format.ErrCorrupt)
	next := openStore(t, crash(t, s))
	next.fs.WriteAt = func(file *os.File, b []byte, at int64) (int, error) {
		copy(disk[at:], b)
		return file.WriteAt(b, at)
	}
	next.put(t, entry(Key{1, "c"}, 1<<60))
	_, err = found(t, filecopy.New(t, disk))
	require.NoError(t, err, "a power cut leaves no gap")
}

// Records of a failed save do not replace those of a later save, and do not
// make the journal longer.
func TestFailedSave(t *testing.T) {
	t.Parallel()
	many := tooManyForTheLog()
	one := func(id string, tat int64) []format.Entry { return []format.Entry{entry(Key{1, id}, tat)} }
	failing := func(t *testing.T, s *Store, call func() error) {
		t.Helper()
		restore := failCommits(s.inUse.file, unsynced(s.inUse.file))
		defer restore()
		require.ErrorIs(t, call(), errFault)
	}
	fail := func(t *testing.T, s *Store) {
		t.Helper()
		failing(t, s, func() error { return s.append(slices.Clone(many)) })
	}
	for name, test := range map[string]func(t *testing.T, s *Store, have map[Key]int64){
		"a later one has a higher number, and goes to the journal": func(t *testing.T, s *Store, _ map[Key]int64) {
			before := s.saves.seq
			fail(t, s)
			failed := s.saves.seq
			require.Greater(t, failed, before)
			s.alone()
			require.NoError(t, s.Save(one("a", 1<<40)))
			require.Equal(t, failed+1, s.saves.seq)
		},
		"during a checkpoint": func(t *testing.T, s *Store, have map[Key]int64) {
			s.put(t, many[0])
			require.NoError(t, s.emptyLog())
			s.journal.begin(s.saves.seq)
			fail(t, s)
			require.NoError(t, s.checkpoint())
			s.alone()
			require.NoError(t, s.Save(one(many[1].ID, 1<<60+1)))
			later := crash(t, s)
			require.NoError(t, s.Close())
			for _, path := range []string{later, s.path} {
				got, err := found(t, path)
				require.NoError(t, err)
				require.EqualValues(t, int64(1<<60+1), got[Key{1, many[1].ID}])
			}
		},
		"a checkpoint drops it": func(t *testing.T, s *Store, have map[Key]int64) {
			fail(t, s)
			require.Positive(t, s.Stats().Journal)
			require.NoError(t, s.checkpoint())
			require.Zero(t, s.Stats().Journal)
			requireCrash(t, s, have)
		},
		"the journal is not longer": func(t *testing.T, s *Store, _ map[Key]int64) {
			restore := failCommits(s.inUse.file, func([]byte, int64) (int, error) { return 0, errFault })
			for range 3 {
				require.Error(t, s.append(make([]format.Entry, 10_000)))
			}
			restore()
			require.LessOrEqual(t, s.Stats().Journal, int64(1))
			s.put(t, one("next", 1)...)
		},
		"the next one is a transaction": func(t *testing.T, s *Store, have map[Key]int64) {
			s.put(t, one("logged", 1<<60)...)
			fail(t, s)
			made := filecopy.Commits(t, s.path)
			s.put(t, one("next", 1<<60)...)
			require.Equal(t, made+1, filecopy.Commits(t, s.path), "the failed commit may have ended the round")
			requireCrash(t, s, with(have, append(many, entry(Key{1, "logged"}, 1<<60), entry(Key{1, "next"}, 1<<60))...))
		},
		"a damaged meta page is noticed": func(t *testing.T, s *Store, _ map[Key]int64) {
			s.put(t, one("a", 1<<60)...)
			failing(t, s, s.emptyLog)
			s.put(t, one("b", 1<<60)...)
			require.Zero(t, s.inUse.file.LogState().At, "a transaction")
			s.put(t, one("c", 1<<60)...)
			image := filecopy.Read(t, s.path)
			image[newerMeta(image)+30] ^= 1
			_, err := foundUnverified(t, filecopy.New(t, image))
			require.ErrorIs(t, err, format.ErrCorrupt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, have := openLogged(t)
			test(t, s, have)
		})
	}
}
