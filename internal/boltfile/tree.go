package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/format"
)

// LayOut writes the buckets and keys that each file of the format has.
func LayOut(tx *bolt.Tx, labels map[uint16]string) error {
	meta, err := tx.CreateBucket(format.MetaBucket)
	if err != nil {
		return err
	}
	_, holdsErr := createSummed(tx, format.HoldsBucket)
	_, journalErr := createSummed(tx, format.JournalBucket)
	_, namesErr := createSummed(meta, format.NamesBucket)
	formatErr := meta.Put(format.FormatKey, format.BigEndian(format.Number))
	if err := errors.Join(holdsErr, journalErr, namesErr, formatErr); err != nil {
		return err
	}
	return PutNames(tx, labels)
}

// createSummed makes a bucket that has a sum.
func createSummed(in interface {
	CreateBucket(name []byte) (*bolt.Bucket, error)
}, name []byte) (*bolt.Bucket, error) {
	b, err := in.CreateBucket(name)
	if err != nil {
		return nil, err
	}
	return b, b.SetSequence(format.SumStart)
}

// NamesTable returns the bucket with the labels.
func NamesTable(tx *bolt.Tx) *bolt.Bucket {
	return tx.Bucket(format.MetaBucket).Bucket(format.NamesBucket)
}

// PutNames writes the labels of numbers, in the order of their keys: bbolt moves
// all keys behind an inserted one.
func PutNames(tx *bolt.Tx, labels map[uint16]string) error {
	for _, name := range slices.SortedFunc(maps.Keys(labels), compareDecimal) {
		err := put(NamesTable(tx), format.NamesBucket, format.Decimal(name), []byte(labels[name]))
		if err != nil {
			return err
		}
	}
	return nil
}

// compareDecimal orders numbers as the names table does.
func compareDecimal(a, b uint16) int { return bytes.Compare(format.Decimal(a), format.Decimal(b)) }

// ReadNames returns the labels in the names table.
func ReadNames(table *bolt.Bucket) (map[uint16]string, error) {
	labels := make(map[uint16]string)
	return labels, table.ForEach(func(k, v []byte) error {
		n, ok := format.ParseDecimal(k)
		if !ok || len(v) == 0 {
			return fmt.Errorf("its names table has the label %q for the number %q", v, k)
		}
		labels[n] = string(v)
		return nil
	})
}

// ReadHead checks that the file is one of stint's, and returns its labels.
func (f *File) ReadHead(tx *bolt.Tx) (labels map[uint16]string, err error) {
	root := tx.Cursor().Bucket()
	if err := f.Check.Run(root, nil, 0); err != nil {
		return nil, err
	}
	meta, journal := root.Bucket(format.MetaBucket), root.Bucket(format.JournalBucket)
	if err := f.Check.Run(meta, nil, 0); err != nil {
		return nil, err
	}
	if meta == nil || meta.Get(format.FormatKey) == nil {
		return nil, format.Foreign(f.Path)
	}
	number, err := format.Uint64(meta.Get(format.FormatKey))
	names := meta.Bucket(format.NamesBucket)
	switch {
	case err != nil:
		return nil, err
	case number != format.Number:
		return nil, format.OtherNumber(f.Path, number)
	case names == nil:
		return nil, errors.New("it has no names table")
	case journal == nil:
		return nil, errors.New("it has no journal")
	}
	if err := errors.Join(f.Check.Run(names, nil, 0), f.Check.Run(journal, nil, 0)); err != nil {
		return nil, err
	}
	return ReadNames(names)
}

// ReadJournal calls read with each record of the journal: first the records in
// the tree, then those in the log.
func (f *File) ReadJournal(tx *bolt.Tx, read func(seq uint64, record []byte) error) error {
	last := uint64(0)
	err := tx.Bucket(format.JournalBucket).ForEach(func(k, record []byte) (err error) {
		if last, err = format.Uint64(k); err != nil {
			return err
		}
		return read(last, record)
	})
	if err != nil {
		return err
	}
	if err := f.Check.Root(tx.Bucket(format.LogBucket)); err != nil { // OpenLog reads the value
		return err
	}
	records, err := f.OpenLog(tx)
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Seq <= last {
			return fmt.Errorf("record %d of its log does not come after its journal, which ends with %d",
				r.Seq, last)
		}
		if err := read(r.Seq, r.Data); err != nil {
			return err
		}
		last = r.Seq
	}
	return nil
}

// BucketNames returns the numbers that have buckets in the tree, with a label or
// without, and format.Holds.
func BucketNames(tx *bolt.Tx) []uint16 {
	names := []uint16{format.Holds}
	c := tx.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if n, ok := format.ParseDecimal(k); ok {
			names = append(names, n)
		}
	}
	return names
}

// PutRecords appends records to the journal in the tree. It skips records that
// a failed commit has already put there.
func PutRecords(tx *bolt.Tx, records iter.Seq[format.Record]) error {
	journal := tx.Bucket(format.JournalBucket)
	journal.FillPercent = 1 // appended, never inserted
	for r := range records {
		key := format.BigEndian(r.Seq)
		if journal.Get(key) != nil {
			continue
		}
		if err := put(journal, format.JournalBucket, key, r.Data); err != nil {
			return err
		}
	}
	return nil
}

// DropRecords deletes a few hundred of the records up to number last, oldest
// first. It reports whether it has deleted them all.
func DropRecords(tx *bolt.Tx, last uint64) (all bool, err error) {
	const most = 512
	journal := tx.Bucket(format.JournalBucket)
	c := journal.Cursor()
	var keys [][]byte // a cursor does not survive a deletion
	for k, _ := c.First(); k != nil && len(keys) < most &&
		binary.BigEndian.Uint64(k) <= last; k, _ = c.Next() {
		keys = append(keys, slices.Clone(k))
	}
	for _, k := range keys {
		if err := put(journal, format.JournalBucket, k, nil); err != nil {
			return false, err
		}
	}
	return len(keys) < most, nil
}

// Apply writes entries to their places in the tree. The caller has sorted them
// by key. check may be nil, in a new file. Entries after all others of such a bucket
// nearly fill its pages, because bbolt would leave the half of each free.
func Apply(tx *bolt.Tx, check *bboltpage.Checker, entries []format.Entry) error {
	var b *bolt.Bucket
	var in []byte // name of the current bucket
	last := -1
	for _, e := range entries {
		if e.IsTime() {
			if err := PutSeen(tx, e.TAT); err != nil {
				return err
			}
			continue
		}
		var err error
		id := format.EncodeID(e.ID)
		if int(e.Name) != last {
			last, in = int(e.Name), format.BucketOf(e.Name)
			if b = tx.Bucket(in); b != nil && check == nil {
				if latest, _ := b.Cursor().Last(); bytes.Compare(latest, id) < 0 {
					b.FillPercent = 0.9
				}
			}
		}
		switch {
		case b != nil:
			err = check.Key(b, id)
		case e.TAT != 0:
			b, err = createSummed(tx, in)
		}
		if err == nil && b != nil {
			var value []byte
			if e.TAT != 0 {
				value = format.BigEndian(uint64(e.TAT))
			}
			err = put(b, in, id, value)
		}
		if err != nil {
			return fmt.Errorf("save %s: %w", e, err)
		}
	}
	return nil
}

// PutSeen writes the time of the last save, unless it is 0.
func PutSeen(tx *bolt.Tx, seen int64) error {
	if seen == 0 {
		return nil
	}
	return tx.Bucket(format.MetaBucket).Put(format.SeenKey, format.SeenValue(seen))
}

// Seen returns the time of the last save, or 0 if the file does not have it.
func Seen(tx *bolt.Tx) (seen int64, err error) {
	v := tx.Bucket(format.MetaBucket).Get(format.SeenKey)
	if v == nil {
		return 0, nil
	}
	return format.ParseSeen(v)
}

// PutClock writes the record of the clock, unless it is empty.
func PutClock(tx *bolt.Tx, record []byte) error {
	if len(record) == 0 {
		return nil
	}
	return tx.Bucket(format.MetaBucket).Put(format.ClockKey, format.ClockValue(record))
}

// Clock returns a copy of the record of the clock, or nil if the file does not
// have it.
func Clock(tx *bolt.Tx) (record []byte, err error) {
	v := tx.Bucket(format.MetaBucket).Get(format.ClockKey)
	if v == nil {
		return nil, nil
	}
	record, err = format.ParseClock(v)
	return slices.Clone(record), err
}

// put puts an entry into a bucket, or deletes it if the value is nil. It also
// updates the bucket's sum, if there is one. The argument bucket is the name of
// b.
func put(b *bolt.Bucket, bucket, key, value []byte) (err error) {
	sum := b.Sequence()
	if old := b.Get(key); old != nil {
		sum -= format.EntrySum(bucket, key, old)
	}
	if value != nil {
		sum += format.EntrySum(bucket, key, value)
		err = b.Put(key, value)
	} else {
		err = b.Delete(key)
	}
	if err != nil || b.Sequence() == 0 {
		return err
	}
	return b.SetSequence(sum)
}

// KeepSum gives a copy of a bucket the sum of the original, if there is one. So
// the sum of the copy also finds damage that the original had.
func KeepSum(to, from *bolt.Bucket) error {
	if to != nil && from != nil && from.Sequence() != 0 {
		return to.SetSequence(from.Sequence())
	}
	return nil
}
