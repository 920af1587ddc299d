package fsck

import (
	"bytes"
	"errors"
	"fmt"
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
func Verify(path string, lockTimeout time.Duration, read func(n int)) (Verified, error) {
	f, err := open(path, boltfile.Options{LockTimeout: lockTimeout, ReadOnly: true})
	if err != nil {
		return Verified{}, err
	}
	defer f.Close()
	v := verifier{file: f, read: read}
	if err := f.View(v.run); err != nil {
		v.wrong = append(v.wrong, err)
	}
	return v.Verified, errors.Join(v.wrong...)
}

func open(path string, o boltfile.Options) (*boltfile.File, error) {
	path, err := boltfile.Resolve(path)
	if err == nil {
		err = boltfile.CheckRegular(path)
	}
	if err != nil {
		return nil, fmt.Errorf("stint: %w", err)
	}
	return boltfile.Open(path, o)
}

type verifier struct {
	Verified
	file   *boltfile.File
	labels map[uint16]string
	read   func(n int)
	wrong  []error
}

// mostWrong is how many mistakes of one bucket are reported one by one.
const mostWrong = 20

func (v *verifier) fail(text string, args ...any) {
	v.wrong = append(v.wrong, format.Damaged(v.file.Path, text, args...))
}

func (v *verifier) run(tx *bolt.Tx) (err error) {
	if v.labels, err = v.file.ReadHead(tx); err != nil {
		return v.file.Explain(err)
	}
	err = v.file.ReadJournal(tx, func(seq uint64, data []byte) error {
		if tx.Bucket(format.JournalBucket).Get(format.BigEndian(seq)) != nil {
			return nil // bucket checks it
		}
		if err := v.record(seq, data); err != nil {
			v.fail("record %d of the log: %v", seq, err)
		}
		return nil
	})
	if err != nil {
		v.wrong = append(v.wrong, v.file.Explain(err))
	}
	v.metaPages()
	v.root(tx)
	return nil
}

// metaPages checks the first two pages and the list of free pages. One unsound
// meta page is not noticed when the file is opened, unless something was logged
// since: the other one stands in for it.
func (v *verifier) metaPages() {
	for i := range int64(2) {
		var page [bboltpage.MetaBytes]byte
		if err := bboltpage.ReadAt(v.file.OS(), page[:], i*bboltpage.Size); err != nil {
			v.fail("page %d: %v", i, err)
		} else if !bboltpage.IsMeta(page[:]) {
			v.fail("page %d is not sound: what was saved last may be lost", i)
		}
	}
	if _, err := bboltpage.CheckFile(v.file.OS()); err != nil {
		v.wrong = append(v.wrong, err)
	}
}

func (v *verifier) root(tx *bolt.Tx) {
	known := map[string]func(b *bolt.Bucket){
		string(format.MetaBucket):    v.meta,
		string(format.HoldsBucket):   func(b *bolt.Bucket) { v.entries(b, format.Holds) },
		string(format.JournalBucket): v.journal,
		string(format.LogBucket):     func(*bolt.Bucket) {},
	}
	for name := range v.labels {
		known[string(format.Decimal(name))] = func(b *bolt.Bucket) { v.entries(b, name) }
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
	for _, must := range [][]byte{format.MetaBucket, format.HoldsBucket, format.JournalBucket} {
		if known[string(must)] != nil {
			v.fail("it has no bucket %q", must)
		}
	}
}

func (v *verifier) meta(b *bolt.Bucket) {
	_ = b.ForEach(func(k, _ []byte) error { // ReadHead has checked the format
		if !bytes.Equal(k, format.FormatKey) && !bytes.Equal(k, format.NamesBucket) && !bytes.Equal(k, format.LogKey) {
			v.fail("it has a %q in its bucket meta, which no stint file has", k)
		}
		return nil
	})
	v.bucket(b.Bucket(format.NamesBucket), format.NamesBucket, func(_, _ []byte) error { return nil }, format.EntrySum)
}

// bucket checks each entry of a bucket, and compares all of them with its sum.
func (v *verifier) bucket(b *bolt.Bucket, name []byte, check func(k, value []byte) error,
	sumOf func(name, k, value []byte) uint64) {
	if err := v.file.Check.Run(b, nil, 0); err != nil {
		v.wrong = append(v.wrong, fmt.Errorf("bucket %q: %w", name, err))
		return
	}
	sum, wrong := format.SumStart, 0
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

// entries checks the buckets of a limit, or the holds.
func (v *verifier) entries(b *bolt.Bucket, name uint16) {
	const often = 4096
	n := 0
	v.bucket(b, format.BucketOf(name), func(k, value []byte) error {
		if n++; n%often == 0 {
			v.read(often)
		}
		if tat, err := format.Uint64(value); err != nil {
			return err
		} else if int64(tat) <= 0 {
			return fmt.Errorf("the instant %d, which is never stored", int64(tat))
		}
		return format.CheckID(name, format.DecodeID(k))
	}, format.EntrySum)
	v.Buckets += int64(n)
	v.read(n % often)
}

func (v *verifier) journal(b *bolt.Bucket) {
	v.bucket(b, format.JournalBucket, func(k, record []byte) error {
		seq, err := format.Uint64(k)
		if err != nil {
			return err
		}
		return v.record(seq, record)
	}, func(_, k, record []byte) uint64 { return format.RecordSum(k, record) })
}

func (v *verifier) record(seq uint64, record []byte) error {
	for e, err := range format.Entries(seq, record) {
		if err != nil {
			return err
		}
		v.Journaled++
		if e.Name != format.Holds && v.labels[e.Name] == "" {
			return fmt.Errorf("an entry of name %d, which has no label", e.Name)
		}
		if err := format.CheckID(e.Name, string(e.ID)); err != nil {
			return err
		}
		if e.TAT < 0 {
			return fmt.Errorf("the instant %d, which is never stored", e.TAT)
		}
	}
	return nil
}
