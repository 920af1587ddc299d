package stint

import (
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/clock"
)

// Now implements dbfile.Store.
func (s *boltStore) Now() (now time.Time, doubt, err error) {
	c := clock.New(nil, nil, nil, endOfTime)
	backing := storeForCache(s)
	_, _, err = backing.BeginClock(c)
	return time.Unix(0, c.Now()), c.Health(), err
}

// moveBack returns where a bucket moves to if the clock was ahead when it was
// saved, and is believed now. Buckets that cannot be moved are cut down when they
// are loaded: they wait for as long as an empty bucket.
//
// Periods of the calendar do not move: what was used in the present one stays
// used, and a bucket of a later one is empty until the present one ends. Buckets
// without a configured limit stay as they are, because the limit that requests
// give may follow the calendar. The next request cuts them down to an empty one.
func (ls *Limits) moveBack(c *clock.Clock) cache.MoveFunc {
	return func(key cache.Key, tat, back int64) (to int64, moves bool) {
		rule, err := ls.resolve(Key{Name(key.Name), key.ID})
		r := &ls.rules[rule]
		switch {
		case err != nil || !r.limited():
			return 0, false
		case r.periods != nil:
			return r.clamp(tat, c.Now()), true
		}
		return back, true
	}
}

// numbers returns the numbers of the Names.
func (ls *Limits) numbers() []uint16 {
	numbers := make([]uint16, len(ls.order))
	for i, name := range ls.order {
		numbers[i] = uint16(name)
	}
	return numbers
}
