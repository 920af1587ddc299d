package stint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// A commit of bbolt's is two syncs, one after the other. So a small save is appended to a log, with one write and one sync: in
// pages of the file that bbolt has given to the one value of a bucket, which is never put again, so that they stay where
// they are. The log is the end of the journal: the next transaction of bbolt's puts what is in it behind the records in the tree, and
// the log begins at its start again, in another round. A number, which nobody can foresee, tells what was written in this round
// from what is left of others, and from whatever an id may look like.
//
// Each transaction begins a round, and nothing is written in it before that transaction is durable. So a log that begins with the round
// behind that of the tree proves that the meta page of a later transaction was on the disk, and is damaged: the tree is an old one.

var (
	logBucket = []byte("log")
	logKey    = []byte("log") // of the value in it, and of the round in meta
)

const (
	logSize  = 1 << 20
	logBlock = 512 // what a disk writes whole: a save must not touch what was acknowledged before
	// Of the value, what lies in its first page: that one is bbolt's.
	logSkip   = pageSize - pageHeader - pageElement - 3
	logHeader = 8 + 8 + 4 // the round, the sequence number, the length of the record
)

// boltLog is the log of a file. Who writes to the file holds mu: a transaction has the log to itself.
type boltLog struct {
	mu      sync.Mutex
	out     io.WriterAt
	sync    func() error
	begin   int64 // in the file; 0: it has none
	at      int64 // where the next save goes, from there
	round   uint64
	pending []logRecord // what is in it
	refused bool        // it could not be made
	failed  bool        // what is on the disk is not known, or may be of another process: another round has to begin before the next save
}

// logRecord is a record of the journal that is in the log.
type logRecord struct {
	seq    uint64
	record []byte
}

// frame returns a record as it is written to the log.
func (l *boltLog) frame(seq uint64, changes []Change) (frame, record []byte) {
	size := logHeader + 4
	for _, c := range changes {
		size += entrySize(c)
	}
	frame = append(make([]byte, 0, size+logBlock), make([]byte, logHeader+4)...)
	for _, c := range changes {
		frame = appendEntry(frame, c)
	}
	record = frame[logHeader:]
	sealRecord(seq, record)
	binary.BigEndian.PutUint64(frame, l.round)
	binary.BigEndian.PutUint64(frame[8:], seq)
	binary.BigEndian.PutUint32(frame[16:], uint32(len(record)))
	return append(frame, make([]byte, -len(frame)&(logBlock-1))...), record
}

// readFrame returns the record that was written to the start of b in the round, and the bytes that it takes.
func readFrame(b []byte, round uint64) (r logRecord, size int, ok bool) {
	long := int64(binary.BigEndian.Uint32(b[16:]))
	if binary.BigEndian.Uint64(b) != round || long < 4 || long > int64(len(b)-logHeader) {
		return r, 0, false
	}
	r = logRecord{binary.BigEndian.Uint64(b[8:]), b[logHeader:][:long]}
	size = logHeader + int(long)
	return r, size + -size&(logBlock-1), binary.BigEndian.Uint32(r.record) == recordSum(r.seq, r.record[4:])
}

// readLog returns the records of a round, and where the next one goes. The last save may have been cut short: nobody was told
// that it is durable. But where one is missing before others there is an error beside what is left.
func readLog(b []byte, round uint64) (records []logRecord, end int, err error) {
	for at := 0; at < len(b); {
		r, size, ok := readFrame(b[at:], round)
		if !ok {
			at += logBlock
			continue
		}
		if at != end || len(records) > 0 && r.seq <= records[len(records)-1].seq {
			err = fmt.Errorf("%w: a record of the log is damaged: number %d does not stand right behind the first %d", ErrCorrupt, r.seq, len(records))
		}
		at += size
		end = at
		records = append(records, r)
	}
	return records, end, err
}

// nextRound returns a round that is known to come behind another, and that nobody can foresee: half of it counts, half is random.
func nextRound(round uint64) uint64 { return (round>>32+1)<<32 | uint64(rand.Uint32()) }

// readNextRound returns what was written in the round behind one. Only where the log begins is it looked for: what is behind may be of an id.
func readNextRound(b []byte, round uint64) (records []logRecord) {
	next := binary.BigEndian.Uint64(b)
	if _, _, ok := readFrame(b, next); ok && uint32(next>>32) == uint32(round>>32)+1 {
		records, _, _ = readLog(b, next)
	}
	return records
}

var errOldMeta = errors.New("the log is of a later transaction than the first pages, one of which is damaged")

func roundValue(round uint64) []byte {
	v := append(make([]byte, 4), bigEndian(round)...)
	sealRecord(0, v)
	return v
}

func decodeRound(v []byte) (round uint64, err error) {
	if len(v) != 12 || binary.BigEndian.Uint32(v) != recordSum(0, v[4:]) {
		return 0, fmt.Errorf("%w: the round of its log is damaged", ErrCorrupt)
	}
	return binary.BigEndian.Uint64(v[4:]), nil
}

// openLog looks for the log, and returns what is in it. The bucket's pages were checked.
func (f *boltFile) openLog(tx *bolt.Tx) ([]logRecord, error) {
	l := &f.log
	value := tx.Bucket(metaBucket).Get(logKey)
	b := tx.Bucket(logBucket)
	if b == nil && value == nil {
		return nil, nil
	} else if b == nil || value == nil {
		return nil, damaged(f.path, "it has half of a log")
	}
	var page [pageSize]byte
	if _, err := f.file.ReadAt(page[:], int64(b.RootPage())*pageSize); err != nil {
		return nil, err
	}
	if b.RootPage() == 0 || pageKind(page[:]) != leafPage || pageCount(page[:]) != 1 ||
		itemOf(page[:], 0) != (pageItem{0, pageHeader + pageElement, uint64(len(logKey)), logSkip + logSize, 0}) {
		return nil, damaged(f.path, "its log is not where it should be")
	}
	var err error
	if l.round, err = decodeRound(value); err != nil {
		return nil, err
	}
	l.begin = int64(b.RootPage()+1) * pageSize
	region := make([]byte, logSize)
	if _, err := f.file.ReadAt(region, l.begin); err != nil {
		return nil, err
	}
	if len(readNextRound(region, l.round)) > 0 {
		return nil, damaged(f.path, "%v", errOldMeta)
	}
	records, end, err := readLog(region, l.round)
	l.pending, l.at = records, int64(end)
	return records, err
}

// logged returns what is in the log.
func (f *boltFile) logged() (records []logRecord, err error) {
	f.log.mu.Lock() // before the transaction: one that writes may wait for those that read
	defer f.log.mu.Unlock()
	err = f.view(func(tx *bolt.Tx) error {
		if f.log.begin == 0 {
			return nil
		}
		region := make([]byte, logSize)
		if _, err := f.file.ReadAt(region, f.log.begin); err != nil {
			return err
		}
		records, _, err = readLog(region, f.log.round)
		return err
	})
	return records, err
}

// makeLog gives the file a log, once. Where that fails there is none: what is saved goes to the tree.
func (f *boltFile) makeLog() {
	f.log.mu.Lock()
	made := f.log.begin > 0 || f.log.refused
	f.log.mu.Unlock()
	if made {
		return
	}
	err := f.update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket(logBucket)
		if err != nil {
			return err
		}
		if err := b.Put(logKey, make([]byte, logSkip+logSize)); err != nil {
			return err
		}
		return tx.Bucket(metaBucket).Put(logKey, roundValue(rand.Uint64()))
	})
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if err == nil {
		err = f.view(func(tx *bolt.Tx) error {
			_, err := f.openLog(tx)
			return err
		})
	}
	f.log.refused = err != nil
	f.log.failed = true // the older meta page does not know of it: the next save is a transaction, so that both do
}

// appendLog appends a save to the log, if there is room for it.
//
// After a write or a sync that failed, nobody knows what is on the disk, and what the system says of it later need not be so:
// it takes a page whose write has failed for written. So this round has ended. The next save is a transaction, which
// writes what is in the log anew, from memory; until one has succeeded, none is acknowledged.
func (f *boltFile) appendLog(seq uint64, changes []Change) (done bool, n int, err error) {
	l := &f.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begin == 0 || l.failed {
		return false, 0, nil
	}
	frame, record := l.frame(seq, changes)
	if l.at+int64(len(frame)) > logSize {
		return false, 0, nil
	}
	err = f.guard(func() error {
		if _, err := l.out.WriteAt(frame, l.begin+l.at); err != nil {
			return err
		}
		return l.sync()
	})
	if err != nil {
		l.failed = true
		return true, len(record), fmt.Errorf("append to the log of %s: %w", f.path, err)
	}
	l.at += int64(len(frame))
	l.pending = append(l.pending, logRecord{seq, record})
	return true, len(record), nil
}

// isLogged reports whether there is something in the log.
func (f *boltFile) isLogged() bool {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return len(f.log.pending) > 0 || f.log.failed
}

// takeOver puts what is in the log into the journal, and begins another round.
func (l *boltLog) takeOver(tx *bolt.Tx) (round uint64, err error) {
	if l.begin == 0 {
		return l.round, nil
	}
	meta := tx.Bucket(metaBucket)
	if round, err = decodeRound(meta.Get(logKey)); err != nil { // not l.round: a commit that failed may be in force
		return 0, err
	}
	round = nextRound(round)
	if err := meta.Put(logKey, roundValue(round)); err != nil || len(l.pending) == 0 {
		return round, err
	}
	journal := tx.Bucket(journalBucket)
	journal.FillPercent = 1 // appended, never inserted
	var sum uint64
	for _, r := range l.pending {
		if journal.Get(bigEndian(r.seq)) != nil { // a commit that failed has brought it all the same
			continue
		}
		if err := journal.Put(bigEndian(r.seq), r.record); err != nil {
			return 0, err
		}
		sum += recordSumOf(bigEndian(r.seq), r.record)
	}
	return round, addSum(journal, sum)
}

// ended notes how the commit of a transaction ended. One that failed may have begun the round all the same.
func (l *boltLog) ended(round uint64, err error) {
	if err != nil {
		l.failed = true
	} else if l.failed || round != l.round {
		l.round, l.at, l.failed = round, 0, false
		l.pending = slices.Delete(l.pending, 0, len(l.pending))
	}
}
