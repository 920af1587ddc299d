package stint

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/stint-go/stint/internal/cache"
)

// Bucket is the state of one bucket.
type Bucket struct {
	Key        Key
	Limit      Limit // Unlimited if there is none
	Remaining  int64 // whole tokens; 0 if it is Unlimited or Blocked
	ResetAfter time.Duration
	HeldUntil  time.Time // zero if there is no hold
}

// Buckets yields the buckets of a limit that are not full, or are held, in no
// particular order, from memory and from the store. Each is read when it is
// yielded. A bucket that is made during the loop may be missing, and one that
// leaves memory may have its earlier state. If the store fails, the error is
// the last thing yielded.
func (l *Limiter) Buckets(name Name) iter.Seq2[Bucket, error] {
	return func(yield func(Bucket, error) bool) {
		if l.isClosed() {
			yield(Bucket{}, ErrClosed)
			return
		}
		if name == Unknown {
			return // the store has the holds there
		}
		fresh := make(map[Key]bool) // those whose present state may not be in the store
		l.cache.Fresh(uint16(name), func(id string) { fresh[Key{name, id}] = true })
		for c, err := range l.store.All(name) {
			if err != nil {
				yield(Bucket{}, fmt.Errorf("stint: list buckets: %w", err))
				return
			}
			b, live, resident := l.inspect(c.Key, c.TAT)
			if !resident && fresh[c.Key] {
				continue // it was saved since: the loop over fresh lists it
			}
			delete(fresh, c.Key)
			if live && !yield(b, nil) {
				return
			}
		}
		for key := range fresh {
			b, live, resident := l.inspect(key, 0)
			if !resident { // it left memory, so the store may have it
				tat, err := l.store.Load(key)
				if err != nil {
					yield(Bucket{}, fmt.Errorf("stint: list buckets: %w", err))
					return
				}
				b, live, _ = l.inspect(key, tat)
			}
			if live && !yield(b, nil) {
				return
			}
		}
	}
}

// Bucket returns the state of one bucket, which may be full. Bucket changes
// nothing and takes no space in memory: a bucket that is not in memory is read
// from the store. Its errors are those of Check.
func (l *Limiter) Bucket(key Key) (Bucket, error) {
	b, err := l.bucket(key)
	return b, l.failed(key, err)
}

func (l *Limiter) bucket(key Key) (Bucket, error) {
	if err := checkID(key.ID); err != nil {
		return Bucket{}, err
	}
	seen, err := l.cache.Read(cacheKey(key))
	if err != nil {
		return Bucket{}, err
	}
	b, _ := bucketOf(key, &seen)
	return b, nil
}

// inspect returns the state of a bucket with this TAT in the store. A live
// bucket is not full, or is held. A resident one is in memory.
func (l *Limiter) inspect(key Key, stored int64) (b Bucket, live, resident bool) {
	if checkID(key.ID) != nil {
		return Bucket{}, false, false // not one of stint's
	}
	seen, ok := l.cache.Look(cacheKey(key), stored)
	if !ok {
		return Bucket{}, false, true
	}
	b, live = bucketOf(key, &seen)
	return b, live, seen.Resident
}

func bucketOf(key Key, seen *cache.Seen) (b Bucket, live bool) {
	r := seen.Rule
	b = Bucket{Key: key, Limit: limitOf(r), ResetAfter: time.Duration(r.ResetAfter(seen.TAT, seen.Now))}
	if r.Limited() {
		b.Remaining = r.Remaining(seen.TAT, seen.Now)
	}
	b.HeldUntil = endOfHold(seen.Hold)
	return b, b.ResetAfter > 0 || seen.Hold != 0
}

// Snapshot writes a copy of the store's file, with everything spent so far,
// and returns its length in bytes. It serves backups and inspection while
// decisions go on. If the file was removed, the copy still has all buckets.
// OpenBolt has the details; a store without a file returns an error.
func (l *Limiter) Snapshot(w io.Writer) (int64, error) {
	if err := l.Flush(); err != nil && !errors.Is(err, ErrGone) {
		return 0, err
	}
	return l.store.Snapshot(w)
}
