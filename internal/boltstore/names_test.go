package boltstore

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
)

// Labels are entered all at once, or not at all if one is ErrNameMismatch.
// Declare changes no label, and Relabel changes no number.
func TestEnterLabels(t *testing.T) {
	t.Parallel()
	have := labels{1: "One", 2: "Two", 6: "Six"}
	moved := `"One" is name 1 in the file: a label keeps its number, so it cannot be 9`
	declare, relabel := (*Store).Declare, (*Store).Relabel
	for what, c := range map[string]struct {
		enter         func(*Store, map[uint16]string) error
		change, after labels
		errs          []string
	}{
		"declare as it is": {declare, labels{1: "One"}, have, nil},
		"declare new":      {declare, labels{2: "Two", 9: "Nine"}, labels{1: "One", 2: "Two", 6: "Six", 9: "Nine"}, nil},
		"declare renamed":  {declare, labels{1: "Eins"}, have, []string{`name 1 is "One" in the file, and declared as`}},
		"declare moved":    {declare, labels{9: "One"}, have, []string{moved}},
		"declare exchanged": {declare, labels{1: "Two", 2: "One"}, have, []string{
			`name 1 is "One" in the file, and declared as "Two"`, `name 2 is "Two" in the file, and declared as "One"`}},
		"declare one good, one not": {declare, labels{1: "Eins", 9: "Nine"}, have, []string{"declared as"}},
		"relabel as it is":          {relabel, labels{1: "One"}, have, nil},
		"relabel renamed":           {relabel, labels{1: "Eins"}, labels{1: "Eins", 2: "Two", 6: "Six"}, nil},
		"relabel new":               {relabel, labels{9: "Nine"}, labels{1: "One", 2: "Two", 6: "Six", 9: "Nine"}, nil},
		"relabel moved":             {relabel, labels{9: "One"}, have, []string{moved}},
		"relabel exchanged":         {relabel, labels{1: "Two", 2: "One"}, have, []string{`"Two" is name 2 in the file`}},
		"relabel one good, one not": {relabel, labels{1: "Eins", 9: "Two"}, have, []string{`"Two" is name 2 in the file`}},
	} {
		t.Run(what, func(t *testing.T) {
			s := openNamed(t, storePath(t), have)
			s.put(t, entry(Key{1, "b"}, 15))
			err := c.enter(s, c.change)
			require.Equal(t, c.errs != nil, err != nil, err)
			for _, want := range c.errs {
				require.ErrorIs(t, err, ErrNameMismatch)
				require.ErrorContains(t, err, s.path)
				require.ErrorContains(t, err, want)
			}
			require.Equal(t, c.after, s.Names())
			s.Names()[1] = "a copy"
			requireCrash(t, s, map[Key]int64{{1, "b"}: 15})
			require.Equal(t, c.after, openNamed(t, crash(t, s), nil).Names())
		})
	}
	_, err := Open(makeFile(t, have), labels{1: "Eins"}, Options{LockTimeout: longLock})
	require.ErrorIs(t, err, ErrNameMismatch)
}

func TestNumber(t *testing.T) {
	t.Parallel()
	s := openNamed(t, storePath(t), labels{1: "one", 2: "two", 300: "many", 4: "four"})
	for _, c := range []struct {
		label string
		want  uint16
	}{{"one", 1}, {"many", 300}, {"third", 3}, {"fifth", 5}, {"third", 3}} {
		n, err := s.Number(c.label)
		require.NoError(t, err)
		require.Equal(t, c.want, n, c.label)
		n, ok := inverse(s.Names())[c.label]
		require.True(t, ok && n == c.want)
	}
	_, ok := inverse(s.Names())["none"]
	require.False(t, ok)
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
	require.ErrorContains(t, err, `all 65535 numbers are in use, none is left for "one too many"`)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Declare(labels{40_000: "after Close"}), ErrNameMismatch)
	require.ErrorIs(t, s.Relabel(labels{40_000: "after Close"}), ErrClosed)
}

// Entries under a number without a label stay, in a sweep, a compaction and
// another process.
func TestNameWithoutLabel(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	want := map[Key]int64{{7, "in the tree"}: 1 << 60, {8, "in the journal"}: 1 << 60}
	for i := range 2 {
		s := openNamed(t, path, nil)
		if i == 0 {
			require.NoError(t, s.Save([]format.Entry{entry(Key{7, "in the tree"}, 1<<60)}))
			s.put(t, entry(Key{8, "in the journal"}, 1<<60))
		}
		sweep := func() error { sweepAll(t, s, 0); return nil }
		for _, step := range []func() error{sweep, s.compactBusy, s.checkpoint, sweep, s.Compact, sweep} {
			require.NoError(t, step())
			for key, tat := range want {
				require.Equal(t, tat, load(t, s, key))
			}
		}
		s.sameAs(t, want)
		require.NoError(t, s.Close())
	}
}
