package cache

import (
	"fmt"
	"time"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/format"
)

// BeginClock lets a clock go on from the store's time if the wall clock is
// wrong. It returns how far off a wall clock is that is not believed, or by how
// much the store's time goes back to one that is believed.
func (s *Store) BeginClock(c *clock.Clock) (wrong, back time.Duration, err error) {
	seen, err := s.Load(holds, "")
	if err != nil {
		return 0, 0, fmt.Errorf("stint: read the time of the last save: %w", err)
	}
	var was clock.Record
	if s.LoadClock != nil {
		record, err := s.LoadClock()
		if err != nil {
			return 0, 0, fmt.Errorf("stint: read the record of the clock: %w", err)
		}
		if was, err = clock.Unmarshal(record); err != nil {
			return 0, 0, fmt.Errorf("%w: %w", format.ErrCorrupt, err)
		}
	}
	wrong, back = c.Begin(seen, was)
	return wrong, back, nil
}

// saveClock saves what the next process has to know about the clock. It comes
// before each save, because the time of a save means something only together
// with the boot in which it was made.
func (s *Store) saveClock(c *clock.Clock) error {
	record, unsaved := c.Record()
	if !unsaved || s.SaveClock == nil {
		return nil
	}
	if err := s.SaveClock(record.Marshal()); err != nil {
		return fmt.Errorf("save the record of the clock: %w", err)
	}
	c.Saved(record)
	return nil
}

// MoveBack moves all holds, and the buckets of names, back in time, because the
// clock was ahead when they were saved, and is believed now. So they end when they
// would have ended, in time that the machine runs. move returns where the TAT of a
// bucket moves to, or false if it stays. If more buckets than MaxResident are not
// full, the others stay.
//
// A crash may come at any time, and nothing may be moved twice. So the first save
// says that holds and buckets are about to be moved, and the second, which moves
// them, also changes the time of the last save.
func (c *Cache) MoveBack(by int64, names []uint16, move func(key Key, tat int64) (to int64, moves bool)) {
	f := c.flusher
	now := f.clock.Now()
	var changes []format.Entry
	c.Each(func(s *Shard) {
		for key, g := range s.gates {
			to := MovedBack(g.Hold, now, by)
			changes = append(changes, holdEntry(key, to))
			g.Hold, g.unsaved = max(1, to), true
			g.saved = g.Hold // where a hold goes back to whose commit fails
		}
	})
	for _, name := range names {
		for e, err := range f.store.All(name) {
			if err != nil || int64(len(changes)) >= f.resident {
				break // what is left is cut down when it is loaded
			}
			if to, moves := move(Key{e.Name, e.ID}, e.TAT); moves {
				e.TAT = to
				changes = append(changes, e)
			}
		}
	}
	if len(changes) == 0 || f.store.SaveClock == nil {
		return
	}
	seen, err := f.store.Load(holds, "")
	if err == nil {
		err = f.store.SaveClock(f.clock.Moving(seen).Marshal())
	}
	if err == nil {
		err = f.store.Save(append(changes, format.Entry{TAT: now}))
	}
	if err == nil {
		f.store.saveClock(f.clock) // the record is of another time, and perhaps of another boot
	}
}

// MovedBack returns the instant that is so many nanoseconds earlier, or 0 if that
// has passed.
func MovedBack(tat, now, by int64) int64 {
	if tat -= by; tat <= now {
		return 0
	}
	return tat
}
