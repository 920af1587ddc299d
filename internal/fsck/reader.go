package fsck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
)

// reader reads the pages of a file itself, and goes on after damage.
type reader struct {
	file  *boltfile.File
	check *bboltpage.Checker // knows which pages were read
	pages uint64
	sums  bool // Verify: check the sums, leave the log out, and keep no entries

	Verified
	lost    []error // findings
	labels  map[uint16]string
	seen    int64             // time of the last save, as stored in meta
	clock   []byte            // record of the clock
	taken   map[string]bool   // labels in use
	places  map[uint16][]byte // each name's bucket, as stored in its parent
	journal *journal.Index
}

// mostLost is the number of findings in one bucket that Verify reports one by
// one.
const mostLost = 20

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

func newReader(f *boltfile.File, sums bool) *reader {
	return &reader{file: f, sums: sums, labels: make(map[uint16]string), taken: make(map[string]bool),
		places: make(map[uint16][]byte), journal: journal.New()}
}

func (r *reader) lose(text string, args ...any) {
	r.lost = append(r.lost, format.Damaged(r.file.Path, text, args...))
}

// plan reads everything except the entries of the buckets.
func (r *reader) plan() error {
	root, err := r.root()
	if err != nil {
		return err
	}
	var meta, journal, log, round []byte
	strange := 0
	for e := range r.tree(root) {
		n, isNumber := format.ParseDecimal(e.key)
		switch key := string(e.key); {
		case e.bucket && key == string(format.MetaBucket):
			meta = e.value
		case e.bucket && key == string(format.LogBucket):
			log = e.value
		case e.bucket && key == string(format.JournalBucket):
			journal = e.value
		case e.bucket && key == string(format.HoldsBucket):
			r.places[format.Holds] = e.value
		case e.bucket && isNumber:
			r.places[n] = e.value
		default:
			r.lose("unknown key %q", key)
			strange++
		}
	}
	if meta == nil && journal == nil && len(r.places) == 0 && len(r.lost) == strange {
		return format.Foreign(r.file.Path) // every key is unknown, and nothing else was lost
	}
	for e := range r.bucket(nil, meta) {
		switch key := string(e.key); {
		case e.bucket && key == string(format.NamesBucket):
			r.names(e.value)
		case !e.bucket && key == string(format.LogKey):
			round = bytes.Clone(e.value)
		case !e.bucket && key == string(format.SeenKey):
			var err error
			if r.seen, err = format.ParseSeen(e.value); err != nil {
				r.lose("its bucket meta: %v", err)
			}
		case !e.bucket && key == string(format.ClockKey):
			record, err := format.ParseClock(e.value)
			if err != nil {
				r.lose("its bucket meta: %v", err)
			}
			r.clock = bytes.Clone(record)
		case !e.bucket && key == string(format.FormatKey):
			if n, err := format.Uint64(e.value); err == nil && n != format.Number {
				return format.OtherNumber(r.file.Path, n)
			}
		default:
			r.lose("unknown key %q in its bucket meta", key)
		}
	}
	for e := range r.bucket(format.JournalBucket, journal) {
		r.record(e)
	}
	if !r.sums {
		r.log(log, round)
	}
	for name := range r.places {
		r.label(name)
	}
	return nil
}

// root returns the page that leads to all others. If that page is damaged, it
// returns the root of the transaction before, which is still in the file.
func (r *reader) root() (uint64, error) {
	ms, err := bboltpage.ReadMetas(r.file.OS())
	if err != nil {
		return 0, err
	}
	r.pages = ms[0].Pages
	newChecker := func() *bboltpage.Checker {
		return bboltpage.NewChecker(r.file.OS(), r.file.Path, ms[0])
	}
	r.check = newChecker()
	_, err = newChecker().Page(ms[0].Root, r.pages, nil, nil, make([]byte, bboltpage.Size))
	if err == nil || len(ms) == 1 {
		return ms[0].Root, nil
	}
	r.lost = append(r.lost, fmt.Errorf("the changes of the last transaction are lost: %w", err))
	return ms[1].Root, nil
}

func (r *reader) names(table []byte) {
	for e := range r.bucket(format.NamesBucket, table) {
		n, ok := format.ParseDecimal(e.key)
		if !ok || len(e.value) == 0 || e.bucket || r.taken[string(e.value)] {
			r.lose("its names table has the label %q for the number %q", e.value, e.key)
			continue
		}
		r.taken[string(e.value)] = true
		r.labels[n] = string(e.value)
	}
}

// label gives a name a label if it has none, so that its buckets are kept. The
// user can correct the label later.
func (r *reader) label(name uint16) {
	if name != format.Holds && r.labels[name] == "" {
		r.lose("name %d has no label", name)
		label := fmt.Sprintf("name %d", name)
		for r.taken[label] { // another name has it
			label += "?"
		}
		r.taken[label] = true
		r.labels[name] = label
	}
}

func (r *reader) record(e item) {
	seq, err := format.Uint64(e.key)
	if err != nil || e.bucket {
		r.lose("its journal has the key %q, which is not the number of a record", e.key)
		return
	}
	for raw, err := range format.Entries(seq, e.value) {
		if err != nil {
			r.lose("%v", err)
			return
		}
		r.Journaled++
		if e := raw.Entry(); r.sane(e, 0) {
			r.label(e.Name)
			if !r.sums {
				r.journal.Put(e)
			}
		}
	}
}

func (r *reader) log(log, round []byte) {
	for e := range r.bucket(nil, log) {
		n, err := format.ParseRound(round)
		if err == nil && (e.bucket || len(e.value) != format.LogSkip+format.LogSize) {
			err = errors.New("its length is wrong")
		}
		if err != nil {
			r.lose("the log: %v", err)
			continue
		}
		newer := format.ReadLaterRound(e.value[format.LogSkip:], n)
		if len(newer) > 0 {
			r.lose("the changes of the last transaction are lost: %w", format.ErrOldMeta)
		}
		records, _, err := format.ReadLog(e.value[format.LogSkip:], n)
		if err != nil {
			r.lose("the log: %v", err)
		}
		for _, rec := range append(records, newer...) {
			r.record(item{key: format.BigEndian(rec.Seq), value: rec.Data})
		}
	}
}

// sane reports whether stint could have stored the entry. The TAT must not be
// below least.
func (r *reader) sane(e format.Entry, least int64) bool {
	err := format.CheckID(e.Name, e.ID)
	if err == nil && e.TAT < least {
		err = fmt.Errorf("its TAT is %d, want at least %d", e.TAT, least)
	}
	if err != nil {
		r.lose("%s: %v", e, err)
	}
	return err == nil
}

// entries yields the sane entries of a name.
func (r *reader) entries(name uint16) iter.Seq[format.Entry] {
	return func(yield func(format.Entry) bool) {
		for e := range r.bucket(format.BucketOf(name), r.places[name]) {
			tat, err := format.Uint64(e.value)
			found := format.Entry{Name: name, ID: format.DecodeID(e.key), TAT: int64(tat)}
			if e.bucket {
				r.lose("%s: it is a bucket of the database, not a value", found)
			} else if err != nil {
				r.lose("%s: %v", found, err)
			} else if r.sane(found, 1) && !yield(found) {
				return
			}
		}
	}
}

// item is an element of a bucket, as it lies in a page.
type item struct {
	key, value []byte
	bucket     bool
}

// bucket yields the items of a bucket, given as stored in its parent. If name
// is not nil, the bucket has a sum.
func (r *reader) bucket(name, b []byte) iter.Seq[item] {
	return func(yield func(item) bool) {
		if len(b) < 16 {
			return // missing, as reported before
		}
		all := items(b[16:])
		if root := binary.NativeEndian.Uint64(b); root != 0 {
			all = r.tree(root)
		}
		sum, before := format.SumStart, len(r.lost)
		for e := range all {
			sum += format.EntrySum(name, e.key, e.value)
			if !yield(e) {
				return
			}
		}
		if !r.sums || name == nil {
			return
		}
		if more := len(r.lost) - before - mostLost; more > 0 {
			r.lost = r.lost[:before+mostLost]
			r.lose("bucket %q: and %d more", name, more)
		}
		switch binary.NativeEndian.Uint64(b[8:]) {
		case 0:
			r.Unsummed = append(r.Unsummed, string(name))
		case sum:
		default:
			r.lose("bucket %q: its contents do not match its sum: "+
				"a key, a value or a page of it was changed", name)
		}
	}
}

// tree yields the items of the sound leaves below a page.
func (r *reader) tree(id uint64) iter.Seq[item] {
	return func(yield func(item) bool) {
		for leaf, err := range r.check.Leaves(id, r.pages, nil, true) {
			if err != nil {
				r.lost = append(r.lost, err)
				continue
			}
			for e := range items(leaf) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func items(page []byte) iter.Seq[item] {
	return func(yield func(item) bool) {
		for i := range bboltpage.Count(page) {
			e := bboltpage.ItemOf(page, i)
			key, value := page[e.At:][:e.Key], page[e.At+e.Key:][:e.Value]
			if !yield(item{key, value, e.Flags == bboltpage.BucketFlag}) {
				return
			}
		}
	}
}
