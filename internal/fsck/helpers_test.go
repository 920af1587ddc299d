package fsck

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
)

const lockTimeout = time.Minute

type (
	labels  = map[uint16]string
	entries = []format.Entry
)

// inTree writes entries to their places, and inJournal to the journal.
func inTree(es ...format.Entry) func(tx *bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		slices.SortFunc(es, format.Entry.CompareStored)
		return boltfile.Apply(tx, nil, es)
	}
}

func inJournal(seq uint64, es ...format.Entry) func(tx *bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		for data := range format.Records(es, 1<<20) {
			format.Seal(seq, data)
			return boltfile.PutRecords(tx, slices.Values([]format.Record{{Seq: seq, Data: data}}))
		}
		return nil
	}
}

// makeFile makes a file with these transactions, and returns its path.
func makeFile(t testing.TB, names labels, updates ...func(tx *bolt.Tx) error) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "buckets.db")
	require.NoError(t, boltfile.Make(path, nil, func(f *boltfile.File) error {
		err := f.Update(func(tx *bolt.Tx) error { return boltfile.LayOut(tx, names) })
		for _, update := range updates {
			if err == nil {
				err = f.Update(update)
			}
		}
		return err
	}))
	return path
}

// many returns n entries of the names 1 and 2.
func many(n int) (es entries) {
	for i := range n {
		es = append(es, format.Entry{Name: uint16(1 + i%2), ID: fmt.Sprintf("id%05d", i), TAT: 1<<60 + int64(i)})
	}
	return es
}

// edit changes a file behind stint's back.
func edit(t testing.TB, path string, f func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout})
	require.NoError(t, err)
	require.NoError(t, db.Update(f))
	require.NoError(t, db.Close())
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func writeFile(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.db")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// contents returns the labels of a file, and all of its entries by key.
func contents(t testing.TB, path string) (labels, map[string]int64) {
	t.Helper()
	f, err := boltfile.Open(path, boltfile.Options{LockTimeout: lockTimeout, ReadOnly: true})
	require.NoError(t, err)
	defer f.Close()
	var names labels
	x := journal.New()
	require.NoError(t, f.View(func(tx *bolt.Tx) (err error) {
		if names, err = f.ReadHead(tx); err != nil {
			return err
		}
		for _, name := range boltfile.BucketNames(tx) {
			err := tx.Bucket(format.BucketOf(name)).ForEach(func(k, v []byte) error {
				tat, err := format.Uint64(v)
				x.Put(format.Entry{Name: name, ID: format.DecodeID(k), TAT: int64(tat)})
				return err
			})
			if err != nil {
				return err
			}
		}
		return f.ReadJournal(tx, func(seq uint64, data []byte) error {
			for e, err := range format.Entries(seq, data) {
				if err != nil {
					return err
				}
				x.Put(e.Entry())
			}
			return nil
		})
	}))
	all := make(map[string]int64)
	for e := range x.All() {
		if e.TAT != 0 {
			all[e.Entry().String()] = e.TAT
		}
	}
	return names, all
}

func verify(t testing.TB, path string) (Verified, error) {
	t.Helper()
	n := 0
	v, err := Verify(path, lockTimeout, func(more int) { n += more })
	require.EqualValues(t, v.Buckets, n)
	return v, err
}

func salvageFile(t testing.TB, path string) (to string, v Salvaged, err error) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "new.db")
	v, err = Salvage(path, to, lockTimeout, func(int) error { return nil })
	return to, v, err
}
