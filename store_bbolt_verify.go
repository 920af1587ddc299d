package stint

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// Verified is what Verify looked at.
type Verified struct {
	Buckets   int64    // buckets and holds in their places
	Journaled int64    // entries of the journal
	Unsummed  []string // the parts of the file that have no sum, so that a changed TAT there is not seen
}

// Verify reads all of the file, and returns everything that is wrong with it, joined, each of them ErrCorrupt: pages, keys
// and values that are not as docs/format.md has them, and contents that do not come to their sum, as after a flipped bit.
// looked is called now and then, with how many buckets there were since.
//
// It is for a file that was opened with ReadOnly: it is one transaction, for which a file in use might have to wait.
func (s *BoltStore) Verify(looked func(n int)) (Verified, error) {
	if looked == nil {
		looked = func(int) {}
	}
	v := verifier{store: s, looked: looked}
	v.log()
	s.namesMu.Lock() // before the file, as those do who enter names
	unlock := sync.OnceFunc(s.namesMu.Unlock)
	defer unlock()
	err := s.view(func(tx *bolt.Tx) error {
		v.labels = maps.Clone(s.names)
		unlock()
		v.metaPages()
		v.root(tx)
		return nil
	})
	if err != nil {
		v.wrong = append(v.wrong, err)
	}
	return v.Verified, errors.Join(v.wrong...)
}

type verifier struct {
	Verified
	store  *BoltStore
	labels map[Name]string
	looked func(n int)
	wrong  []error
}

// mostWrong is how many mistakes of one bucket are told one by one.
const mostWrong = 20

func (v *verifier) fail(format string, args ...any) {
	v.wrong = append(v.wrong, damaged(v.store.path, format, args...))
}

// metaPages looks at the list of free pages, and at the first two. One that is unsound is not seen when the file is opened, unless something
// was logged since: the other one, which may be that of the commit before, stands in for it.
func (v *verifier) metaPages() {
	for i := range int64(2) {
		var page [metaBytes]byte
		if _, err := v.store.file.file.ReadAt(page[:], i*pageSize); err != nil {
			v.fail("page %d: %v", i, err)
		} else if !isMeta(page[:]) {
			v.fail("page %d is not sound: what was saved last may be lost", i)
		}
	}
	if _, err := checkFile(v.store.file.file); err != nil {
		v.wrong = append(v.wrong, err)
	}
}

func (v *verifier) root(tx *bolt.Tx) {
	if err := v.store.file.check.run(tx.Cursor().Bucket(), nil, 0); err != nil {
		v.wrong = append(v.wrong, err)
		return
	}
	known := map[string]func(b *bolt.Bucket){
		string(metaBucket):    v.meta,
		string(holdsBucket):   func(b *bolt.Bucket) { v.home(b, holdsBucket, checkHold) },
		string(journalBucket): v.journal,
		string(logBucket):     func(*bolt.Bucket) {},
	}
	for name := range v.labels {
		known[string(name.decimal())] = func(b *bolt.Bucket) { v.home(b, name.decimal(), checkStoredID) }
	}
	c := tx.Cursor()
	for k, value := c.First(); k != nil; k, value = c.Next() {
		check := known[string(k)]
		if check == nil || value != nil {
			v.fail("it has a bucket %q, which no stint file has, or no label for it", k)
			continue
		}
		check(tx.Bucket(k))
		delete(known, string(k))
	}
	for _, must := range [][]byte{metaBucket, holdsBucket, journalBucket} {
		if known[string(must)] != nil {
			v.fail("it has no bucket %q", must)
		}
	}
}

func (v *verifier) meta(b *bolt.Bucket) {
	_ = b.ForEach(func(k, _ []byte) error { // the format was looked at when the file was opened
		if !bytes.Equal(k, formatKey) && !bytes.Equal(k, namesBucket) && !bytes.Equal(k, logKey) {
			v.fail("it has a %q in its bucket meta, which no stint file has", k)
		}
		return nil
	})
	v.bucket(b.Bucket(namesBucket), namesBucket, func(_, _ []byte) error { return nil }, entrySum)
}

// bucket goes through a bucket and compares what is in it with its sum.
func (v *verifier) bucket(b *bolt.Bucket, name []byte, check func(k, value []byte) error, sumOf func(name, k, value []byte) uint64) {
	if err := v.store.file.check.run(b, nil, 0); err != nil {
		v.wrong = append(v.wrong, fmt.Errorf("bucket %q: %w", name, err))
		return
	}
	sum, wrong := uint64(sumStart), 0
	c := b.Cursor()
	for k, value := c.First(); k != nil; k, value = c.Next() {
		err := errors.New("it is a bucket")
		if value != nil {
			err = check(k, value)
		}
		if err != nil {
			if wrong++; wrong <= mostWrong {
				v.fail("bucket %q: %q: %v", name, k, err)
			}
		}
		sum += sumOf(name, k, value)
	}
	if wrong > mostWrong {
		v.fail("bucket %q: and %d more", name, wrong-mostWrong)
	}
	switch b.Sequence() {
	case 0:
		v.Unsummed = append(v.Unsummed, string(name))
	case sum:
	default:
		v.fail("bucket %q: what is in it does not come to its sum: a key, a value or a page of it was changed", name)
	}
}

// home goes through a bucket of instants.
func (v *verifier) home(b *bolt.Bucket, name []byte, checkKey func(k []byte) error) {
	const often = 4096
	n := 0
	v.bucket(b, name, func(k, value []byte) error {
		if n++; n%often == 0 {
			v.looked(often)
		}
		if tat, err := decodeUint64(value); err != nil {
			return err
		} else if int64(tat) <= 0 {
			return fmt.Errorf("the instant %d, which is never stored", int64(tat))
		}
		return checkKey(k)
	}, entrySum)
	v.Buckets += int64(n)
	v.looked(n % often)
}

func checkStoredID(k []byte) error { return checkShort(decodeID(k)) }

func checkShort(id string) error {
	if len(id) > maxIDLen {
		return fmt.Errorf("an id of %d bytes, which is never stored", len(id))
	}
	return nil
}

func checkHold(k []byte) error {
	_, err := ParseKey(string(k))
	return err
}

func (v *verifier) journal(b *bolt.Bucket) {
	v.bucket(b, journalBucket, func(k, record []byte) error {
		seq, err := decodeUint64(k)
		if err != nil {
			return err
		}
		return v.record(seq, record)
	}, func(_, k, record []byte) uint64 { return recordSumOf(k, record) })
}

func (v *verifier) record(seq uint64, record []byte) error {
	for e, err := range entries(seq, record) {
		if err != nil {
			return err
		}
		v.Journaled++
		switch {
		case e.name == Unknown:
			err = checkHold(e.id)
		case v.labels[e.name] == "":
			err = fmt.Errorf("an entry of name %d, which has no label", e.name)
		default:
			err = checkShort(string(e.id))
		}
		if err == nil && e.tat < 0 {
			err = fmt.Errorf("the instant %d, which is never stored", e.tat)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// log looks at what is in the log. Its pages were looked at when the file was opened.
func (v *verifier) log() {
	v.store.mu.RLock()
	if v.store.closed {
		v.store.mu.RUnlock()
		return // and the transaction fails
	}
	records, err := v.store.file.logged()
	v.store.mu.RUnlock()
	v.labels = v.store.Names()
	if err != nil {
		v.wrong = append(v.wrong, err)
	}
	for _, r := range records {
		if err := v.record(r.seq, r.record); err != nil {
			v.fail("record %d of the log: %v", r.seq, err)
		}
	}
}
