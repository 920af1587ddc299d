package stint

import (
	"fmt"
	"time"

	"github.com/stint-go/stint/internal/clock"
)

// beginClock lets the clock go on from the store's time if the wall clock is
// wrong. It returns how far off a wall clock is that is not believed, or by how
// much the store's time goes back to one that is believed.
func beginClock(c *clock.Clock, store Store) (wrong, back time.Duration, err error) {
	seen, err := store.Load(Key{})
	if err != nil {
		return 0, 0, fmt.Errorf("stint: read the time of the last save: %w", err)
	}
	var was clock.Record
	if s, ok := store.(ClockStore); ok {
		record, err := s.LoadClock()
		if err != nil {
			return 0, 0, fmt.Errorf("stint: read the record of the clock: %w", err)
		}
		if was, err = clock.Unmarshal(record); err != nil {
			return 0, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	wrong, back = c.Begin(seen, was)
	return wrong, back, nil
}

// Now returns the time that a Limiter of the store would have. It is for tools
// that read buckets or change them without a Limiter. err is not nil if the
// store cannot be read. doubt says why the wall clock is not believed, or is nil.
func (s *BoltStore) Now() (now time.Time, doubt, err error) {
	c := clock.New(nil, nil, nil, endOfTime)
	_, _, err = beginClock(c, s)
	return time.Unix(0, c.Now()), c.Health(), err
}

// saveClock saves what the next process has to know about the clock. It comes
// before each save, because the time of a save means something only together
// with the boot in which it was made.
func saveClock(store Store, c *clock.Clock) error {
	record, unsaved := c.Record()
	s, ok := store.(ClockStore)
	if !unsaved || !ok {
		return nil
	}
	if err := s.SaveClock(record.Marshal()); err != nil {
		return fmt.Errorf("save the record of the clock: %w", err)
	}
	c.Saved(record)
	return nil
}

// moveBack moves all holds and buckets back, because the clock was ahead when
// they were saved, and is believed now. So they end when they would have ended,
// in time that the machine runs. If more buckets than MaxResident are not full,
// the others wait for as long as an empty bucket.
//
// Periods of the calendar do not move: what was used in the present one stays
// used, and a bucket of a later one is empty until the present one ends. Buckets
// without a configured limit stay as they are, because the limit that requests
// give may follow the calendar. The next request cuts them down to an empty one.
//
// A crash may come at any time, and nothing may be moved twice. So the first save
// says that holds and buckets are about to be moved, and the second, which moves
// them, also changes the time of the last save.
func (l *Limiter) moveBack(by int64) {
	now := l.clock.Now()
	moved := func(tat int64) int64 {
		if tat -= by; tat <= now {
			return 0
		}
		return tat
	}
	var changes []Change
	l.directory.each(func(s *shard) {
		for key, g := range s.gates {
			to := moved(g.hold)
			changes = append(changes, Change{holdKey(key), to})
			g.hold, g.unsaved = max(1, to), true
			g.saved = g.hold // where a hold goes back to whose commit fails
		}
	})
	limits := l.limits.Load()
	for _, name := range limits.order {
		for bucket, err := range l.store.All(name) {
			if err != nil || len(changes) >= l.opts.MaxResident {
				break // what is left is cut down when it is loaded
			}
			rule, err := limits.resolve(bucket.Key)
			switch r := &limits.rules[rule]; {
			case err != nil || !r.limited():
			case r.periods != nil:
				changes = append(changes, Change{bucket.Key, r.clamp(bucket.TAT, now)})
			default:
				changes = append(changes, Change{bucket.Key, moved(bucket.TAT)})
			}
		}
	}
	s, ok := l.store.(ClockStore)
	if len(changes) == 0 || !ok {
		return
	}
	seen, err := l.store.Load(Key{})
	if err == nil {
		err = s.SaveClock(l.clock.Moving(seen).Marshal())
	}
	if err == nil {
		err = l.store.Save(append(changes, Change{Key{}, now}))
	}
	if err == nil {
		saveClock(l.store, l.clock) // the record is of another time, and perhaps of another boot
	}
}
