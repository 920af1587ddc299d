package main

import (
	"cmp"
	"errors"
	"iter"
	"time"

	"github.com/stint-go/stint"
)

// view is a file that is open for reading, or the program that has it open. It
// reads the TATs of a file without a Limiter, which would delete holds that are
// over.
type view struct {
	*source
	now time.Time // of the file or the program

	held map[stint.Key]time.Duration // in a file: the holds, once they were read, of limits that were not
}

// view opens the file or, if a program has it open, connects to the program.
func (f *dbFlags) view() (*view, error) {
	in, err := f.reach(reading)
	if err != nil {
		return nil, err
	}
	if in.owner != nil {
		return &view{source: in, now: in.owner.Now()}, nil
	}
	now, err := timeOf(f.cmd, in.store)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return &view{source: in, now: now}, nil
}

// named returns the number of a label. Without a label it returns those of all
// limits.
func (v *view) named(label string) (names []stint.Name, err error) {
	if label != "" {
		name, err := v.number(label)
		if err != nil {
			return nil, err
		}
		return []stint.Name{name}, nil
	}
	for name, label := range v.labels {
		if _, isLine := lineOf(v.labels, label); !isLine || v.owner != nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// bucket returns the bucket of an id, or nil if the program has another format
// for such ids.
func (v *view) bucket(name stint.Name, id string) (*bucket, error) {
	key, label := name.Key(id), v.labels[name]
	if v.owner != nil {
		b, err := v.owner.Bucket(key)
		if errors.Is(err, stint.ErrInvalidID) {
			return nil, nil
		}
		return asked(label, b, v.now), failed(err)
	}
	tat, err := v.store.Load(key)
	held, heldErr := v.store.Load(stint.Unknown.Key(key.String()))
	var last int64 // turn of run --wait
	var lastErr error
	if line, ok := numberOf(v.labels, label+lineSuffix); ok {
		last, lastErr = v.store.Load(line.Key(id))
	}
	b := &bucket{label: label, id: id, fullIn: until(tat, v.now), heldFor: until(held, v.now), lineFor: until(last, v.now)}
	return b, failed(cmp.Or(err, heldErr, lastErr))
}

// buckets yields the buckets of a limit that are not full, are held, or have a
// queue.
func (v *view) buckets(name stint.Name) iter.Seq2[*bucket, error] {
	return func(yield func(*bucket, error) bool) {
		if v.owner != nil {
			for b, err := range v.owner.Buckets(name) {
				if !yield(asked(v.labels[name], b, v.now), failed(err)) || err != nil {
					return
				}
			}
			return
		}
		held, err := v.held, error(nil)
		if held == nil {
			held, err = holds(v.store, v.now)
			v.held = held
		}
		var turns map[stint.Key]time.Duration
		if line, ok := numberOf(v.labels, v.labels[name]+lineSuffix); ok && err == nil {
			turns, err = later(v.store, line, v.now, func(id string) (stint.Key, error) { return name.Key(id), nil })
		}
		if err != nil {
			yield(nil, failed(err))
			return
		}
		at := func(key stint.Key, fullIn time.Duration) *bucket {
			b := &bucket{label: v.labels[name], id: key.ID, fullIn: fullIn, heldFor: held[key], lineFor: turns[key]}
			delete(held, key)
			delete(turns, key)
			return b
		}
		for change, err := range v.store.All(name) {
			if err != nil {
				yield(nil, failed(err))
				return
			}
			if b := at(change.Key, until(change.TAT, v.now)); !b.idle() && !yield(b, nil) {
				return
			}
		}
		for key := range held { // full, and held
			if key.Name == name && !yield(at(key, 0), nil) {
				return
			}
		}
		for key := range turns { // full, and with a queue
			if !yield(at(key, 0), nil) {
				return
			}
		}
	}
}
