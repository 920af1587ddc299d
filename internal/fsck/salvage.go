package fsck

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
)

// Salvaged is what Salvage made of a file.
type Salvaged struct {
	Buckets int64   // buckets and holds in the new file
	Lost    []error // pages, entries and records that could not be read, or made no sense
}

// Salvage reads what can be read of the damaged file at path, and writes it to
// a new file at to. There must be no file at to. A file of another program or
// of another format is ErrFormat. With a page everything that it leads to is
// lost, which may be all of a limit. What seems sound may still be wrong: an
// entry whose TAT was changed looks like any other.
//
// It calls read now and then with the number of buckets since. The error of read
// ends it, without a new file.
func Salvage(path, to string, lockTimeout time.Duration,
	read func(n int) error) (s Salvaged, err error) {
	f, err := open(path, boltfile.Options{LockTimeout: lockTimeout, ReadOnly: true, Short: true})
	if err != nil {
		return s, err
	}
	defer f.Close()
	r := newReader(f, false)
	if err := r.plan(); err != nil {
		return s, err
	}
	err = boltfile.Make(to, boltfile.OS(), func(f *boltfile.File) error {
		s.Buckets, err = r.writeTo(f, read)
		return err
	})
	if err != nil {
		return Salvaged{}, fmt.Errorf("stint: salvage %s: %w", f.Path, err)
	}
	s.Lost = r.lost
	return s, nil
}

// writeTo writes what was read to a new file, and returns how many buckets that
// are.
func (r *reader) writeTo(to *boltfile.File, read func(n int) error) (n int64, err error) {
	err = to.Update(func(tx *bolt.Tx) error { return boltfile.LayOut(tx, r.labels) })
	if err != nil {
		return 0, err
	}
	var batch []format.Entry
	add := func(e format.Entry, most int) error {
		if e.TAT != 0 {
			n++
			batch = append(batch, e)
		}
		if len(batch) < most {
			return nil
		}
		err := to.Update(func(tx *bolt.Tx) error {
			return boltfile.Apply(tx, nil, batch)
		})
		err = errors.Join(err, read(len(batch)))
		batch = batch[:0]
		return err
	}
	const most = 4096
	for _, name := range slices.Sorted(maps.Keys(r.places)) {
		for e := range r.entries(name) {
			if _, newer := r.journal.Get(name, e.ID); newer {
				continue
			}
			if err := add(e, most); err != nil {
				return 0, err
			}
		}
	}
	for _, e := range r.journal.Sorted(nil).Take(r.journal.Len()) {
		if err := add(e.Entry(), most); err != nil {
			return 0, err
		}
	}
	return n, add(format.Entry{}, 0)
}
