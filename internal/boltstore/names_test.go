package boltstore

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

func TestDeclare(t *testing.T) {
	t.Parallel()
	path := makeFile(t, labels{1: "one", 2: "two", 300: "many"})
	for what, c := range map[string]struct {
		labels labels
		want   []string
	}{
		"a number has another label": {labels{1: "uno"}, []string{`name 1 is "one" in the file, and declared as "uno"`}},
		"a label has another number": {labels{3: "two"}, []string{`"two" is name 2 in the file, which keeps its number, and cannot be 3`}},
		"swapped": {labels{1: "two", 2: "one"}, []string{
			`name 1 is "one" in the file, and declared as "two"`, `name 2 is "two" in the file, and declared as "one"`}},
		"one wrong, one new": {labels{1: "uno", 9: "nine"}, []string{`name 1 is "one" in the file, and declared as "uno"`}},
	} {
		_, err := Open(path, c.labels, Options{LockTimeout: longLock})
		require.ErrorIs(t, err, ErrNameMismatch, what)
		require.ErrorContains(t, err, path)
		for _, want := range c.want {
			require.ErrorContains(t, err, want, what)
		}
	}
	s := openNamed(t, path, labels{2: "two", 4: "four"}) // not all that the file has, and one more
	want := labels{1: "one", 2: "two", 4: "four", 300: "many"}
	require.Equal(t, want, s.Names(), "nothing was added by those that failed")
	s.Names()[1] = "changed"
	require.Equal(t, want, s.Names(), "a copy")
	require.NoError(t, s.Close())
	require.Equal(t, want, openNamed(t, path, nil).Names())
}

func TestRelabel(t *testing.T) {
	t.Parallel()
	have := labels{1: "One", 2: "Two", 6: "Six"}
	for what, c := range map[string]struct {
		change, after labels
		err           string
	}{
		"as it is":          {labels{1: "One"}, have, ""},
		"renamed":           {labels{1: "Eins"}, labels{1: "Eins", 2: "Two", 6: "Six"}, ""},
		"new":               {labels{9: "Nine"}, labels{1: "One", 2: "Two", 6: "Six", 9: "Nine"}, ""},
		"moved":             {labels{9: "One"}, have, `"One" is name 1 in the file, which keeps its number, and cannot be 9`},
		"exchanged":         {labels{1: "Two", 2: "One"}, have, `"Two" is name 2 in the file`},
		"one good, one not": {labels{1: "Eins", 9: "Two"}, have, `"Two" is name 2 in the file`},
	} {
		t.Run(what, func(t *testing.T) {
			path := makeFile(t, have, entry(Key{1, "a"}, 11), entry(Key{format.Holds, "1:a"}, 13))
			s := openNamed(t, path, nil)
			s.put(t, entry(Key{1, "b"}, 15))
			want, made := allOf(t, s), commits(t, path)
			err := s.Relabel(c.change)
			if c.err != "" {
				require.ErrorIs(t, err, ErrNameMismatch)
				require.ErrorContains(t, err, c.err)
			} else {
				require.NoError(t, err)
				require.LessOrEqual(t, commits(t, path), made+1)
			}
			require.Equal(t, c.after, s.Names())
			requireCrash(t, s, want)
			require.NoError(t, s.Close())
			require.Equal(t, c.after, openNamed(t, path, nil).Names())
		})
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	s := openNamed(t, storePath(t), labels{1: "one", 2: "two", 300: "many", 4: "four"})
	for _, c := range []struct {
		label string
		want  uint16
	}{{"one", 1}, {"many", 300}, {"third", 3}, {"fifth", 5}, {"third", 3}} {
		_, had := s.NumberOf(c.label)
		n, err := s.Number(c.label)
		require.NoError(t, err)
		require.Equal(t, c.want, n, c.label)
		has, ok := s.NumberOf(c.label)
		require.True(t, ok && has == c.want || !had)
	}
	var wg sync.WaitGroup
	got := make([]uint16, 32)
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = s.Number(fmt.Sprint("label ", i%8)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, n := range got {
		require.Equal(t, got[i%8], n)
	}
	slices.Sort(got)
	require.Equal(t, []uint16{6, 7, 8, 9, 10, 11, 12, 13}, slices.Compact(got))

	for n := uint16(1); n != 0; n++ {
		s.names.labels[n] = fmt.Sprint("label ", n)
	}
	delete(s.names.labels, 40_000)
	n, err := s.Number("the last")
	require.NoError(t, err)
	require.EqualValues(t, 40_000, n)
	_, err = s.Number("one too many")
	require.EqualError(t, err, `stint: names differ from the file's: all 65535 numbers are taken, none is left for "one too many"`)
	require.NoError(t, s.Close())
	delete(s.names.labels, 40_000)
	_, err = s.Number("after Close")
	require.ErrorIs(t, err, ErrClosed)
}

// What was saved under a number without a label is not forgotten, by a sweep, a
// compaction or another process.
func TestNameWithoutALabel(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	home, journaled := entry(Key{7, "a"}, 1<<60), entry(Key{8, "b"}, 1<<60)
	for i := range 3 {
		s := openNamed(t, path, nil)
		if i == 0 {
			require.NoError(t, s.Save([]format.Entry{home}))
			s.put(t, journaled)
		}
		sweep := func() error { sweepAll(t, s, 0); return nil }
		for _, step := range []func() error{sweep, s.compactBusy, s.checkpoint, sweep, s.Compact, sweep} {
			require.NoError(t, step())
			require.Equal(t, home.TAT, load(t, s, keyOf(home)))
			require.Equal(t, journaled.TAT, load(t, s, keyOf(journaled)))
			require.Equal(t, home.TAT, allOf(t, s)[keyOf(home)])
		}
		require.NoError(t, s.Close())
	}
}

// The file keeps labels whose commit failed and is in force all the same, with
// their sum, when it is compacted. No label gets two numbers.
func TestNamesOfAFailedCommit(t *testing.T) {
	t.Parallel()
	for what, then := range map[string]func(t *testing.T, s *Store){
		"compacted": func(t *testing.T, s *Store) {
			require.NoError(t, s.Compact())
			_, err := verify(crash(t, s))
			require.NoError(t, err)
			require.Equal(t, "late", s.Names()[77])
		},
		"numbered": func(t *testing.T, s *Store) {
			n, err := s.Number("late")
			require.NoError(t, err)
			require.EqualValues(t, 77, n)
		},
		"declared": func(t *testing.T, s *Store) {
			require.NoError(t, s.Declare(labels{77: "late"}))
			require.ErrorIs(t, s.Declare(labels{78: "late"}), ErrNameMismatch)
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := openLogged(t)
			restore := failCommits(s.inUse.file, unsynced(s.inUse.file))
			require.Error(t, s.Declare(labels{77: "late"}))
			restore()
			then(t, s)
		})
	}
}

// A names table that makes no sense is ErrCorrupt, and so is a file without
// one.
func TestDamagedHead(t *testing.T) {
	t.Parallel()
	putName := func(k string) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error { return boltfile.NamesTable(tx).Put([]byte(k), []byte("x")) }
	}
	meta := func(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket(format.MetaBucket) }
	for what, damage := range map[string]func(tx *bolt.Tx) error{
		"short format":      func(tx *bolt.Tx) error { return meta(tx).Put(format.FormatKey, []byte{1}) },
		"no names":          func(tx *bolt.Tx) error { return meta(tx).DeleteBucket(format.NamesBucket) },
		"no journal":        func(tx *bolt.Tx) error { return tx.DeleteBucket(format.JournalBucket) },
		"name 0":            putName("0"),
		"name too large":    putName("65536"),
		"name not a number": putName("one"),
	} {
		path := makeFile(t, storeNames)
		edit(t, path, damage)
		_, err := Open(path, nil, Options{LockTimeout: longLock})
		require.ErrorIs(t, err, format.ErrCorrupt, what)
		require.ErrorContains(t, err, path, what)
	}
}
