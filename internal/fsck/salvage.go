package fsck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
)

// Salvaged is what Salvage made of a file.
type Salvaged struct {
	Buckets int64   // buckets and holds in the new file
	Lost    []error // pages, entries and records that could not be read, or made no sense
}

// Salvage reads what can be read of the damaged file at path, and writes it to a
// new file at to, where there must be none. A file of another program or of
// another format is ErrFormat. With a page everything that it leads to is lost,
// which may be all of a limit. What seems sound may still be wrong: an entry
// whose TAT was changed looks like any other.
//
// It calls read now and then with the number of buckets since. The error of read
// ends it, without a new file.
func Salvage(path, to string, lockTimeout time.Duration, read func(n int) error) (Salvaged, error) {
	f, err := open(path, boltfile.Options{LockTimeout: lockTimeout, ReadOnly: true, Short: true})
	if err != nil {
		return Salvaged{}, err
	}
	defer f.Close()
	return salvageTo(f, to, nil, read)
}

func salvageTo(f *boltfile.File, to string, files *boltfile.FS, read func(n int) error) (Salvaged, error) {
	v := salvage{file: f, read: read, labels: make(map[uint16]string), taken: make(map[string]bool),
		places: make(map[uint16][]byte), journal: journal.New()}
	if err := v.plan(); err != nil {
		return Salvaged{}, err
	}
	if err := boltfile.Make(to, files, v.write); err != nil {
		return Salvaged{}, fmt.Errorf("stint: salvage %s: %w", f.Path, err)
	}
	return v.Salvaged, nil
}

// salvage reads the pages itself.
type salvage struct {
	Salvaged
	file  *boltfile.File
	pages uint64
	read  func(n int) error

	labels  map[uint16]string
	taken   map[string]bool   // labels
	places  map[uint16][]byte // the buckets of the database, as they lie in its root
	journal *journal.Index
}

func (v *salvage) lost(format string, args ...any) {
	v.Lost = append(v.Lost, fmt.Errorf(format, args...))
}

// plan reads everything except the entries of the buckets.
func (v *salvage) plan() error {
	root, err := v.root()
	if err != nil {
		return err
	}
	var journal, log, round []byte
	known, strange := false, 0
	for e := range v.page(root, nil, nil, bboltpage.Deepest) {
		name := string(e.key)
		n, isNumber := format.ParseDecimal(e.key)
		switch {
		case !e.bucket:
		case name == string(format.MetaBucket):
			for e := range v.bucket(e.value) {
				switch {
				case string(e.key) == string(format.NamesBucket) && e.bucket:
					v.names(e.value)
				case string(e.key) == string(format.LogKey):
					round = bytes.Clone(e.value)
				}
				if n, err := format.Uint64(e.value); string(e.key) == string(format.FormatKey) && err == nil && n != format.Number {
					return format.OtherNumber(v.file.Path, n)
				}
			}
			known = true
			continue
		case name == string(format.LogBucket):
			log = e.value
			continue
		case name == string(format.JournalBucket):
			journal = e.value
			continue
		case name == string(format.HoldsBucket):
			v.places[format.Holds] = e.value
			continue
		case isNumber:
			v.places[n] = e.value
			continue
		}
		v.lost("%q, which no stint file has", name)
		strange++
	}
	if !known && journal == nil && len(v.places) == 0 && len(v.Lost) == strange { // nothing was lost that may have been stint's
		return format.Foreign(v.file.Path)
	}
	for e := range v.bucket(journal) {
		v.record(e)
	}
	v.log(log, round)
	for name := range v.places {
		v.label(name)
	}
	return nil
}

// root returns the page that leads to all others. If it is damaged, that is the
// one of the transaction before, which a commit leaves as it is.
func (v *salvage) root() (uint64, error) {
	ms, err := bboltpage.ReadMetas(v.file.OS())
	if err != nil {
		return 0, err
	}
	v.pages = ms[0].Pages
	_, err = bboltpage.NewChecker(v.file.OS(), v.file.Path, ms[0]).Page(ms[0].Root, v.pages, nil, nil, make([]byte, bboltpage.Size))
	if err == nil || len(ms) == 1 {
		return ms[0].Root, nil
	}
	v.lost("what the last transaction changed: %w", err)
	return ms[1].Root, nil
}

func (v *salvage) names(table []byte) {
	for e := range v.bucket(table) {
		n, ok := format.ParseDecimal(e.key)
		if !ok || len(e.value) == 0 || e.bucket || v.taken[string(e.value)] {
			v.lost("name %q, with the label %q", e.key, e.value)
			continue
		}
		v.taken[string(e.value)] = true
		v.labels[n] = string(e.value)
	}
}

// label gives a name a label if it has none. The right one can be given to it
// later, its buckets could not.
func (v *salvage) label(name uint16) {
	if name != format.Holds && v.labels[name] == "" {
		v.lost("the label of name %d", name)
		label := fmt.Sprintf("name %d", name)
		for v.taken[label] { // by another number
			label += "?"
		}
		v.taken[label] = true
		v.labels[name] = label
	}
}

func (v *salvage) record(e salvaged) {
	seq, err := format.Uint64(e.key)
	if err != nil || e.bucket {
		v.lost("journal record %q", e.key)
		return
	}
	for raw, err := range format.Entries(seq, e.value) {
		if err != nil {
			v.lost("%w", err)
			return
		}
		if e := raw.Entry(); e.TAT == 0 || v.sane(e) {
			v.label(e.Name)
			v.journal.Put(e)
		}
	}
}

func (v *salvage) log(log, round []byte) {
	for e := range v.bucket(log) {
		n, err := format.ParseRound(round)
		if err == nil && (e.bucket || len(e.value) != format.LogSkip+format.LogSize) {
			err = errors.New("it is not as long as it should be")
		}
		var records, newer []format.Record
		if err == nil {
			records, _, err = format.ReadLog(e.value[format.LogSkip:], n)
			newer = format.ReadNextRound(e.value[format.LogSkip:], n)
		}
		if len(newer) > 0 {
			v.lost("what the last transaction changed: %w", format.ErrOldMeta)
		}
		if err != nil {
			v.lost("the log: %w", err)
		}
		for _, r := range append(records, newer...) {
			v.record(salvaged{key: format.BigEndian(r.Seq), value: r.Data})
		}
	}
}

// sane reports whether stint stores such an entry.
func (v *salvage) sane(e format.Entry) bool {
	err := format.CheckID(e.Name, e.ID)
	if err == nil && e.TAT <= 0 {
		err = fmt.Errorf("the instant %d", e.TAT)
	}
	if err != nil {
		v.lost("%s: %w", e, err)
	}
	return err == nil
}

// write writes what was read to a new file.
func (v *salvage) write(to *boltfile.File) error {
	const most = 4096
	if err := to.Update(func(tx *bolt.Tx) error { return boltfile.LayOut(tx, v.labels) }); err != nil {
		return err
	}
	var batch []format.Entry
	flush := func() error {
		err := to.Update(func(tx *bolt.Tx) error { return boltfile.Apply(tx, nil, slices.Values(batch)) })
		batch = batch[:0]
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(v.places)) {
		n := 0
		for e := range v.bucket(v.places[name]) {
			tat, err := format.Uint64(e.value)
			found := format.Entry{Name: name, ID: format.DecodeID(e.key), TAT: int64(tat)}
			if err != nil || e.bucket {
				v.lost("%s: a value of %d bytes", found, len(e.value))
				continue
			}
			if _, newer := v.journal.Get(name, found.ID); newer || !v.sane(found) {
				continue
			}
			v.Buckets++
			n++
			if batch = append(batch, found); len(batch) == most {
				if err := errors.Join(flush(), v.read(n)); err != nil {
					return err
				}
				n = 0
			}
		}
		if err := v.read(n); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	for _, e := range v.journal.Sorted(nil).Take(v.journal.Len()) {
		if e.TAT != 0 {
			v.Buckets++
			batch = append(batch, e.Entry())
		}
		if len(batch) == most {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// salvaged is an entry as it lies in a page.
type salvaged struct {
	key, value []byte
	bucket     bool
}

// bucket yields the entries of a bucket, given as it lies in its parent.
func (v *salvage) bucket(b []byte) iter.Seq[salvaged] {
	return func(yield func(salvaged) bool) {
		if len(b) < 16 {
			return // none, which was reported
		}
		if root := binary.NativeEndian.Uint64(b); root != 0 {
			v.page(root, nil, nil, bboltpage.Deepest)(yield)
		} else {
			items(b[16:], yield)
		}
	}
}

// page yields the entries of a page and of those that it leads to, without the
// unsound ones.
func (v *salvage) page(id uint64, first, next []byte, deep int) iter.Seq[salvaged] {
	return func(yield func(salvaged) bool) {
		if id < v.pages && v.file.Check.IsSound(id) || deep == 0 {
			v.lost("page %d, to which more than one other leads", id)
			return
		}
		page, err := v.file.Check.Page(id, v.pages, first, next, make([]byte, bboltpage.Size))
		if err != nil {
			v.Lost = append(v.Lost, err)
			return
		}
		if bboltpage.Kind(page) == bboltpage.Leaf {
			items(page, yield)
			return
		}
		for i := range bboltpage.Count(page) {
			lower, upper := bboltpage.Bounds(page, i, first, next)
			for e := range v.page(bboltpage.ItemOf(page, i).Child, lower, upper, deep-1) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func items(page []byte, yield func(salvaged) bool) {
	for i := range bboltpage.Count(page) {
		e := bboltpage.ItemOf(page, i)
		if !yield(salvaged{page[e.At:][:e.Key], page[e.At+e.Key:][:e.Value], e.Flags == bboltpage.BucketFlag}) {
			return
		}
	}
}
