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

// Salvaged is the result of Salvage.
type Salvaged struct {
	Buckets int64   // buckets and holds in the new file
	Lost    []error // pages, entries and records that are missing or invalid
}

// Salvage copies the readable part of the damaged file at path to a new file at
// to. There must be no file at to. The error is ErrFormat if the file belongs
// to another program or has another format. A damaged page loses all pages
// below it, in the worst case all buckets of a limit. Salvage cannot notice an
// entry whose TAT was changed.
//
// It calls read from time to time with the number of buckets since the last
// call. An error of read ends Salvage, without a new file.
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

// writeTo writes all entries to a new file, and returns their number.
func (r *reader) writeTo(to *boltfile.File, read func(n int) error) (n int64, err error) {
	err = to.Update(func(tx *bolt.Tx) error {
		return errors.Join(boltfile.LayOut(tx, r.labels), boltfile.PutSeen(tx, r.seen), boltfile.PutClock(tx, r.clock))
	})
	if err != nil {
		return 0, err
	}
	var batch []format.Entry
	add := func(e format.Entry, most int) error {
		if e.TAT != 0 {
			if !e.IsTime() {
				n++
			}
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
