package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

// A save whose write or sync fails is not acknowledged, nor is any that comes
// behind it before a transaction of bbolt's has succeeded.
func TestLogFails(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"nothing is written", "half is written", "all is written", "the sync fails"} {
		t.Run(what, func(t *testing.T) {
			s := openLogged(t)
			s.put(t, entry(Key{1, "before"}, 1<<60))
			have := allOf(t, s)
			sound := *s.fs
			s.fs.WriteAt = func(file *os.File, b []byte, at int64) (int, error) {
				switch what {
				case "nothing is written":
					return 0, errFault
				case "half is written":
					_, err := file.WriteAt(b[:len(b)/2], at)
					return len(b) / 2, errors.Join(errFault, err)
				case "all is written":
					_, err := file.WriteAt(b, at)
					return len(b), errors.Join(errFault, err)
				}
				return file.WriteAt(b, at)
			}
			s.fs.SyncFile = func(*os.File) error { return errFault }
			lost := entry(Key{1, strings.Repeat("lost", 128)}, 1<<60)
			seq := s.saves.seq
			require.ErrorIs(t, s.append([]format.Entry{lost, entry(Key{1, "lost, too"}, 1<<60)}), errFault)
			require.Equal(t, have, allOf(t, s))
			require.Equal(t, seq+1, s.saves.seq, "the number is not given to another")
			got, err := foundUnverified(t, crash(t, s))
			require.NoError(t, err, "the file is as a crash may leave it")
			if len(got) != len(have) {
				require.Equal(t, with(have, lost, entry(Key{1, "lost, too"}, 1<<60)), got, "all, or nothing")
			}

			s.fs.MaxSize = 1 // nor can bbolt write
			var many []format.Entry
			for i := range 2000 {
				many = append(many, entry(Key{1, fmt.Sprint(strings.Repeat("many", 100), i)}, 1))
			}
			require.Error(t, s.append(many))
			s.fs.MaxSize = 0

			made := commits(t, s.path)
			s.alone()
			require.NoError(t, s.Save([]format.Entry{entry(Key{1, "next"}, 1<<60)}))
			require.Equal(t, made+1, commits(t, s.path), "a transaction, though the log would do")
			have = with(have, entry(Key{1, "next"}, 1<<60))
			require.Equal(t, have, allOf(t, s))
			requireCrash(t, s, have)

			*s.fs = sound
			s.put(t, entry(Key{1, "last"}, 1<<60))
			require.Equal(t, made+1, commits(t, s.path), "the log again")
			requireCrash(t, s, with(have, entry(Key{1, "last"}, 1<<60)))
		})
	}
}

// A commit whose meta page could not be synced is in force, and perhaps not on
// the disk: what is on the disk stays as it is until that page is there.
func TestCommitThatFailed(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	const n = 5_000
	fill(t, s, n)
	have := allOf(t, s)
	homeAgain := func(tat int64) error {
		return s.update(func(tx *bolt.Tx) error {
			var entries []format.Entry
			for i := range n {
				entries = append(entries, entry(Key{1, fmt.Sprintf("id-%07d", i)}, tat))
			}
			return boltfile.Apply(tx, s.inUse.file.Check, entries)
		})
	}
	disk := readFile(t, s.path)[:2*bboltpage.Size] // the meta pages
	restore := failCommits(s.inUse.file, unsynced(s.inUse.file))
	require.ErrorIs(t, homeAgain(1<<60), errFault)
	restore()

	sound, fails := *s.fs, true
	var written []byte
	at := int64(0)
	s.fs.WriteAt = func(file *os.File, b []byte, where int64) (int, error) {
		written, at = bytes.Clone(b), where
		return file.WriteAt(b, where)
	}
	s.fs.SyncFile = func(file *os.File) error {
		if fails {
			return errFault
		}
		copy(disk[at:], written)
		return sound.SyncFile(file)
	}
	var cuts [][]byte
	cut := func(meta []byte, at int64) (int, error) { // the pages of the next commit are synced, and its meta page is not
		image, err := os.ReadFile(s.path)
		copy(image, disk)
		cuts = append(cuts, image)
		n, writeErr := s.inUse.file.OS().WriteAt(meta, at)
		return n, errors.Join(err, writeErr)
	}
	restore = failCommits(s.inUse.file, cut)
	var early []error
	for range 2 {
		early = append(early, homeAgain(1<<61))
	}
	fails = false
	require.NoError(t, homeAgain(1<<61))
	written = nil
	require.NoError(t, homeAgain(1<<61+1))
	require.Nil(t, written, "it is written once")
	restore()
	require.EqualValues(t, int64(1<<61+1), load(t, s, Key{1, "id-0000000"}))
	require.NotEmpty(t, cuts)
	got, err := foundUnverified(t, writeFile(t, cuts[0]))
	require.NoError(t, err)
	require.Len(t, got, len(have))
	for key, tat := range got {
		if tat != have[key] {
			require.EqualValues(t, int64(1<<60), tat)
		}
	}
	for _, err := range early {
		require.ErrorIs(t, err, errFault, "nothing is written before that page is on the disk")
	}
}

// Whoever was killed after a sync that failed left what only looks written: the
// next process does not build upon it.
func TestKilledAfterAFailedSync(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	s.put(t, entry(Key{1, "a"}, 1<<60))
	disk := readFile(t, s.path)
	s.fs.SyncFile = func(*os.File) error { return errFault }
	require.ErrorIs(t, s.append([]format.Entry{entry(Key{1, "b"}, 1<<60)}), errFault)
	next := openStore(t, writeFile(t, readFile(t, s.path)))
	next.fs.WriteAt = func(file *os.File, b []byte, at int64) (int, error) {
		copy(disk[at:], b)
		return file.WriteAt(b, at)
	}
	next.put(t, entry(Key{1, "c"}, 1<<60))
	_, err := found(t, writeFile(t, disk))
	require.NoError(t, err, "a power cut leaves no gap")
}

// What a failed save has left in the file does not come back over a later one,
// and does not make the journal longer.
func TestFailedSave(t *testing.T) {
	t.Parallel()
	fail := func(t *testing.T, s *Store, save func() error) {
		t.Helper()
		restore := failCommits(s.inUse.file, unsynced(s.inUse.file))
		defer restore()
		require.ErrorIs(t, save(), errFault)
	}
	many := tooManyForTheLog()
	saveMany := func(s *Store) func() error { return func() error { return s.append(slices.Clone(many)) } }
	one := func(id string, tat int64) []format.Entry { return []format.Entry{entry(Key{1, id}, tat)} }
	for name, test := range map[string]func(t *testing.T, s *Store){
		"a later one has a higher number, and goes to the journal": func(t *testing.T, s *Store) {
			before := s.saves.seq
			fail(t, s, saveMany(s))
			failed := s.saves.seq
			require.Greater(t, failed, before)
			s.alone()
			require.NoError(t, s.Save(one("a", 1<<40)))
			require.Equal(t, failed+1, s.saves.seq)
		},
		"during a checkpoint": func(t *testing.T, s *Store) {
			require.NoError(t, s.append(slices.Clone(many[:1])))
			require.NoError(t, s.emptyLog())
			s.journal.begin(s.saves.seq)
			fail(t, s, saveMany(s))
			require.NoError(t, s.checkpoint())
			s.alone()
			require.NoError(t, s.Save(one(many[1].ID, 1<<60+1)))
			for _, path := range []string{crash(t, s), s.path} {
				if path == s.path {
					require.NoError(t, s.Close())
				}
				got, err := found(t, path)
				require.NoError(t, err)
				require.EqualValues(t, int64(1<<60+1), got[Key{1, many[1].ID}])
			}
		},
		"a checkpoint drops it": func(t *testing.T, s *Store) {
			fail(t, s, saveMany(s))
			require.Positive(t, s.Stats().Journal)
			require.NoError(t, s.checkpoint())
			require.Zero(t, s.Stats().Journal)
			requireCrash(t, s, allOf(t, s))
		},
		"the journal is not longer": func(t *testing.T, s *Store) {
			restore := failCommits(s.inUse.file, func([]byte, int64) (int, error) { return 0, errFault })
			for range 3 {
				require.Error(t, s.append(make([]format.Entry, 10_000)))
			}
			restore()
			require.LessOrEqual(t, s.Stats().Journal, int64(1))
			require.NoError(t, s.append(one("next", 1)))
		},
		"the next one is a transaction": func(t *testing.T, s *Store) {
			require.NoError(t, s.append(one("logged", 1<<60)))
			fail(t, s, saveMany(s))
			made := commits(t, s.path)
			require.NoError(t, s.append(one("next", 1<<60)))
			require.Equal(t, made+1, commits(t, s.path), "the failed one may have ended the round")
			got, err := found(t, crash(t, s))
			require.NoError(t, err)
			require.Equal(t, int64(1<<60), got[Key{1, "logged"}])
			require.Equal(t, int64(1<<60), got[Key{1, "next"}])
		},
		"a damaged meta page is noticed": func(t *testing.T, s *Store) {
			require.NoError(t, s.append(one("a", 1<<60)))
			fail(t, s, s.emptyLog)
			require.NoError(t, s.append(one("b", 1<<60)))
			require.Zero(t, s.inUse.file.LogState().At, "a transaction")
			require.NoError(t, s.append(one("c", 1<<60)))
			image := readFile(t, s.path)
			image[newerMeta(image)+30] ^= 1
			_, err := foundUnverified(t, writeFile(t, image))
			require.ErrorIs(t, err, format.ErrCorrupt)
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, openLogged(t)) })
	}
}
