package fsck

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

// Verify finds each single change of a sound file, such as a flipped bit, a
// lost write, or a change by a program that keeps no sums.
func TestVerify(t *testing.T) {
	at := func(names ...string) func(tx *bolt.Tx) *bolt.Bucket {
		return func(tx *bolt.Tx) *bolt.Bucket {
			b := tx.Bucket([]byte(names[0]))
			for _, name := range names[1:] {
				b = b.Bucket([]byte(name))
			}
			return b
		}
	}
	put := func(b func(tx *bolt.Tx) *bolt.Bucket, k string, v []byte) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error { return b(tx).Put([]byte(k), v) }
	}
	n := format.BigEndian
	six, holds, names, records := at("6"), at("holds"), at("meta", "names"), at("journal")
	for what, c := range map[string]struct {
		change func(tx *bolt.Tx) error
		found  string
	}{
		"TAT": {put(six, "a", n(1<<60+1)), `bucket "6": its contents do not match its sum`},
		"id": {func(tx *bolt.Tx) error {
			return errors.Join(six(tx).Delete([]byte("a")), six(tx).Put([]byte("A"), n(1<<60)))
		}, "sum"},
		"bucket more": {put(six, "more", n(1)), "sum"},
		"bucket less": {func(tx *bolt.Tx) error { return six(tx).Delete([]byte("b")) }, "sum"},
		"TATs exchanged": {func(tx *bolt.Tx) error {
			return errors.Join(put(six, "a", n(1<<61))(tx),
				put(six, "b", n(1<<60))(tx))
		}, "sum"},
		"short value": {put(six, "a", []byte("short")), "6:a: stint: file is corrupt: a value of 5 bytes"},
		"instant 0":   {put(six, "a", n(0)), "its TAT is 0, want at least 1"},
		"long id":     {put(six, fmt.Sprintf("%0600d", 1), n(1)), "an id of 600 bytes, want at most 512"},
		"bucket in it": {func(tx *bolt.Tx) error { _, err := six(tx).CreateBucket([]byte("x")); return err },
			"it is a bucket"},
		"hold":            {put(holds, "6:a", n(1<<60+1)), `bucket "holds": its contents do not match`},
		"hold of nothing": {put(holds, "six", n(1<<60)), "is not a key"},
		"hold of 0":       {put(holds, "06:a", n(1<<60)), "is not a key"},
		"label":           {put(names, "6", []byte("Sechs")), `bucket "names": its contents do not match`},
		"no label":        {func(tx *bolt.Tx) error { return names(tx).Delete([]byte("6")) }, "name 6 has no label"},
		"record lost": {func(tx *bolt.Tx) error { return records(tx).Delete(n(1)) },
			`bucket "journal": its contents do not match`},
		"record damaged": {put(records, string(n(1)), []byte("abcdefgh")), "its checksum is wrong"},
		"record of none": {inJournal(7, format.Entry{Name: 9, ID: "x", TAT: 1}), "name 9 has no label"},
		"record of -1":   {inJournal(7, format.Entry{Name: 6, ID: "x", TAT: -1}), "its TAT is -1, want at least 0"},
		"short format":   {put(at("meta"), "format", []byte{1}), "a value of 1 bytes"},
		"names lost": {func(tx *bolt.Tx) error { return at("meta")(tx).DeleteBucket([]byte("names")) },
			"no names table"},
		"name 0":          {put(names, "0", []byte("x")), `its names table has the label "x" for the number "0"`},
		"name too large":  {put(names, "65536", []byte("x")), "its names table has"},
		"name of letters": {put(names, "one", []byte("x")), "its names table has"},
		"holds lost":      {func(tx *bolt.Tx) error { return tx.DeleteBucket(format.HoldsBucket) }, `no bucket "holds"`},
		"journal lost":    {func(tx *bolt.Tx) error { return tx.DeleteBucket(format.JournalBucket) }, "it has no journal"},
		"bucket of none": {func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("else")); return err },
			`unknown key "else"`},
		"meta": {put(at("meta"), "else", []byte("x")), `unknown key "else" in its bucket meta`},
		"many": {func(tx *bolt.Tx) (err error) {
			for i := range 30 {
				err = errors.Join(err, six(tx).Put([]byte(fmt.Sprint(i)), nil))
			}
			return err
		}, `bucket "6": and 10 more`},
	} {
		t.Run(what, func(t *testing.T) {
			path := makeFile(t, labels{6: "Six"},
				inTree(format.Entry{Name: 6, ID: "a", TAT: 1 << 60}, format.Entry{Name: 6, ID: "b", TAT: 1 << 61},
					format.Entry{ID: "6:a", TAT: 1 << 60}),
				inJournal(1, format.Entry{Name: 6, ID: "c", TAT: 1 << 60}))
			v, err := verify(t, path)
			require.NoError(t, err)
			require.Equal(t, Verified{Buckets: 3, Journaled: 1}, v)
			filecopy.Edit(t, path, c.change)
			_, err = verify(t, path)
			require.ErrorIs(t, err, format.ErrCorrupt)
			require.ErrorContains(t, err, c.found)
			require.ErrorContains(t, err, path)
		})
	}
}

// Verify returns the error of opening a file that does not exist, is not one of
// stint's, or is locked.
func TestVerifyOpenErrors(t *testing.T) {
	_, err := verify(t, t.TempDir()+"/none.db")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = verify(t, filecopy.New(t, bytes.Repeat([]byte("text"), 5000)))
	require.ErrorIs(t, err, format.ErrFormat)
	path := makeFile(t, nil)
	held, err := boltfile.Open(path, boltfile.Options{LockTimeout: lockTimeout})
	require.NoError(t, err)
	defer held.Close()
	_, err = Verify(path, 1, nil)
	require.ErrorIs(t, err, boltfile.ErrLocked)
}

// Verify finds an unsound meta page, even though bbolt uses the other one. It
// also finds one of another time, or of another file: the two do not follow each
// other.
func TestVerifyMetaPages(t *testing.T) {
	path := makeFile(t, labels{1: "One"}, inTree(many(1)...))
	sound := filecopy.Read(t, path)
	for page := range 2 {
		content := bytes.Clone(sound)
		content[page*bboltpage.Size+40] ^= 1
		_, err := verify(t, filecopy.New(t, content))
		require.ErrorContains(t, err, fmt.Sprintf("page %d is not sound", page))
	}
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	metas, err := bboltpage.ReadMetas(file)
	require.NoError(t, err)
	require.Len(t, metas, 2)
	older := metas[1]
	for _, tx := range []uint64{0, older.Tx - 1, older.Tx, older.Tx + 1} {
		content := bytes.Clone(sound)
		bboltpage.SealMeta(content[older.Place*bboltpage.Size:], older.Place, tx)
		_, err := verify(t, filecopy.New(t, content))
		if tx == older.Tx {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, format.ErrCorrupt)
			require.ErrorContains(t, err, "do not follow each other", "transaction %d, and %d is in force", tx, metas[0].Tx)
		}
	}
}

// Verify finds any flipped byte, unless nothing reads that byte. Then the file
// has the same contents.
func TestVerifyFlippedBytes(t *testing.T) {
	t.Parallel()
	all := many(20_000)
	sound := filecopy.Read(t, makeFile(t, labels{1: "One", 2: "Two", 300: "Everyone"}, inTree(all[:10_000]...),
		inTree(all[5_000:]...),
		inJournal(1, all[:700]...), inJournal(2, format.Entry{Name: 300, TAT: 1 << 60},
			format.Entry{ID: "1:id00000", TAT: 1 << 60})))
	path := filecopy.New(t, sound)
	names, want := contents(t, path)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	flip := func(at int, by byte) (found string) {
		_, err := file.WriteAt([]byte{sound[at] ^ by}, int64(at))
		require.NoError(t, err)
		if _, err := verify(t, path); err == nil {
			gotNames, got := contents(t, path)
			require.Equal(t, names, gotNames)
			require.Equal(t, want, got, "byte %d, flipped by %#x, changed what is read", at, by)
		} else {
			require.ErrorIs(t, err, format.ErrCorrupt)
			found = err.Error()
		}
		_, err = file.WriteAt(sound[at:at+1], int64(at))
		require.NoError(t, err)
		return found
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	wanted, bySum := testlength.Of(250, 4), 0
	for n := 0; n < wanted; {
		if found := flip(rnd.IntN(len(sound)), byte(1+rnd.IntN(255))); found != "" {
			n++
			if strings.Contains(found, "sum") {
				bySum++
			}
		}
	}
	require.Greater(t, bySum, wanted/12)
	at := bytes.LastIndex(sound, []byte("id19999")) + len("id19999") // a TAT
	for bit := range 64 {
		if testlength.Long || bit%9 == 0 {
			require.Contains(t, flip(at+bit/8, 1<<(bit%8)), "do not match its sum")
		}
	}
}
