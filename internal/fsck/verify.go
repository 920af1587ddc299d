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

// Verified is what Verify read.
type Verified struct {
	Buckets   int64    // buckets and holds in their places
	Journaled int64    // entries of the journal
	Unsummed  []string // buckets of the database without a sum: a changed TAT there is not found
}

// Verify reads all of the file at path, and returns everything that is wrong
// with it, joined. Each of the errors is ErrCorrupt: a page, a key or a value
// that is not as docs/format.md says, or a bucket that does not come to its
// sum. It calls read now and then with the number of buckets since.
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
			if v.Buckets++; v.Buckets%often == 0 {
				read(often)
			}
		}
	}
	read(int(v.Buckets % often))
	slices.Sort(r.unsummed)
	v.Journaled, v.Unsummed = r.journaled, r.unsummed
	return v, errors.Join(r.lost...)
}

// asOpened reads what a store reads when it opens the file, as it reads it. The
// records of the log are checked here.
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

// metaPages checks the first two pages and the list of free pages. One unsound
// meta page is not noticed when the file is opened, unless something was logged
// since: the other one stands in for it.
func (r *reader) metaPages() {
	ms, err := bboltpage.ReadMetas(r.file.OS())
	if err == nil && len(ms) == 1 {
		r.lose("page %d is not sound: what was saved last may be lost", 1-ms[0].Place)
	}
	if _, err = bboltpage.CheckFile(r.file.OS()); err != nil {
		r.lost = append(r.lost, err)
	}
}
