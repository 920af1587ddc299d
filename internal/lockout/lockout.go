// Package lockout holds buckets that requests have emptied: the lock-outs of
// the rules of HTTP and gRPC servers.
package lockout

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// A Rule says how long a lock-out lasts. If Max is longer than For, each
// lock-out of an id is twice as long as the one before, up to Max. If Max has
// passed since the end of the last lock-out, the next one takes For again.
//
// The Limiter remembers the length of an id's last lock-out, so that it survives
// a restart. It is the time between the ends of two holds on other ids of the
// same limit: CountKey, and the CountKey of that. The first ends when the
// lock-out is forgotten. A Limiter whose clock was wrong moves all holds alike,
// so the length stays.
type Rule struct {
	For, Max time.Duration
}

// CountSuffix is the end of the ids that remember lock-outs.
const CountSuffix = " lock-outs"

// longestMemory bounds how long a lock-out is remembered, because a Limiter can
// hold nothing beyond the year 2162.
const longestMemory = 50 * 365 * 24 * time.Hour

// CountKey returns the key of the hold that lasts until a key's lock-outs are
// forgotten.
func CountKey(key stint.Key) stint.Key {
	if len(key.ID) > 500 { // ids have 512 bytes at most
		sum := sha256.Sum256([]byte(key.ID))
		key.ID = hex.EncodeToString(sum[:])
	}
	key.ID += CountSuffix
	return key
}

// IsCount reports whether an id has the form of an id that remembers lock-outs.
// A client must not choose such an id.
func IsCount(id string) bool { return strings.HasSuffix(id, CountSuffix) }

// Last returns the length of the last lock-out of a key, and when it is
// forgotten. Both are zero if there is none. The length is 0 if the file has
// none, because an earlier version has written it.
func Last(lim stint.Decider, key stint.Key) (length time.Duration, forgotten time.Time, err error) {
	key = CountKey(key)
	longer, err := lim.Bucket(CountKey(key)) // it is written last, so it is read first
	if err != nil {
		return 0, time.Time{}, err
	}
	count, err := lim.Bucket(key)
	if err != nil || count.HeldUntil.IsZero() {
		return 0, time.Time{}, err
	}
	return max(0, longer.HeldUntil.Sub(count.HeldUntil)), count.HeldUntil, nil
}

// remember stores the length of the last lock-out of a key, which ends at until.
func (ru Rule) remember(lim stint.Decider, key stint.Key, length time.Duration, until time.Time) error {
	forgotten, key := until.Add(min(ru.Max, longestMemory)), CountKey(key)
	if _, err := lim.Hold(key, forgotten); err != nil {
		return err
	}
	_, err := lim.Hold(CountKey(key), forgotten.Add(length))
	return err
}

// next returns the length of a lock-out. last is that of the one before, or 0.
func (ru Rule) next(last time.Duration) time.Duration {
	if last >= ru.Max/2 {
		return max(ru.For, ru.Max)
	}
	return max(ru.For, 2*last)
}

// A Spend is a request that has spent tokens, and may lock its bucket out.
type Spend struct {
	Key      stint.Key      // the bucket, even if a total or a floor has decided
	Decision stint.Decision // on the request
	Least    int64          // fewer tokens than these lock the bucket out
	At       time.Time      // instant of the decision
}

// After locks the bucket of a spend out if the spend has left too few tokens in
// it. It returns the rest of the bucket's hold, or 0 if it did not lock it out.
// A total or a floor that has too few tokens locks no id out, because others
// may have emptied it.
func (ru Rule) After(lim stint.Decider, s Spend) (rest time.Duration, err error) {
	if s.Decision.Remaining >= s.Least { // of several buckets the one with the fewest decides
		return 0, nil
	}
	now := lim.Now()
	b, err := lim.Bucket(s.Key)
	if err != nil {
		return 0, err
	}
	// Since the decision, other requests may have returned tokens. Tokens that
	// came back with time do not count.
	left, interval := b.Remaining, b.Limit.Interval()
	switch {
	case b.Limit.Count == 0:
		return 0, nil
	case interval <= 0 || b.Limit.FollowsCalendar(): // tokens do not come back one by one
	case s.Decision.Key == s.Key:
		back := s.Decision.ResetAfter - now.Sub(s.At) - b.ResetAfter
		left = s.Decision.Remaining + int64(back/interval)
	default:
		left -= int64(now.Sub(s.At) / interval)
	}
	if left >= s.Least {
		return 0, nil
	}
	until, err := ru.Hold(lim, b, now)
	if err != nil {
		return 0, err
	}
	return until.Sub(now), nil
}

// Hold locks a bucket out, and returns the end of its hold. A longer hold
// stays. If a concurrent request has already locked the bucket out, that
// lock-out does not double: it holds the bucket before it stores its length, and
// here the length is read before the hold.
func (ru Rule) Hold(lim stint.Decider, b stint.Bucket, now time.Time) (time.Time, error) {
	length, grows := ru.For, ru.Max > ru.For && b.Key.ID != ""
	if grows {
		last, _, err := Last(lim, b.Key)
		if err != nil {
			return time.Time{}, err
		}
		if b, err = lim.Bucket(b.Key); err != nil {
			return time.Time{}, err
		}
		if length = ru.next(last); last > 0 && !b.HeldUntil.IsZero() {
			length = max(ru.For, min(last, ru.Max))
		}
	}
	until := now.Add(length)
	if !b.HeldUntil.Before(until) {
		return b.HeldUntil, nil
	}
	end, err := lim.Hold(b.Key, until) // another hold may have come
	if err != nil || !grows {
		return end, err
	}
	return end, ru.remember(lim, b.Key, length, until)
}
