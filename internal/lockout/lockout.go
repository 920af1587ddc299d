// Package lockout holds buckets that requests have emptied: the lock-outs of
// the rules of HTTP and gRPC servers.
package lockout

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// A Rule says how long a lock-out lasts. If Max is longer than For, each
// lock-out of an id is twice as long as the one before, up to Max. If Max has
// passed since the end of the last lock-out, the next one takes For again.
//
// The lock-outs of an id are counted in the Limiter, so that the count survives
// a restart. The count is a hold on another id of the same limit: the id and
// CountSuffix. The hold ends when the count starts anew. The last six bits of
// that instant, in nanoseconds, are the count.
type Rule struct {
	For, Max time.Duration
}

// CountSuffix is the end of the ids that count lock-outs.
const CountSuffix = " lock-outs"

const countBits = 1<<6 - 1

// countingLocks serialize the lock-outs of an id. There are many, because a
// hold waits for the disk, and different ids should seldom wait for each other. They
// are held while the Limiter is called, so they come before all of its locks.
var (
	countingLocks [64]sync.Mutex
	countingSeed  = maphash.MakeSeed()
)

// CountKey returns the key of the hold that counts a key's lock-outs.
func CountKey(key stint.Key) stint.Key {
	if len(key.ID) > 500 { // ids have 512 bytes at most
		sum := sha256.Sum256([]byte(key.ID))
		key.ID = hex.EncodeToString(sum[:])
	}
	key.ID += CountSuffix
	return key
}

// IsCount reports whether an id has the form of an id that counts lock-outs. A
// client must not choose such an id.
func IsCount(id string) bool { return strings.HasSuffix(id, CountSuffix) }

// length returns the length of a lock-out after n others.
func (ru Rule) length(n int64) time.Duration {
	d := ru.For
	for range n {
		if d >= ru.Max/2 {
			return max(ru.For, ru.Max)
		}
		d *= 2
	}
	return d
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
// lock-out does not double.
func (ru Rule) Hold(lim stint.Decider, b stint.Bucket, now time.Time) (time.Time, error) {
	n, grows := int64(0), ru.Max > ru.For && b.Key.ID != ""
	if grows {
		lock := &countingLocks[maphash.Comparable(countingSeed, b.Key)%uint64(len(countingLocks))]
		lock.Lock()
		defer lock.Unlock()
		var err error
		if b, err = lim.Bucket(b.Key); err != nil {
			return time.Time{}, err
		}
		count, err := lim.Bucket(CountKey(b.Key))
		if err != nil {
			return time.Time{}, err
		}
		if !count.HeldUntil.IsZero() {
			n = count.HeldUntil.UnixNano() & countBits
		}
		if n > 0 && !b.HeldUntil.IsZero() {
			n--
		}
	}
	until := now.Add(ru.length(n))
	if !b.HeldUntil.Before(until) {
		return b.HeldUntil, nil
	}
	end, err := lim.ExtendHold(b.Key, until) // another hold may have come
	if err != nil || !grows {
		return end, err
	}
	forget := until.Add(ru.Max).UnixNano() | countBits
	return end, lim.Hold(CountKey(b.Key), time.Unix(0, forget-countBits+min(n+1, countBits)))
}
