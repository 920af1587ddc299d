package stint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

func TestSetNames(t *testing.T) {
	type labels = map[Name]string
	have := labels{1: "One", 2: "Two", 6: "Six"}
	for what, c := range map[string]struct {
		want, after labels
		moved       map[Name]Name
		err         string
	}{
		"as it is":           {labels{1: "One"}, have, nil, ""},
		"renamed":            {labels{1: "Eins"}, labels{1: "Eins", 2: "Two", 6: "Six"}, map[Name]Name{}, ""},
		"new":                {labels{9: "Nine"}, labels{1: "One", 2: "Two", 6: "Six", 9: "Nine"}, map[Name]Name{}, ""},
		"moved":              {labels{9: "One"}, labels{9: "One", 2: "Two", 6: "Six"}, map[Name]Name{1: 9}, ""},
		"exchanged":          {labels{1: "Two", 2: "One"}, labels{1: "Two", 2: "One", 6: "Six"}, map[Name]Name{1: 2, 2: 1}, ""},
		"around":             {labels{1: "Six", 2: "One", 6: "Two"}, labels{1: "Six", 2: "One", 6: "Two"}, map[Name]Name{1: 2, 2: 6, 6: 1}, ""},
		"moved, another new": {labels{9: "One", 1: "New"}, labels{1: "New", 9: "One", 2: "Two", 6: "Six"}, map[Name]Name{1: 9}, ""},
		"one left over":      {labels{2: "One"}, nil, nil, `name 2 is to be "One", and is "Two": say which number "Two" is to have`},
		"twice":              {labels{8: "X", 9: "X"}, nil, nil, "same label"},
		"no label":           {labels{8: ""}, nil, nil, "has no label"},
		"none":               {labels{0: "X"}, nil, nil, "Name 0 is no limit"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "buckets.db")
			s := openBolt(t, path, Names{1: {Label: "One"}, 2: {Label: "Two"}, 6: {Label: "Six"}})
			save(t, s, Change{Key{1, "a"}, 11}, Change{Key{2, "a"}, 12}, Change{Key{Unknown, "1:a"}, 13}, Change{Key{Unknown, "6:b"}, 14})
			require.NoError(t, s.append([]Change{{Key{1, "b"}, 15}, {Key{6, ""}, 16}}))
			want := make(map[Key]int64)
			for key, tat := range allOf(t, s) {
				held, isHold := strings.CutPrefix(key.ID, "1:")
				if to, ok := c.moved[1]; ok && key.Name == Unknown && isHold {
					key.ID = fmt.Sprint(to) + ":" + held
				} else if held, isHold = strings.CutPrefix(key.ID, "6:"); key.Name == Unknown && isHold && c.moved[6] != 0 {
					key.ID = fmt.Sprint(c.moved[6]) + ":" + held
				} else if to, ok := c.moved[key.Name]; ok {
					key.Name = to
				}
				want[key] = tat
			}
			abandon(t, s)
			before, err := os.ReadFile(path)
			require.NoError(t, err)

			moved, err := SetNames(path, c.want, nil, nil)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				after, err := os.ReadFile(path)
				require.NoError(t, err)
				if !strings.Contains(c.err, "say which") { // then it was opened, and its journal taken home
					require.Equal(t, before, after)
				}
				c.after, c.moved = have, nil
			} else {
				require.NoError(t, err)
				require.Equal(t, c.moved, moved)
			}
			_, err = verify(t, path)
			require.NoError(t, err)
			s = openBolt(t, path, nil)
			require.Equal(t, c.after, s.Names())
			require.Equal(t, want, allOf(t, s))
			require.Equal(t, []string{"buckets.db"}, listDir(t, dir))
		})
	}
}

func TestSetNamesFails(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.db")
	_, err := SetNames(none, map[Name]string{1: "One"}, nil, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoFileExists(t, none)

	path := makeBolt(t, Names{1: {Label: "One"}}, Change{Key{1, "a"}, 1})
	s := openBolt(t, path, nil)
	_, err = SetNames(path, map[Name]string{1: "Eins"}, &BoltOptions{LockTimeout: time.Millisecond}, nil)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, s.Close())

	stopped := errors.New("stopped")
	_, err = SetNames(path, map[Name]string{1: "Eins"}, nil, func(n int) error { return stopped })
	require.ErrorIs(t, err, stopped)
	require.Equal(t, []string{"buckets.db"}, listDir(t, filepath.Dir(path)))
	_, err = verify(t, path)
	require.NoError(t, err)

	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("1")).Put([]byte("a"), bigEndian(2)) })
	_, err = SetNames(path, map[Name]string{1: "Eins"}, nil, nil)
	require.ErrorIs(t, err, ErrCorrupt, "a new sum would hide it")
	s = openBolt(t, path, nil)
	require.Equal(t, map[Name]string{1: "One"}, s.Names())
}

// What was saved under a number without a label is not forgotten, by a sweep, a compaction or another process.
func TestNameWithoutALabel(t *testing.T) {
	path := storePath(t)
	home, journaled := Change{Key{7, "a"}, 1 << 60}, Change{Key{8, "b"}, 1 << 60}
	for i := range 3 {
		s, err := OpenBolt(path, nil, nil)
		require.NoError(t, err)
		if i == 0 {
			require.NoError(t, s.Save([]Change{home}))
			require.NoError(t, s.append([]Change{journaled}))
		}
		for _, step := range []func() error{
			func() error { return nil },
			func() error { sweepAll(t, s, 0); return nil },
			s.compactBusy,
			s.checkpoint,
			func() error { sweepAll(t, s, 0); return nil },
			s.Compact,
			func() error { sweepAll(t, s, 0); return nil },
		} {
			require.NoError(t, step())
			require.Equal(t, home.TAT, load(t, s, home.Key))
			require.Equal(t, journaled.TAT, load(t, s, journaled.Key))
			require.Equal(t, []Change{home}, collect(t, s.All(7)))
		}
		require.NoError(t, s.Close())
	}
}

// Names whose commit failed, and is in force all the same: the file keeps them when it is compacted, with their sum, and no label gets
// two numbers.
func TestNamesThatFailedAreInForce(t *testing.T) {
	failed := func(t *testing.T) *BoltStore {
		s := openLogged(t)
		restore := commitFails(s.file, s.file.unsynced)
		require.Error(t, s.Declare(Names{77: {Label: "late"}}))
		restore()
		return s
	}
	t.Run("compacted", func(t *testing.T) {
		s := failed(t)
		require.NoError(t, s.Compact())
		_, err := s.Verify(nil)
		require.NoError(t, err)
		require.Equal(t, "late", s.Names()[77])
	})
	t.Run("numbered", func(t *testing.T) {
		s := failed(t)
		n, err := s.Number("late")
		require.NoError(t, err)
		require.EqualValues(t, 77, n)
	})
	t.Run("declared", func(t *testing.T) {
		s := failed(t)
		require.NoError(t, s.Declare(Names{77: {Label: "late"}}))
		require.ErrorIs(t, s.Declare(Names{78: {Label: "late"}}), ErrNameMismatch)
	})
}
