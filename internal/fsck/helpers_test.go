package fsck

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/boltstore"
	"github.com/stint-go/stint/internal/format"
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
	require.NoError(t, boltfile.Make(path, boltfile.OS(), func(f *boltfile.File) error {
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

// contents returns the labels of a file, and all of its entries by key.
func contents(t testing.TB, path string) (labels, map[string]int64) {
	t.Helper()
	s, err := boltstore.Open(path, nil, boltstore.Options{ReadOnly: true, LockTimeout: lockTimeout})
	require.NoError(t, err)
	defer s.Close()
	names, all := s.Names(), make(map[string]int64)
	for _, name := range slices.AppendSeq([]uint16{format.Holds}, maps.Keys(names)) {
		for e, err := range s.All(name) {
			require.NoError(t, err)
			all[e.String()] = e.TAT
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
