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

// moveBack moves all holds and buckets back, because the clock was ahead when
// they were saved, and is believed now. Those that cannot be moved are cut down
// when they are loaded: they wait for as long as an empty bucket.
//
// Periods of the calendar do not move: what was used in the present one stays
// used, and a bucket of a later one is empty until the present one ends. Buckets
// without a configured limit stay as they are, because the limit that requests
// give may follow the calendar. The next request cuts them down to an empty one.
func (l *Limiter) moveBack(by int64) {
	limits, now := l.limits.Load(), l.clock.Now()
	names := make([]uint16, len(limits.order))
	for i, name := range limits.order {
		names[i] = uint16(name)
	}
	l.cache.MoveBack(by, names, func(key cache.Key, tat, back int64) (to int64, moves bool) {
		rule, err := limits.resolve(Key{Name(key.Name), key.ID})
		r := &limits.rules[rule]
		switch {
		case err != nil || !r.limited():
			return 0, false
		case r.periods != nil:
			return r.clamp(tat, now), true
		}
		return back, true
	})
}
