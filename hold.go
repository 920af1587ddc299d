package stint

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/cache"
)

// Hold denies every request for the key before the time until, however many
// tokens its bucket has, and returns the end of the hold. Of the hold that is
// in force and the new one the later stays, so a lock-out never shortens what
// an operator wants. Release and Reset end a hold. If none is in force, and
// until is now or earlier, Hold does nothing and returns the zero time. The
// arithmetic ends at 2162-04-10 23:47 UTC, and a later time counts as that one.
//
// Queued requests never move forward. A turn inside the hold moves to the end
// of the hold. A hold needs no bucket: it can be set while memory is full, or
// while the bucket cannot be read.
//
// The hold that Hold returns is durable, even if an earlier call put it in force
// and its commit has not ended. After an error the earlier hold, or none, is in
// force again, unless the error is ErrNotDurable and the commit may still succeed.
func (l *Limiter) Hold(key Key, until time.Time) (end time.Time, err error) {
	return l.hold(key, until, true)
}

// Release ends the hold on a key, and does nothing if there is none. The bucket has
// the tokens that it would have had without the hold. Errors are those of Hold.
func (l *Limiter) Release(key Key) error {
	_, err := l.hold(key, time.Time{}, false)
	return err
}

// hold puts the end of a hold. If extend is set, a later one stays.
func (l *Limiter) hold(key Key, until time.Time, extend bool) (time.Time, error) {
	key.ID = strings.Clone(key.ID) // the hold may outlive the caller's string
	rs := [1]request{{asked: asked{key: key, op: opHold}}}
	r := &rs[0]
	if err := r.locate(l); err != nil {
		return time.Time{}, l.failed(key, err)
	}
	if _, err := l.lockFound(rs[:]); err != nil {
		return time.Time{}, l.failed(key, err)
	}
	end := int64(0)
	if extend {
		end = l.clock.Instant(until)
	}
	ch := r.change()
	end, in := l.cache.HoldLocked(&ch, end, extend)
	r.shard.Mu.Unlock()
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
// hold, or requests wait in its queue.
type Held struct {
	Key     Key
	Until   time.Time // end of the hold; zero if there is none
	Waiting int       // requests in the queue
}

// Held yields the buckets that are held or have a queue, in no particular
// order. It reads neither other buckets nor the store. After Close it
// yields nothing.
func (l *Limiter) Held() iter.Seq[Held] {
	return func(yield func(Held) bool) {
		l.cache.Held(func(key cache.Key, until int64, waiting int) bool {
			return yield(Held{Key: Key{Name(key.Name), key.ID}, Until: endOfHold(until), Waiting: waiting})
		})
	}
}
