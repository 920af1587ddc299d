package main

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/spell"
)

// bucket is a bucket as list shows it.
type bucket struct {
	label, id string
	limit     stint.Limit // zero if it is not known
	now       time.Time   // of the file or the program; zero if limit is
	remaining int64       // by that limit
	fullIn    time.Duration
	heldFor   time.Duration // 0 without a hold
	lineFor   time.Duration // time until the last turn of run --wait; 0 without a queue
}

// asked returns a bucket of a running program.
func asked(label string, b stint.Bucket, now time.Time) *bucket {
	answer := &bucket{label: label, id: b.Key.ID, limit: b.Limit, now: now, remaining: b.Remaining, fullIn: b.ResetAfter}
	if !b.HeldUntil.IsZero() {
		answer.heldFor = max(0, b.HeldUntil.Sub(now))
	}
	return answer
}

// measure sets the limit of the bucket, and what is left. A bucket that lacks
// more than the limit can hold counts as empty, as it will at its next spend. A
// program that runs has measured the bucket by its own limit. If that follows the
// calendar, the TAT is a nanosecond for each used token after the period's end.
func (b *bucket) measure(limit stint.Limit, now time.Time) {
	full := now.Add(b.fullIn)
	if b.limit.FollowsCalendar() && b.fullIn > 0 {
		_, end := b.limit.PeriodAt(now)
		full = end.Add(time.Duration(b.limit.Burst - b.remaining))
	}
	b.now = now
	if b.limit = limit; !limit.IsBlocked() {
		b.remaining, b.fullIn = limit.State(full, now)
	}
}

// idle reports whether list leaves the bucket out.
func (b *bucket) idle() bool { return b.fullIn == 0 && b.heldFor == 0 && b.lineFor == 0 }

// fill returns the part of a bucket that is spent, or 0 if its limit is not
// known.
func (b *bucket) fill() float64 {
	if b.limit.Burst == 0 {
		return 0
	}
	if b.limit.FollowsCalendar() {
		return 1 - float64(b.remaining)/float64(b.limit.Burst)
	}
	return float64(b.fullIn) / float64(b.limit.Tolerance())
}

func until(nanos int64, now time.Time) time.Duration {
	return max(0, time.Unix(0, nanos).Sub(now))
}

// bucketJSON is what --json prints of a bucket, one in a line.
type bucketJSON struct {
	Name string `json:"name"`
	display.JSONID
	Remaining  *int64             `json:"remaining,omitempty"`
	Limit      *display.JSONLimit `json:"limit,omitempty"`
	ResetAfter time.Duration      `json:"reset_after_ns"`
	Held       time.Duration      `json:"held_ns,omitempty"`
	Line       time.Duration      `json:"line_ns,omitempty"`
}

func (b *bucket) json() bucketJSON {
	line := bucketJSON{Name: b.label, JSONID: display.NewJSONID(b.id), Limit: display.NewJSONLimit(b.limit),
		ResetAfter: b.fullIn, Held: b.heldFor, Line: b.lineFor}
	if line.Limit != nil {
		line.Remaining = &b.remaining
	}
	return line
}

// state returns the level of the bucket in words: "0 of 3 left, full in 58.2s".
func (b *bucket) state() string {
	s := "full"
	if b.fullIn > 0 {
		s = "full in " + display.Duration(b.fullIn)
		if b.limit.FollowsCalendar() {
			s = "resets " + display.Reset(b.limit, b.now)
		}
		if b.limit.Burst > 0 {
			s = fmt.Sprintf("%d of %d left, %s", b.remaining, b.limit.Burst, s)
		}
	}
	if b.limit.IsBlocked() {
		s = "blocked, " + s
	}
	if b.heldFor > 0 {
		s += ", held for " + display.Duration(b.heldFor)
	}
	if b.lineFor > 0 {
		s += ", queue for " + display.Duration(b.lineFor)
	}
	return s
}

// lockedOut returns the id whose lock-outs a rule of httplimit or grpclimit
// remembers by a hold on another id, and "" if the hold only says how long the
// last of them was. Such holds deny no request.
func lockedOut(id string) (of string, ok bool) {
	const suffix = " lock-outs"
	if of, ok = strings.CutSuffix(id, suffix); strings.HasSuffix(of, suffix) {
		of = ""
	}
	return of, ok
}

// holds returns how long each bucket is held. A bucket without a hold is not in
// the map.
func holds(store dbfile.Store, now time.Time) (map[stint.Key]time.Duration, error) {
	return later(store, stint.Unknown, now, parseKey)
}

// later returns how long it is until the TATs that the file has under a name, by
// the key that each id there stands for. TATs that are over are not in the map.
func later(store dbfile.Store, name stint.Name, now time.Time,
	keyOf func(id string) (stint.Key, error)) (map[stint.Key]time.Duration, error) {
	found := map[stint.Key]time.Duration{}
	for change, err := range store.All(name) {
		if err != nil {
			return nil, err
		}
		key, err := keyOf(change.Key.ID)
		if err != nil {
			return nil, err
		}
		if d := until(change.TAT, now); d > 0 {
			found[key] = d
		}
	}
	return found, nil
}

// parseKey returns the key that stint.Key.String wrote.
func parseKey(text string) (stint.Key, error) {
	number, id, err := spell.ParseKey(text)
	return stint.Name(number).Key(id), err
}

// named returns the number of a label. Without a label it returns those of all
// limits.
func (s *source) named(label string) (names []stint.Name, err error) {
	if label != "" {
		name, err := s.number(label)
		if err != nil {
			return nil, err
		}
		return []stint.Name{name}, nil
	}
	for name, label := range s.labels {
		if _, isLine := lineOf(s.labels, label); !isLine || s.owner != nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// bucket returns the bucket of an id, or nil if the program has another format
// for such ids.
func (s *source) bucket(name stint.Name, id string) (*bucket, error) {
	key, label := name.Key(id), s.labels[name]
	if s.owner != nil {
		b, err := s.owner.Bucket(key)
		if errors.Is(err, stint.ErrInvalidID) {
			return nil, nil
		}
		return asked(label, b, s.now), failed(err)
	}
	tat, err := s.store.Load(key)
	held, heldErr := s.store.Load(stint.Unknown.Key(key.String()))
	var last int64 // turn of run --wait
	var lastErr error
	if line, ok := numberOf(s.labels, label+lineSuffix); ok {
		last, lastErr = s.store.Load(line.Key(id))
	}
	b := &bucket{label: label, id: id, fullIn: until(tat, s.now), heldFor: until(held, s.now), lineFor: until(last, s.now)}
	return b, failed(cmp.Or(err, heldErr, lastErr))
}

// buckets yields the buckets of a limit that are not full, are held, or have a
// queue.
func (s *source) buckets(name stint.Name) iter.Seq2[*bucket, error] {
	return func(yield func(*bucket, error) bool) {
		if s.owner != nil {
			for b, err := range s.owner.Buckets(name) {
				if !yield(asked(s.labels[name], b, s.now), failed(err)) || err != nil {
					return
				}
			}
			return
		}
		held, err := s.held, error(nil)
		if held == nil {
			held, err = holds(s.store, s.now)
			s.held = held
		}
		var turns map[stint.Key]time.Duration
		if line, ok := numberOf(s.labels, s.labels[name]+lineSuffix); ok && err == nil {
			turns, err = later(s.store, line, s.now, func(id string) (stint.Key, error) { return name.Key(id), nil })
		}
		if err != nil {
			yield(nil, failed(err))
			return
		}
		at := func(key stint.Key, fullIn time.Duration) *bucket {
			b := &bucket{label: s.labels[name], id: key.ID, fullIn: fullIn, heldFor: held[key], lineFor: turns[key]}
			delete(held, key)
			delete(turns, key)
			return b
		}
		for change, err := range s.store.All(name) {
			if err != nil {
				yield(nil, failed(err))
				return
			}
			if b := at(change.Key, until(change.TAT, s.now)); !b.idle() && !yield(b, nil) {
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
