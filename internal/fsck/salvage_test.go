package fsck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

const golden = "../../testdata/format1.db"

// Salvage copies all of a sound file, including its journal.
func TestSalvage(t *testing.T) {
	for _, path := range []string{golden, makeFile(t, labels{3: "Three"}),
		makeFile(t, labels{1: "One", 2: "Two"}, inTree(many(50)...),
			inJournal(1, format.Entry{Name: 1, ID: "id00000"}, format.Entry{Name: 1, ID: "new", TAT: 8}))} {
		if path == golden && binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
			continue // a machine of the other byte order wrote it
		}
		to, v, err := salvageFile(t, path)
		require.NoError(t, err)
		require.Empty(t, v.Lost)
		found, err := verify(t, to)
		require.NoError(t, err)
		require.Equal(t, Verified{Buckets: v.Buckets}, found)
		names, all := contents(t, path)
		gotNames, got := contents(t, to)
		require.Equal(t, names, gotNames)
		require.Equal(t, all, got)
	}
}

// Salvage makes no file from another program's file, and overwrites none.
func TestSalvageErrors(t *testing.T) {
	dir := t.TempDir()
	to, newer, other := filepath.Join(dir, "new.db"), makeFile(t, labels{1: "one"}), filepath.Join(dir, "other.db")
	filecopy.Edit(t, newer, func(tx *bolt.Tx) error {
		return tx.Bucket(format.MetaBucket).Put(format.FormatKey, format.BigEndian(2))
	})
	filecopy.Edit(t, other, func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("users")); return err })
	empty := filepath.Join(dir, "empty.db")
	filecopy.Edit(t, empty, func(tx *bolt.Tx) error { return nil })
	for path, want := range map[string]string{
		dir:                                "it is a directory",
		filepath.Join(dir, "none.db"):      "none.db",
		newer:                              newer + ": format 2, and this version reads 1",
		other:                              "not one of stint's",
		empty:                              "not one of stint's",
		filecopy.New(t, []byte("garbage")): "not a bbolt file",
	} {
		_, err := Salvage(path, to, lockTimeout, func(int) error { return nil })
		require.ErrorContains(t, err, want)
		require.NotErrorIs(t, err, format.ErrCorrupt)
		require.NoFileExists(t, to)
	}
	stop := errors.New("stop")
	sound := makeFile(t, labels{1: "One", 2: "Two"}, inTree(many(5)...))
	_, err := Salvage(sound, to, lockTimeout, func(int) error { return stop })
	require.ErrorIs(t, err, stop)
	require.NoFileExists(t, to)
	require.NoError(t, os.WriteFile(to, []byte("mine"), 0o600))
	_, err = Salvage(sound, to, lockTimeout, func(int) error { return nil })
	require.ErrorIs(t, err, fs.ErrExist)
	require.Equal(t, []byte("mine"), filecopy.Read(t, to))
}

// Salvage loses only the entries of damaged pages.
func TestSalvageWithoutPages(t *testing.T) {
	t.Parallel()
	path := makeFile(t, labels{1: "One", 2: "Two"}, inTree(many(20_000)...),
		inJournal(1, format.Entry{Name: 1, ID: "id00000", TAT: 7},
			format.Entry{Name: 1, ID: "new", TAT: 8}, format.Entry{Name: 2, ID: "id00001"}))
	_, want := contents(t, path)
	sound := filecopy.Read(t, path)
	var branches []int
	for page := 2; page < len(sound)/bboltpage.Size; page++ {
		if p := sound[page*bboltpage.Size:]; bboltpage.Kind(p) == bboltpage.Branch && bboltpage.Count(p) > 2 {
			branches = append(branches, page)
		}
	}
	require.NotEmpty(t, branches)
	r := rand.New(rand.NewPCG(1, 2))
	some := false
	for i := range testlength.Of(60, 5) {
		content := bytes.Clone(sound)
		if i%10 == 0 { // two pages point to one
			at := branches[r.IntN(len(branches))]*bboltpage.Size + bboltpage.Header + 8
			copy(content[at+bboltpage.Element*(1+r.IntN(2)):][:8], content[at:])
		} else {
			for range 1 + i%3 {
				page := 2 + r.IntN(len(content)/bboltpage.Size-2)
				for j := range 64 {
					content[page*bboltpage.Size+j] ^= byte(r.IntN(256))
				}
			}
		}
		damaged := filecopy.New(t, content)
		to, v, err := salvageFile(t, damaged)
		require.Equal(t, content, filecopy.Read(t, damaged), "it is left as it was")
		if err != nil {
			require.ErrorIs(t, err, format.ErrCorrupt)
			continue
		}
		_, err = verify(t, to)
		require.NoError(t, err)
		_, got := contents(t, to)
		require.EqualValues(t, len(got), v.Buckets)
		if len(v.Lost) == 0 {
			require.Equal(t, want, got)
			continue
		}
		some = some || len(got) > len(want)*9/10 && len(got) < len(want)
		for key, tat := range got {
			if tat != want[key] && key != "1:id00000" && key != "2:id00001" { // the journal has these, and may be lost
				require.Equal(t, want[key], tat, key)
			}
		}
	}
	require.True(t, some, "a page was lost, and the others were not")
}

// Salvage copies the pages that a short file still has.
func TestSalvageShortFile(t *testing.T) {
	all := many(20_000)
	path := makeFile(t, labels{1: "One", 2: "Two"}, inTree(all[:5_000]...), inTree(all[5_000:10_000]...),
		inTree(all[10_000:]...))
	content := filecopy.Read(t, path)
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	m, err := bboltpage.ReadMeta(file)
	require.NoError(t, err)
	short := filecopy.New(t, content[:(m.Pages-3)*bboltpage.Size]) // without the last pages of the last transaction
	_, err = verify(t, short)
	require.ErrorIs(t, err, format.ErrCorrupt)
	to, v, err := salvageFile(t, short)
	require.NoError(t, err)
	require.Greater(t, v.Buckets, int64(5_000))
	require.NotEmpty(t, v.Lost)
	_, err = verify(t, to)
	require.NoError(t, err)

	clear(content[m.Root*bboltpage.Size:][:bboltpage.Size]) // then the root of the transaction before is read
	to, v, err = salvageFile(t, filecopy.New(t, content))
	require.NoError(t, err)
	require.ErrorContains(t, v.Lost[0], "the changes of the last transaction are lost")
	names, _ := contents(t, to)
	require.Equal(t, labels{1: "One", 2: "Two"}, names)
}

// Salvage drops only invalid entries. A name without a label gets one that no
// other name has.
func TestSalvageBadEntries(t *testing.T) {
	path := makeFile(t, labels{5: "name 6", 6: "Six"},
		inTree(format.Entry{Name: 6, ID: "a", TAT: 1}, format.Entry{Name: 6, ID: "b", TAT: 2},
			format.Entry{Name: format.Holds, ID: "6:a", TAT: 3}))
	filecopy.Edit(t, path, func(tx *bolt.Tx) error {
		six := tx.Bucket([]byte("6"))
		_, err := six.CreateBucket([]byte("bucket"))
		_, elseErr := tx.CreateBucket([]byte("else"))
		return errors.Join(err, elseErr, six.Put([]byte("short"), []byte("x")), six.Put([]byte("zero"), format.BigEndian(0)),
			tx.Bucket(format.HoldsBucket).Put([]byte("nothing"), format.BigEndian(1)),
			boltfile.NamesTable(tx).Delete([]byte("6")),
			tx.Bucket(format.JournalBucket).Put(format.BigEndian(1), []byte("not a record")))
	})
	to, v, err := salvageFile(t, path)
	require.NoError(t, err)
	require.Len(t, v.Lost, 7)
	_, err = verify(t, to)
	require.NoError(t, err)
	names, got := contents(t, to)
	require.Equal(t, labels{5: "name 6", 6: "name 6?"}, names)
	require.Equal(t, map[string]int64{"6:a": 1, "6:b": 2, "0:6:a": 3}, got)
}

// The records of the log are part of the journal. If the log is damaged, or
// later than the meta page in force, its readable records are salvaged.
func TestSalvageLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logged.db")
	var log int64
	require.NoError(t, boltfile.Make(path, boltfile.OS(), func(f *boltfile.File) error {
		err := f.Update(func(tx *bolt.Tx) error { return boltfile.LayOut(tx, labels{1: "One"}) })
		f.MakeLog()
		err = errors.Join(err, f.Update(func(*bolt.Tx) error { return nil }))
		for i, id := range []string{"first", "second"} {
			_, appendErr := f.Append(uint64(i+1), []format.Entry{{Name: 1, ID: id, TAT: 1 << 60}})
			err = errors.Join(err, appendErr)
		}
		log = f.LogState().Begin
		return err
	}))
	v, err := verify(t, path)
	require.NoError(t, err)
	require.EqualValues(t, 2, v.Journaled)
	round := func(value []byte) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.Bucket(format.MetaBucket).Put(format.LogKey, value) }
	}
	now := binary.BigEndian.Uint64(filecopy.Read(t, path)[log:])
	second := map[string]int64{"1:second": 1 << 60}
	both := map[string]int64{"1:first": 1 << 60, "1:second": 1 << 60}
	for name, c := range map[string]struct {
		flip   int64 // the byte there
		change func(tx *bolt.Tx) error
		lost   string
		want   map[string]int64
	}{
		"record": {log + 30, nil, "a record of the log is damaged", second},
		"round":  {0, round([]byte("round")), "the round of its log is damaged", map[string]int64{}},
		"short": {0, func(tx *bolt.Tx) error { return tx.Bucket(format.LogBucket).Put([]byte("more"), nil) },
			"its length is wrong", both},
		"later": {0, round(format.RoundValue(now - 1<<32)), "the log is of a later transaction", both},
	} {
		t.Run(name, func(t *testing.T) {
			content := filecopy.Read(t, path)
			content[c.flip] ^= 1
			changed := filecopy.New(t, content)
			if c.change != nil {
				content[c.flip] ^= 1
				changed = filecopy.New(t, content)
				filecopy.Edit(t, changed, c.change)
			}
			_, err := verify(t, changed)
			require.ErrorIs(t, err, format.ErrCorrupt)
			to, v, err := salvageFile(t, changed)
			require.NoError(t, err)
			require.ErrorContains(t, errors.Join(v.Lost...), c.lost)
			_, got := contents(t, to)
			require.Equal(t, c.want, got)
		})
	}
	// A store does not open these files, but Salvage may read them.
	for what, change := range map[string]func(tx *bolt.Tx) error{
		"does not come after its journal": inJournal(1<<40, format.Entry{Name: 1, ID: "later", TAT: 1}),
		"half of a log": func(tx *bolt.Tx) error {
			return tx.Bucket(format.MetaBucket).Delete(format.LogKey)
		},
	} {
		changed := filecopy.New(t, filecopy.Read(t, path))
		filecopy.Edit(t, changed, change)
		_, err := verify(t, changed)
		require.ErrorIs(t, err, format.ErrCorrupt, what)
		require.ErrorContains(t, err, what)
	}
}
