package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/format"
)

// commitLog is the log in a file. A small save is appended to it with one write
// and one sync; a commit of bbolt needs two of each. The log lies in the pages
// of the one value of a bucket. stint never changes that value through bbolt,
// so the pages stay in their places.
//
// The log is the end of the journal. The next transaction copies its records to
// the journal in the tree. Then the log is empty, and a new round begins at its
// start. The number of the round distinguishes its records from those of other
// rounds, and from the bytes of an id.
//
// Each transaction begins a round, and nothing is written to the log in that
// round before the transaction is durable. So if the log begins with a later
// round than the one in the tree, a later transaction was durable, and its meta
// page is damaged.
type commitLog struct {
	mu sync.Mutex
	LogState
	failed bool // state on the disk is unknown: the next save is a transaction
}

// LogState is the part of the log's state that tests read.
type LogState struct {
	Begin   int64 // offset in the file; 0 if the file has no log
	At      int64 // offset of the next record, from Begin
	Round   uint64
	Pending []format.Record // the records in the log
	Refused bool            // the log could not be made
}

// LogState returns the state of the log.
func (f *File) LogState() LogState {
	l := &f.commitLog
	l.mu.Lock()
	defer l.mu.Unlock()
	state := l.LogState
	state.Pending = slices.Clone(l.Pending)
	return state
}

// OpenLog finds the log, and returns its records. The caller has checked the
// first page of its bucket.
func (f *File) OpenLog(tx *bolt.Tx) ([]format.Record, error) {
	l := &f.commitLog
	value := tx.Bucket(format.MetaBucket).Get(format.LogKey)
	b := tx.Bucket(format.LogBucket)
	if b == nil && value == nil {
		return nil, nil
	} else if b == nil || value == nil {
		return nil, format.Damaged(f.Path, "it has half of a log")
	}
	var page [bboltpage.Size]byte
	if err := bboltpage.ReadAt(f.file, page[:], int64(b.RootPage())*bboltpage.Size); err != nil {
		return nil, err
	}
	want := bboltpage.Item{At: bboltpage.Header + bboltpage.Element,
		Key: uint64(len(format.LogKey)), Value: format.LogSkip + format.LogSize}
	if b.RootPage() == 0 || bboltpage.Kind(page[:]) != bboltpage.Leaf ||
		bboltpage.Count(page[:]) != 1 || bboltpage.ItemOf(page[:], 0) != want {
		return nil, format.Damaged(f.Path, "its log is not where it should be")
	}
	var err error
	if l.Round, err = format.ParseRound(value); err != nil {
		return nil, err
	}
	l.Begin = int64(b.RootPage()+1) * bboltpage.Size
	region := regions.Get().(*[format.LogSize]byte)
	defer regions.Put(region)
	if err := bboltpage.ReadAt(f.file, region[:], l.Begin); err != nil {
		return nil, err
	}
	if len(format.ReadLaterRound(region[:], l.Round)) > 0 {
		return nil, format.Damaged(f.Path, "%w", format.ErrOldMeta)
	}
	records, end, err := format.ReadLog(region[:], l.Round)
	for i, r := range records {
		records[i].Data = bytes.Clone(r.Data)
	}
	l.Pending, l.At = records, int64(end)
	return records, err
}

var regions = sync.Pool{New: func() any { return new([format.LogSize]byte) }}

// noLog is the value of an empty log. bbolt reads it, and nothing writes to it,
// so it takes no memory.
var noLog [format.LogSkip + format.LogSize]byte

// MakeLog gives the file a log if it has none. If that fails, the file has no
// log, and saves go to the tree.
func (f *File) MakeLog() {
	l := &f.commitLog
	l.mu.Lock()
	made := l.Begin > 0 || l.Refused
	l.mu.Unlock()
	if made {
		return
	}
	err := f.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket(format.LogBucket)
		if err != nil {
			return err
		}
		return errors.Join(b.Put(format.LogKey, noLog[:]),
			tx.Bucket(format.MetaBucket).Put(format.LogKey, format.RoundValue(rand.Uint64())))
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = f.View(func(tx *bolt.Tx) error {
			_, err := f.OpenLog(tx)
			return err
		})
	}
	l.Refused = err != nil
	l.failed = true // the next save is a transaction, so the trees of both meta pages have a log
}

// Append appends entries to the log as one record, and returns the record's
// length. If the log has no space, it writes nothing and returns 0.
//
// After a failed write or sync the state of the disk is unknown: the operating
// system may report the page as written. So the round has ended. The next save
// is a transaction, which writes the records of the log again from memory.
// Until a transaction has succeeded, no save is acknowledged.
func (f *File) Append(seq uint64, entries []format.Entry) (n int, err error) {
	if err := f.syncName(); err != nil {
		return 0, err
	}
	l := &f.commitLog
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Begin == 0 || l.failed {
		return 0, nil
	}
	if err := f.guard(f.whole); err != nil {
		return 0, err
	}
	frame, record := format.Frame(l.Round, seq, entries)
	if l.At+int64(len(frame)) > format.LogSize {
		return 0, nil
	}
	err = f.guard(func() error {
		if _, err := f.fs.WriteAt(f.file, frame, l.Begin+l.At); err != nil {
			return err
		}
		return f.fs.SyncFile(f.file)
	})
	if err != nil {
		l.failed = true
		return len(record), fmt.Errorf("append to the log of %s: %w", f.Path, err)
	}
	l.At += int64(len(frame))
	l.Pending = append(l.Pending, format.Record{Seq: seq, Data: record})
	return len(record), nil
}

// EmptyLog moves the records of the log into the tree.
func (f *File) EmptyLog() error {
	if err := f.syncName(); err != nil {
		return err
	}
	f.commitLog.mu.Lock()
	logged := len(f.commitLog.Pending) > 0 || f.commitLog.failed
	f.commitLog.mu.Unlock()
	if !logged {
		return nil
	}
	return f.Update(func(*bolt.Tx) error { return nil })
}

// takeOver copies the records of the log to the journal in the tree, and begins
// another round.
func (l *commitLog) takeOver(tx *bolt.Tx) (round uint64, err error) {
	if l.Begin == 0 {
		return l.Round, nil
	}
	meta := tx.Bucket(format.MetaBucket)
	// This is the round in the file, not l.Round: a failed commit may be in force.
	if round, err = format.ParseRound(meta.Get(format.LogKey)); err != nil {
		return 0, err
	}
	round = format.NextRound(round)
	if err := meta.Put(format.LogKey, format.RoundValue(round)); err != nil || len(l.Pending) == 0 {
		return round, err
	}
	return round, PutRecords(tx, slices.Values(l.Pending))
}

// ended records the end of a transaction. A failed commit may be in force, with
// the new round.
func (l *commitLog) ended(round uint64, err error) {
	if err != nil {
		l.failed = true
	} else if l.failed || round != l.Round {
		l.Round, l.At, l.failed = round, 0, false
		l.Pending = slices.Delete(l.Pending, 0, len(l.Pending))
	}
}
