package stint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// verify returns what Verify finds in the file at path.
func verify(t testing.TB, path string) (Verified, error) {
	t.Helper()
	s, err := OpenBolt(path, nil, &BoltOptions{ReadOnly: true})
	require.NoError(t, err)
	defer s.Close()
	n := 0
	v, err := s.Verify(func(more int) { n += more })
	require.EqualValues(t, v.Buckets, n)
	return v, err
}

// TestSumsAreKept looks at the sums after each way in which an entry is written, moved or deleted.
func TestSumsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buckets.db")
	names := Names{1: {Label: "One"}, 6: {Label: "Six"}}
	s := openBolt(t, path, names)
	sound := func(what string, buckets, journaled int) {
		t.Helper()
		v, err := s.Verify(nil)
		require.NoError(t, err, what)
		require.Equal(t, Verified{Buckets: int64(buckets), Journaled: int64(journaled)}, v, what)
	}
	sound("a new file", 0, 0)
	save(t, s, Change{Key{1, ""}, 1}, Change{Key{1, "*"}, 2}, Change{Key{6, "a"}, 3}, Change{Key{Unknown, "6:a"}, 4})
	sound("saved to its place", 4, 0)
	require.NoError(t, s.append([]Change{{Key{1, "*"}, 5}, {Key{6, "a"}, 0}, {Key{6, "b"}, 6}, {Key{Unknown, "6:a"}, 7}}))
	sound("in the journal", 4, 4)
	require.NoError(t, s.compactBusy())
	sound("compacted, with a journal", 4, 4)
	require.NoError(t, s.Compact())
	sound("taken home", 4, 0)
	var many []Change
	for i := range 40_000 {
		many = append(many, Change{Key{6, fmt.Sprint("id", i)}, 1 << 60})
	}
	require.NoError(t, s.append(many))
	require.NoError(t, s.checkpoint())
	sound("many", 40_004, 0)
	_, err := s.Number("Other")
	require.NoError(t, err)
	sound("one more label", 40_004, 0)
	for range 30 {
		require.NoError(t, s.sweep(1<<59)) // not the holds: their Name is looked at, too
	}
	sound("swept", 40_000, 0)
	require.NoError(t, s.Compact())
	sound("compacted", 40_000, 0)
	for i := range many {
		many[i].TAT = 0
	}
	require.NoError(t, s.append(many))
	require.NoError(t, s.checkpoint())
	sound("nothing left", 0, 0)
	require.NoError(t, s.Close())
	s = openBolt(t, path, names)
	require.NoError(t, s.append([]Change{{Key{1, "last"}, 1}}))
	abandon(t, s)
	s = openBolt(t, path, names)
	sound("after a crash", 0, 1)
}

// TestVerifyFinds changes one thing in a sound file, as a flipped bit, a lost write or a program that knows no sums might.
func TestVerifyFinds(t *testing.T) {
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
	six, holds, names, journal := at("6"), at("holds"), at("meta", "names"), at("journal")
	for what, c := range map[string]struct {
		change func(tx *bolt.Tx) error
		found  string
	}{
		"TAT": {put(six, "a", bigEndian(1<<60+1)), `bucket "6": what is in it does not come to its sum`},
		"id": {func(tx *bolt.Tx) error {
			return errors.Join(six(tx).Delete([]byte("a")), six(tx).Put([]byte("A"), bigEndian(1<<60)))
		}, "sum"},
		"bucket more": {put(six, "more", bigEndian(1)), "sum"},
		"bucket less": {func(tx *bolt.Tx) error { return six(tx).Delete([]byte("b")) }, "sum"},
		"TATs exchanged": {func(tx *bolt.Tx) error {
			return errors.Join(put(six, "a", bigEndian(1<<61))(tx), put(six, "b", bigEndian(1<<60))(tx))
		}, "sum"},
		"short value":     {put(six, "a", []byte("short")), `bucket "6": "a": stint: file is corrupt: a value of 5 bytes`},
		"instant 0":       {put(six, "a", bigEndian(0)), "the instant 0, which is never stored"},
		"long id":         {put(six, fmt.Sprintf("%0600d", 1), bigEndian(1)), "an id of 600 bytes, which is never stored"},
		"bucket in it":    {func(tx *bolt.Tx) error { _, err := six(tx).CreateBucket([]byte("x")); return err }, "it is a bucket"},
		"hold":            {put(holds, "6:a", bigEndian(1<<60+1)), `bucket "holds": what is in it does not come`},
		"hold of nothing": {put(holds, "six", bigEndian(1<<60)), "is not a key"},
		"label":           {put(names, "6", []byte("Sechs")), `bucket "names": what is in it does not come`},
		"no label":        {func(tx *bolt.Tx) error { return names(tx).Delete([]byte("6")) }, `a bucket "6"`},
		"record lost":     {func(tx *bolt.Tx) error { return journal(tx).Delete(bigEndian(1)) }, `bucket "journal": what is in it does not come`},
		"holds lost":      {func(tx *bolt.Tx) error { return tx.DeleteBucket(holdsBucket) }, `no bucket "holds"`},
		"bucket of none":  {func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("else")); return err }, `a bucket "else"`},
		"meta":            {put(at("meta"), "else", []byte("x")), `a "else" in its bucket meta`},
		"record of none": {func(tx *bolt.Tx) error {
			record := appendEntry(make([]byte, 4), Change{Key{9, "x"}, 1})
			sealRecord(7, record)
			return journal(tx).Put(bigEndian(7), record)
		}, "an entry of name 9, which has no label"},
	} {
		t.Run(what, func(t *testing.T) {
			path := makeBolt(t, Names{6: {Label: "Six"}}, Change{Key{6, "a"}, 1 << 60}, Change{Key{6, "b"}, 1 << 61}, Change{Key{Unknown, "6:a"}, 1 << 60})
			s := openBolt(t, path, nil)
			require.NoError(t, s.append([]Change{{Key{6, "c"}, 1 << 60}}))
			require.NoError(t, s.emptyLog())
			abandon(t, s)
			_, err := verify(t, path)
			require.NoError(t, err)
			edit(t, path, c.change)
			_, err = verify(t, path)
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, c.found)

			// Neither a save nor a compaction hides it.
			if what == "TAT" || what == "hold" || what == "label" || what == "record lost" {
				s := openBolt(t, path, nil)
				require.NoError(t, s.append([]Change{{Key{6, "a"}, 1 << 62}, {Key{Unknown, "6:a"}, 1 << 62}}))
				require.NoError(t, s.checkpoint())
				require.NoError(t, s.Compact())
				require.NoError(t, s.Close())
				_, err = verify(t, path)
				require.ErrorContains(t, err, c.found)
			}
		})
	}
}

// TestVerifyFindsUnsoundMetaPage: opening the file does not, while there is another.
func TestVerifyFindsUnsoundMetaPage(t *testing.T) {
	sound, err := os.ReadFile(makeBolt(t, nil, Change{Key{1, "a"}, 1}))
	require.NoError(t, err)
	for page := range 2 {
		path := filepath.Join(t.TempDir(), "buckets.db")
		content := bytes.Clone(sound)
		content[page*pageSize+40] ^= 1
		require.NoError(t, os.WriteFile(path, content, 0o600))
		_, err = verify(t, path)
		require.ErrorContains(t, err, fmt.Sprintf("page %d is not sound", page))
	}
}

// TestVerifyOfAFileWithoutSums: what an older version wrote has none, and gets them when it is compacted.
func TestVerifyOfAFileWithoutSums(t *testing.T) {
	path := copyOf(t, goldenFile)
	v, err := verify(t, path)
	require.NoError(t, err)
	require.Equal(t, []string{"1", "6", "holds", "journal", "names"}, v.Unsummed)
	s := openBolt(t, path, nil)
	save(t, s, Change{Key{6, "new"}, 1})
	require.NoError(t, s.checkpoint())
	v, err = s.Verify(nil)
	require.NoError(t, err)
	require.Len(t, v.Unsummed, 5, "a sum of some of it would be wrong")
	require.NoError(t, s.append([]Change{{Key{6, "newer"}, 1}}))
	require.NoError(t, s.Compact())
	v, err = s.Verify(nil)
	require.NoError(t, err)
	require.Empty(t, v.Unsummed)
	require.NoError(t, s.Close())
	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("6")).Put([]byte("new"), bigEndian(2)) })
	_, err = verify(t, path)
	require.ErrorIs(t, err, ErrCorrupt)
}

// TestEntrySum holds the sum to docs/format.md: other programs compute it.
func TestEntrySum(t *testing.T) {
	value := binary.BigEndian.AppendUint64(nil, 1_767_225_660_000_000_000)
	sum := entrySum([]byte("6"), []byte("12345678"), value)
	require.Equal(t, uint64(0x61F7861D617F6F47), sum)
	for i := range value { // any one byte
		for bit := range 8 {
			value[i] ^= 1 << bit
			require.NotEqual(t, sum, entrySum([]byte("6"), []byte("12345678"), value))
			value[i] ^= 1 << bit
		}
	}
}

// Verify does not wait for the names while it has the file: whoever enters names waits for the file, and Close may come between.
func TestVerifyWaitsForTheNames(t *testing.T) {
	s := openStore(t, storePath(t))
	s.namesMu.Lock()
	done := make(chan error)
	go func() {
		_, err := s.Verify(nil)
		done <- err
	}()
	for stacks := make([]byte, 1<<20); !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*BoltStore).Names(")); {
		runtime.Gosched()
	}
	free := s.mu.TryLock()
	if free {
		s.mu.Unlock()
	}
	s.namesMu.Unlock()
	require.NoError(t, <-done)
	require.True(t, free)
}
