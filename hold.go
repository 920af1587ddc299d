package stint

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/cache"
)

// Hold denies every request for the key before the time until, however many
// tokens its bucket has, and returns the end of the hold. If the hold in force ends
// later, that one stays, so a lock-out never shortens what an operator wants. SetHold and Reset end a hold. If none is in force, and
// until is now or earlier, Hold does nothing and returns the zero time. The
// arithmetic ends at 2162-04-10 23:47 UTC, and a later time counts as that one.
//
// A turn inside the hold moves to its end, with those behind it. It stays there
// if the hold ends early. A hold needs no bucket: it can be set while memory is
// full, or while the bucket cannot be read.
//
// The hold that Hold returns is durable, even if an earlier call put it in force
// and its commit has not ended. After an error the earlier hold, or none, is in
// force again, unless the error is ErrNotDurable and the commit may still succeed.
func (l *Limiter) Hold(key Key, until time.Time) (end time.Time, err error) {
	return l.hold(key, until, true)
}

// SetHold makes the hold on a key end at the time until, even if the hold in force
// ends later, in one commit: the key is never without a hold on the way. The zero
// time, or one that has passed, ends the hold, and the bucket has the tokens that it
// would have had without it. Turns that a longer hold has moved stay where they are.
// Everything else, and the errors, are as with Hold.
func (l *Limiter) SetHold(key Key, until time.Time) error {
	_, err := l.hold(key, until, false)
	return err
}

// hold sets the end of a hold. If extend is set, a later one stays.
func (l *Limiter) hold(key Key, until time.Time, extend bool) (time.Time, error) {
	key.ID = strings.Clone(key.ID) // the hold may outlive the caller's string
	if err := checkID(key.ID); err != nil {
		return time.Time{}, l.failed(key, err)
	}
	end, in, err := l.cache.Hold(cacheKey(key), l.clock.Instant(until), extend)
	if err != nil {
		return time.Time{}, l.failed(key, err)
	}
	if err := l.await(in); err != nil {
		return time.Time{}, l.failed(key, fmt.Errorf("stint: hold %s: %w", l.limits.Load().labeled(key), err))
	}
	return endOfHold(end), nil
}

// endOfHold returns the end of a hold as a time; zero if there is none.
func endOfHold(end int64) time.Time {
	if end == 0 {
		return time.Time{}
	}
	return time.Unix(0, end)
}

// Held is a bucket that denies requests, however many tokens it has: it has a
// hold, or requests wait in its queue, or both.
type Held struct {
	Key       Key
	HeldUntil time.Time // zero if there is no hold
	Waiting   int       // requests in the queue; 0 if there is none
}

// Held yields the buckets that have a hold, and those that have a queue: HeldUntil
// and Waiting say which. They come in no particular order. It reads neither other
// buckets nor the store. After Close it yields nothing.
func (l *Limiter) Held() iter.Seq[Held] {
	return func(yield func(Held) bool) {
		l.cache.Held(func(key cache.Key, until int64, waiting int) bool {
			return yield(Held{Key: Key{Name(key.Name), key.ID}, HeldUntil: endOfHold(until), Waiting: waiting})
		})
	}
}
