package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/hold"
)

// growth says how long a lock-out lasts. If most is longer than first, each
// lock-out of an id is twice as long as the one before, up to most. If most has
// passed since the end of the last lock-out, the next one takes first again.
//
// The Limiter remembers the length of an id's last lock-out, so that it survives
// a restart. It is the time between the ends of two holds on other ids of the
// same limit: countKey, and the countKey of that. The first ends when the
// lock-out is forgotten. A Limiter whose clock was wrong moves all holds alike,
// so the length stays.
type growth struct {
	first, most time.Duration
}

// countSuffix is the end of the ids that remember lock-outs.
const countSuffix = " lock-outs"

// longestMemory bounds how long a lock-out is remembered, because a Limiter can
// hold nothing beyond the year 2162.
const longestMemory = 50 * 365 * 24 * time.Hour

// countKey returns the key of the hold that lasts until a key's lock-outs are
// forgotten.
func countKey(key stint.Key) stint.Key {
	if len(key.ID) > 500 { // ids have 512 bytes at most
		sum := sha256.Sum256([]byte(key.ID))
		key.ID = hex.EncodeToString(sum[:])
	}
	key.ID += countSuffix
	return key
}

// IsLockOutCount reports whether a rule with LockOutMax remembers lock-outs under
// a key. A hold on that key denies no request. A client must not choose its id.
func IsLockOutCount(key stint.Key) bool { return strings.HasSuffix(key.ID, countSuffix) }

// lastLockOut returns the length of the last lock-out of a key, or 0 if there is
// none, or if the file does not have it, because an earlier version has written it.
func lastLockOut(lim stint.Decider, key stint.Key) (time.Duration, error) {
	key = countKey(key)
	longer, err := lim.Bucket(countKey(key)) // it is written last, so it is read first
	if err != nil {
		return 0, err
	}
	count, err := lim.Bucket(key)
	if err != nil || count.HeldUntil.IsZero() {
		return 0, err
	}
	return max(0, longer.HeldUntil.Sub(count.HeldUntil)), nil
}

// remember stores the length of the last lock-out of a key, which ends at until.
func (g growth) remember(lim stint.Decider, key stint.Key, length time.Duration, until time.Time) error {
	forgotten, key := until.Add(min(g.most, longestMemory)), countKey(key)
	longer, ends := countKey(key), forgotten.Add(length)
	// The second hold may be of a lock-out that was forgotten, or of a larger
	// LockOutMax. It goes first: if this process is stopped here, the length is 0.
	b, err := lim.Bucket(longer)
	if err == nil && b.HeldUntil.After(ends) {
		err = lim.Release(longer)
	}
	if err == nil {
		err = hold.Until(lim, key, forgotten)
	}
	if err == nil {
		_, err = lim.Hold(longer, ends)
	}
	return err
}

// next returns the length of a lock-out. last is that of the one before, or 0.
func (g growth) next(last time.Duration) time.Duration {
	if last >= g.most/2 {
		return max(g.first, g.most)
	}
	return max(g.first, 2*last)
}

// lockOut holds the bucket of a rule if it has too few tokens left for another
// request like this one.
func (p *Pass[R, O]) lockOut(a *part[R, O]) error {
	if a.rule.LockOut <= 0 || a.Shadow {
		return nil
	}
	p.mu.Lock()
	was := *a
	p.mu.Unlock()
	if was.state != spent || was.Cost <= 0 {
		return nil
	}
	locked, err := was.lockOut(p.door.lim)
	if err != nil || locked == 0 {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.Locked, p.changed = locked, true
	return nil
}

// lockOut locks the rule's bucket out, and returns the rest of its hold, or 0 if
// there are enough tokens left. A total or a floor that has too few tokens locks no
// id out, because others may have emptied it.
func (a *part[R, O]) lockOut(lim stint.Decider) (rest time.Duration, err error) {
	d, at, least := &a.Decision, time.Unix(0, a.begun), a.Cost
	if a.rule.CostFunc != nil {
		least = 1
	}
	if d.Remaining >= least { // of several buckets the one with the fewest decides
		return 0, nil
	}
	now := lim.Now()
	b, err := lim.Bucket(d.RuleKey)
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
	case d.Key == d.RuleKey:
		back := d.ResetAfter - now.Sub(at) - b.ResetAfter
		left = d.Remaining + int64(back/interval)
	default:
		left -= int64(now.Sub(at) / interval)
	}
	if left >= least {
		return 0, nil
	}
	until, err := growth{a.rule.LockOut, a.rule.LockOutMax}.hold(lim, b, now)
	if err != nil {
		return 0, err
	}
	return until.Sub(now), nil
}

// hold locks a bucket out, and returns the end of its hold. A longer hold
// stays. If a concurrent request has already locked the bucket out, that
// lock-out does not double: it holds the bucket before it stores its length, and
// here the length is read before the hold.
func (g growth) hold(lim stint.Decider, b stint.Bucket, now time.Time) (time.Time, error) {
	length, grows := g.first, g.most > g.first && b.Key.ID != ""
	if grows {
		last, err := lastLockOut(lim, b.Key)
		if err != nil {
			return time.Time{}, err
		}
		if b, err = lim.Bucket(b.Key); err != nil {
			return time.Time{}, err
		}
		if length = g.next(last); last > 0 && !b.HeldUntil.IsZero() {
			length = max(g.first, min(last, g.most))
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
	return end, g.remember(lim, b.Key, length, until)
}
