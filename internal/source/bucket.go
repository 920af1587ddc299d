package source

import (
	"cmp"
	"errors"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/spell"
)

// Bucket is a bucket as list shows it.
type Bucket struct {
	Label, ID string
	Limit     stint.Limit // zero if it is not known
	Now       time.Time   // of the file or the program; zero if limit is
	Remaining int64       // by that limit
	FullIn    time.Duration
	HeldFor   time.Duration // 0 without a hold
}

// asked returns a bucket of a running program.
func asked(label string, b stint.Bucket, now time.Time) *Bucket {
	answer := &Bucket{Label: label, ID: b.Key.ID, Limit: b.Limit, Now: now, Remaining: b.Remaining, FullIn: b.ResetAfter}
	if !b.HeldUntil.IsZero() {
		answer.HeldFor = max(0, b.HeldUntil.Sub(now))
	}
	return answer
}

// Measure sets the limit of the bucket, and what is left. A bucket that lacks
// more than the limit can hold counts as empty, as it will at its next spend. A
// program that runs has measured the bucket by its own limit. If that follows the
// calendar, the TAT is a nanosecond for each used token after the period's end.
func (b *Bucket) Measure(limit stint.Limit, now time.Time) {
	full := now.Add(b.FullIn)
	if b.Limit.FollowsCalendar() && b.FullIn > 0 {
		_, end := b.Limit.PeriodAt(now)
		full = end.Add(time.Duration(b.Limit.Burst - b.Remaining))
	}
	b.Now = now
	if b.Limit = limit; limit != stint.Blocked {
		b.Remaining, b.FullIn = state(limit, full, now)
	}
}

// state returns the whole tokens at the time now in a bucket of the limit that is
// full at the time full, by its TAT, and how long it takes until it is full. The
// results are 0 for a limit without numbers.
func state(l stint.Limit, full, now time.Time) (remaining int64, resetAfter time.Duration) {
	if l.Burst == 0 {
		return 0, 0
	}
	var r gcra.Rule
	if l.FollowsCalendar() {
		_, period, _ := strings.Cut(l.String(), "/")
		index, err := calendar.Parse(period)
		if err != nil {
			return 0, 0
		}
		r.SetQuota(l.Count, index.Calendar())
	} else {
		r.SetRolling(l.Burst, l.Count, int64(l.Period))
	}
	at := clock.Instant(now, gcra.EndOfTime)
	tat := r.Read(clock.Instant(full, gcra.EndOfTime), at)
	return r.Remaining(tat, at), time.Duration(r.ResetAfter(tat, at))
}

// Idle reports whether list leaves the bucket out.
func (b *Bucket) Idle() bool { return b.FullIn == 0 && b.HeldFor == 0 }

// Fill returns the part of a bucket that is spent, or 0 if its limit is not
// known.
func (b *Bucket) Fill() float64 {
	if b.Limit.Burst == 0 {
		return 0
	}
	if b.Limit.FollowsCalendar() {
		return 1 - float64(b.Remaining)/float64(b.Limit.Burst)
	}
	return float64(b.FullIn) / float64(b.Limit.Tolerance())
}

// Until returns the time until the bucket has so many tokens.
func (b *Bucket) Until(tokens int64) time.Duration {
	switch {
	case b.Limit == stint.Blocked || tokens > b.Limit.Burst:
		return math.MaxInt64
	case b.Limit.FollowsCalendar() && b.Remaining >= tokens:
		return 0
	case b.Limit.FollowsCalendar():
		return b.FullIn
	}
	return max(0, b.FullIn+time.Duration(tokens)*b.Limit.Interval()-b.Limit.Tolerance())
}

func until(nanos int64, now time.Time) time.Duration {
	return max(0, time.Unix(0, nanos).Sub(now))
}

// Holds returns how long each bucket is held. A bucket without a hold is not in
// the map.
func Holds(store dbfile.Store, now time.Time) (map[stint.Key]time.Duration, error) {
	found := map[stint.Key]time.Duration{}
	for change, err := range store.All(stint.Unknown) {
		if err != nil {
			return nil, err
		}
		key, err := ParseKey(change.Key.ID)
		if err != nil {
			return nil, err
		}
		if d := until(change.TAT, now); d > 0 {
			found[key] = d
		}
	}
	return found, nil
}

// ParseKey returns the key that stint.Key.String wrote.
func ParseKey(text string) (stint.Key, error) {
	number, id, err := spell.ParseKey(text)
	return stint.Name(number).Key(id), err
}

// named returns the number of a label. Without a label it returns those of all
// limits.
func (s *Source) Named(label string) (names []stint.Name, err error) {
	if label != "" {
		name, err := s.Number(label)
		if err != nil {
			return nil, err
		}
		return []stint.Name{name}, nil
	}
	return slices.Collect(maps.Keys(s.Labels)), nil
}

// bucket returns the bucket of an id, or nil if the program has another format
// for such ids.
func (s *Source) Bucket(name stint.Name, id string) (*Bucket, error) {
	key, label := name.Key(id), s.Labels[name]
	if s.Owner != nil {
		b, err := s.Owner.Bucket(key)
		if errors.Is(err, stint.ErrInvalidID) {
			return nil, nil
		}
		return asked(label, b, s.Now), console.Failed(err)
	}
	tat, err := s.Store.Load(key)
	held, heldErr := s.Store.Load(stint.Unknown.Key(key.String()))
	b := &Bucket{Label: label, ID: id, FullIn: until(tat, s.Now), HeldFor: until(held, s.Now)}
	return b, console.Failed(cmp.Or(err, heldErr))
}

// buckets yields the buckets of a limit that are not full or are held.
func (s *Source) Buckets(name stint.Name) iter.Seq2[*Bucket, error] {
	return func(yield func(*Bucket, error) bool) {
		if s.Owner != nil {
			for b, err := range s.Owner.Buckets(name) {
				if !yield(asked(s.Labels[name], b, s.Now), console.Failed(err)) || err != nil {
					return
				}
			}
			return
		}
		held := s.held
		if held == nil {
			var err error
			if held, err = Holds(s.Store, s.Now); err != nil {
				yield(nil, console.Failed(err))
				return
			}
			s.held = held
		}
		at := func(key stint.Key, fullIn time.Duration) *Bucket {
			b := &Bucket{Label: s.Labels[name], ID: key.ID, FullIn: fullIn, HeldFor: held[key]}
			delete(held, key)
			return b
		}
		for change, err := range s.Store.All(name) {
			if err != nil {
				yield(nil, console.Failed(err))
				return
			}
			if b := at(change.Key, until(change.TAT, s.Now)); !b.Idle() && !yield(b, nil) {
				return
			}
		}
		for key := range held { // full, and held
			if key.Name == name && !yield(at(key, 0), nil) {
				return
			}
		}
	}
}
