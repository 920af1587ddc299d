package fsck

import (
	"errors"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

// Verified counts what Verify read.
type Verified struct {
	Buckets   int64    // buckets and holds in their places
	Journaled int64    // entries of the journal
	Unsummed  []string // buckets of the database without a sum
}

// Verify reads all of the file at path, and returns all damage in it as joined
// errors. Each of them is ErrCorrupt: a page, a key or a value is not as
// docs/format.md says, or a bucket does not match its sum. In a bucket without
// a sum it cannot notice a changed TAT. It calls read from time to time with
// the number of buckets since the last call.
func Verify(path string, lockTimeout time.Duration, read func(n int)) (v Verified, err error) {
	const often = 4096
	f, err := open(path, boltfile.Options{LockTimeout: lockTimeout, ReadOnly: true})
	if err != nil {
		return v, err
	}
	defer f.Close()
	r := newReader(f, true)
	if err := f.View(r.asOpened); err != nil {
		return v, f.Explain(err)
	}
	r.metaPages()
	for _, name := range slices.Sorted(maps.Keys(r.places)) {
		for range r.entries(name) {
			if r.Buckets++; r.Buckets%often == 0 {
				read(often)
			}
		}
	}
	read(int(r.Buckets % often))
	slices.Sort(r.Unsummed)
	return r.Verified, errors.Join(r.lost...)
}

// asOpened reads the file in the same way as a store that opens it. It also
// checks the records of the log.
func (r *reader) asOpened(tx *bolt.Tx) error {
	if _, err := r.file.ReadHead(tx); err != nil {
		return err
	}
	if err := r.plan(); err != nil {
		return err
	}
	err := r.file.ReadJournal(tx, func(seq uint64, data []byte) error {
		key := format.BigEndian(seq)
		if tx.Bucket(format.JournalBucket).Get(key) == nil {
			r.record(item{key: key, value: data})
		}
		return nil
	})
	if err != nil {
		r.lost = append(r.lost, r.file.Explain(err))
	}
	if r.places[format.Holds] == nil {
		r.lose("it has no bucket %q", format.HoldsBucket)
	}
	return nil
}

// metaPages checks the first two pages and the list of free pages. A store that
// opens a file notices an unsound meta page only if the log has later records.
// Otherwise bbolt uses the other meta page.
func (r *reader) metaPages() {
	ms, err := bboltpage.ReadMetas(r.file.OS())
	if err == nil && len(ms) == 1 {
		r.lose("page %d is not sound: the last save may be lost", 1-ms[0].Place)
	} else if err == nil && ms[0].Tx-ms[1].Tx != 1 {
		r.lose("its first two pages are of transactions %d and %d, which do not follow each other: one of them is "+
			"of another time, or of another file", ms[0].Tx, ms[1].Tx)
	}
	if _, err = bboltpage.CheckFile(r.file.OS()); err != nil {
		r.lost = append(r.lost, err)
	}
}
