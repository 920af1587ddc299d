package stint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Salvaged is what Salvage made of a file.
type Salvaged struct {
	Buckets int64   // buckets and holds in the new file
	Lost    []error // what could not be read, or made no sense: a page with all that is behind it, an entry, a journal record
}

// Salvage reads what can be read of a damaged file at path, which it leaves as it is, and writes it to a new one at to,
// where there must be none. A file of another program, or of a version with another format, is ErrFormat. With a page is lost
// what it leads to, which may be all of a limit; where it is the root of the tree, that of the transaction before is read. What it
// takes to be sound may still be wrong: an entry whose TAT was changed looks like any other.
// looked is called now and then, with how many buckets were read since; its error ends it, without a new file. nil: nobody
// is told.
func Salvage(path, to string, opts *BoltOptions, looked func(n int) error) (Salvaged, error) {
	lockTimeout := time.Second
	if opts != nil && opts.LockTimeout > 0 {
		lockTimeout = opts.LockTimeout
	}
	if looked == nil {
		looked = func(int) error { return nil }
	}
	if err := checkRegular(path); err != nil {
		return Salvaged{}, fmt.Errorf("stint: %w", err)
	}
	from, err := openBoltFile(path, lockTimeout, 0, toSalvage)
	if err != nil {
		return Salvaged{}, err
	}
	defer from.close()
	v := salvage{path: path, check: from.check, looked: looked, labels: make(map[Name]string), taken: make(map[string]bool), places: make(map[Name][]byte)}
	if err := v.plan(); err != nil {
		return Salvaged{}, err
	}
	if err := newBoltFile(to, v.write); err != nil {
		return Salvaged{}, fmt.Errorf("stint: salvage %s: %w", path, err)
	}
	return v.Salvaged, nil
}

// salvage reads pages by itself: bbolt would stop, or worse, at the first that is damaged.
type salvage struct {
	Salvaged
	path   string
	check  *pageChecker
	pages  uint64
	looked func(n int) error

	labels  map[Name]string
	taken   map[string]bool // labels
	places  map[Name][]byte // the buckets of the database, as they lie in its root
	journal journalIndex
}

func (v *salvage) lost(format string, args ...any) {
	v.Lost = append(v.Lost, fmt.Errorf(format, args...))
}

// plan reads all but the buckets' own entries.
func (v *salvage) plan() error {
	root, err := v.root()
	if err != nil {
		return err
	}
	v.journal = *newJournalIndex()
	var journal, log, round []byte
	known, strange := false, 0
	for e := range v.page(root, nil, nil, deepest) {
		name := string(e.key)
		n, err := strconv.ParseUint(name, 10, 16)
		switch {
		case !e.bucket:
		case name == string(metaBucket):
			for e := range v.bucket(e.value) {
				switch {
				case string(e.key) == string(namesBucket) && e.bucket:
					v.names(e.value)
				case string(e.key) == string(logKey):
					round = bytes.Clone(e.value)
				}
				if n, err := decodeUint64(e.value); string(e.key) == string(formatKey) && err == nil && n != formatNumber {
					return otherFormat(v.path, n)
				}
			}
			known = true
			continue
		case name == string(logBucket):
			log = e.value
			continue
		case name == string(journalBucket):
			journal = e.value
			continue
		case name == string(holdsBucket):
			v.places[Unknown] = e.value
			continue
		case err == nil && n > 0:
			v.places[Name(n)] = e.value
			continue
		}
		v.lost("%q, which no stint file has", name)
		strange++
	}
	if !known && journal == nil && len(v.places) == 0 && len(v.Lost) == strange { // nothing was lost that might have been stint's
		return foreign(v.path)
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

// root returns the page that leads to all others: where that is damaged, the one of the transaction before, which a commit leaves as it is.
func (v *salvage) root() (uint64, error) {
	ms, err := readMetas(v.check.file)
	if err != nil {
		return 0, err
	}
	v.pages = ms[0].pages
	_, err = newPageChecker(v.check.file, v.path, ms[0]).page(ms[0].root, v.pages, nil, nil, make([]byte, pageSize))
	if err == nil || len(ms) == 1 {
		return ms[0].root, nil
	}
	v.lost("what the last transaction changed: %w", err)
	return ms[1].root, nil
}

func (v *salvage) names(table []byte) {
	for e := range v.bucket(table) {
		n, err := strconv.ParseUint(string(e.key), 10, 16)
		if err != nil || n == 0 || len(e.value) == 0 || e.bucket || v.taken[string(e.value)] {
			v.lost("name %q, with the label %q", e.key, e.value)
			continue
		}
		v.taken[string(e.value)] = true
		v.labels[Name(n)] = string(e.value)
	}
}

// label sees to it that a name has one: the label that was lost can be given to it later, its buckets could not.
func (v *salvage) label(name Name) {
	if name != Unknown && v.labels[name] == "" {
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
	seq, err := decodeUint64(e.key)
	if err != nil || e.bucket {
		v.lost("journal record %q", e.key)
		return
	}
	for entry, err := range entries(seq, e.value) {
		if err != nil {
			v.lost("%w", err)
			return
		}
		if c := entry.change(); c.TAT == 0 || v.sane(c) {
			v.label(c.Key.Name)
			v.journal.put(c)
		}
	}
}

func (v *salvage) log(log, round []byte) {
	for e := range v.bucket(log) {
		n, err := decodeRound(round)
		if err == nil && (e.bucket || len(e.value) != logSkip+logSize) {
			err = errors.New("it is not as long as it should be")
		}
		var records, newer []logRecord
		if err == nil {
			records, _, err = readLog(e.value[logSkip:], n)
			newer = readNextRound(e.value[logSkip:], n)
		}
		if len(newer) > 0 {
			v.lost("what the last transaction changed: %w", errOldMeta)
		}
		if err != nil {
			v.lost("the log: %w", err)
		}
		for _, r := range append(records, newer...) {
			v.record(salvaged{key: bigEndian(r.seq), value: r.record})
		}
	}
}

// sane reports whether a change may be stored.
func (v *salvage) sane(c Change) bool {
	err := checkShort(c.Key.ID)
	if c.Key.Name == Unknown {
		err = checkHold([]byte(c.Key.ID))
	}
	if err == nil && c.TAT <= 0 {
		err = fmt.Errorf("the instant %d", c.TAT)
	}
	if err != nil {
		v.lost("%s: %w", c.Key, err)
	}
	return err == nil
}

// write writes what was found into a new file.
func (v *salvage) write(to *boltFile) error {
	const most = 4096
	if err := to.update(func(tx *bolt.Tx) error { return layOut(tx, v.labels) }); err != nil {
		return err
	}
	var batch []Change
	flush := func() error {
		err := to.update(func(tx *bolt.Tx) error { return putHome(tx, nil, slices.Values(batch)) })
		batch = batch[:0]
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(v.places)) {
		n := 0
		for e := range v.bucket(v.places[name]) {
			tat, err := decodeUint64(e.value)
			key := Key{name, decodeID(e.key)}
			if err != nil || e.bucket {
				v.lost("%s: a value of %d bytes", key, len(e.value))
				continue
			}
			c := Change{key, int64(tat)}
			if _, newer := v.journal.get(key); newer || !v.sane(c) {
				continue
			}
			v.Buckets++
			n++
			if batch = append(batch, c); len(batch) == most {
				if err := errors.Join(flush(), v.looked(n)); err != nil {
					return err
				}
				n = 0
			}
		}
		if err := v.looked(n); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	for _, e := range v.journal.sorted(nil).take(v.journal.len()) {
		if e.tat != 0 {
			v.Buckets++
			batch = append(batch, e.change())
		}
		if len(batch) == most {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// salvaged is an entry as it lies in a page, which it is only good as long as.
type salvaged struct {
	key, value []byte
	bucket     bool
}

// bucket yields what is in a bucket of bbolt's, of which b is what lies in its parent.
func (v *salvage) bucket(b []byte) iter.Seq[salvaged] {
	return func(yield func(salvaged) bool) {
		if len(b) < 16 {
			return // none, which was told of
		}
		if root := binary.NativeEndian.Uint64(b); root != 0 {
			v.page(root, nil, nil, deepest)(yield)
		} else {
			items(b[16:], yield)
		}
	}
}

// page yields what is in a page and those behind it, without those that are unsound.
func (v *salvage) page(id uint64, first, next []byte, deep int) iter.Seq[salvaged] {
	return func(yield func(salvaged) bool) {
		if id < v.pages && v.check.isSound(id) || deep == 0 {
			v.lost("page %d, to which more than one other leads", id)
			return
		}
		page, err := v.check.page(id, v.pages, first, next, make([]byte, pageSize))
		if err != nil {
			v.Lost = append(v.Lost, err)
			return
		}
		if pageKind(page) == leafPage {
			items(page, yield)
			return
		}
		for i := range pageCount(page) {
			lower, upper := bounds(page, i, first, next)
			for e := range v.page(itemOf(page, i).child, lower, upper, deep-1) {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func items(page []byte, yield func(salvaged) bool) {
	for i := range pageCount(page) {
		e := itemOf(page, i)
		if !yield(salvaged{page[e.at:][:e.key], page[e.at+e.key:][:e.value], e.flags == bucketValue}) {
			return
		}
	}
}
