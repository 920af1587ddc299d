package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// A rule with LockOutMax counts the lock-outs of an id in the Limiter, so that
// the count survives a restart. The count is a hold on another id of the same
// limit: the id and countSuffix. The hold ends when the count starts anew. The
// last six bits of that instant, in nanoseconds, are the count.
const (
	countSuffix = " lock-outs"
	countBits   = 1<<6 - 1
)

// countingLocks serialize the lock-outs of an id. There are many, because Hold
// waits for the disk, and different ids should seldom wait for each other.
var (
	countingLocks [64]sync.Mutex
	countingSeed  = maphash.MakeSeed()
)

// counted returns the key of the hold that counts a key's lock-outs.
func counted(key stint.Key) stint.Key {
	if len(key.ID) > 500 { // ids have 512 bytes at most
		sum := sha256.Sum256([]byte(key.ID))
		key.ID = hex.EncodeToString(sum[:])
	}
	key.ID += countSuffix
	return key
}

// IsLockOutCount reports whether a rule with LockOutMax counts lock-outs under a
// key. A hold on that key denies no request.
func IsLockOutCount(key stint.Key) bool { return strings.HasSuffix(key.ID, countSuffix) }

// isCount reports whether a client sent the id of a count.
func (ru *Rule) isCount(id string) bool {
	return ru.LockOutMax > 0 && strings.HasSuffix(id, countSuffix)
}

// lockOutAfter returns the length of a lock-out after n others.
func (ru *Rule) lockOutAfter(n int64) time.Duration {
	d := ru.LockOut
	for range n {
		if d >= ru.LockOutMax/2 {
			return max(ru.LockOut, ru.LockOutMax)
		}
		d *= 2
	}
	return d
}

// hold locks a bucket out, and returns the end of its hold. A longer hold
// stays. If a concurrent request has already locked the bucket out, that
// lock-out does not double.
func (ru *Rule) hold(lim stint.Decider, b stint.Bucket, now time.Time) (time.Time, error) {
	n, grows := int64(0), ru.LockOutMax > ru.LockOut && b.Key.ID != ""
	if grows {
		lock := &countingLocks[maphash.Comparable(countingSeed, b.Key)%uint64(len(countingLocks))]
		lock.Lock()
		defer lock.Unlock()
		var err error
		if b, err = lim.Bucket(b.Key); err != nil {
			return time.Time{}, err
		}
		count, err := lim.Bucket(counted(b.Key))
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
	until := now.Add(ru.lockOutAfter(n))
	if !b.HeldUntil.Before(until) {
		return b.HeldUntil, nil
	}
	if err := lim.Hold(b.Key, until); err != nil || !grows {
		return until, err
	}
	forget := until.Add(ru.LockOutMax).UnixNano() | countBits
	return until, lim.Hold(counted(b.Key), time.Unix(0, forget-countBits+min(n+1, countBits)))
}
