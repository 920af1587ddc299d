package redislimit

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// seen remembers buckets that were empty lately. A TAT only grows, unless tokens
// are returned elsewhere. So a request that the last TAT denies is denied again,
// for a while, without a trip. At most sets × ways buckets are remembered.
type seen struct {
	seed maphash.Seed
	sets [4096]seenSet
}

type seenSet struct {
	mu   sync.Mutex
	ways []sighting // at most 4, the newest first
}

type sighting struct {
	key       stint.Key
	tat, hold int64
	now       int64 // the server's time in the answer
	sent      int64 // elapsed time before the question
	asked     int64 // elapsed time when a caller asked again, or 0
}

const seenWays = 4

func newSeen() *seen { return &seen{seed: maphash.MakeSeed()} }

func (s *seen) set(key stint.Key) *seenSet {
	return &s.sets[(maphash.String(s.seed, key.ID)+uint64(key.Name)*0x9E3779B97F4A7C15)%uint64(len(s.sets))]
}

// denies reports whether a bucket that was seen denies the request, and sets
// its answer. The server's time is then at most the returned now, because the
// server read its clock after the question was sent. When the sighting is older
// than fresh, one caller asks again, and the others are denied until it has its
// answer.
func (s *seen) denies(r *request, elapsed int64, fresh, timeout time.Duration) (now int64, denied bool) {
	if fresh <= 0 {
		return 0, false
	}
	set := s.set(r.key)
	set.mu.Lock()
	defer set.mu.Unlock()
	for i := range set.ways {
		e := &set.ways[i]
		if e.key != r.key {
			continue
		}
		age := elapsed - e.sent
		now = e.now + age
		if age < 0 || age > int64(fresh+2*timeout) {
			return 0, false
		}
		wait := max(max(now, e.tat)-now-(r.tolerance-r.need), e.hold-now)
		if wait <= 0 {
			return 0, false
		}
		if age > int64(fresh) && e.asked == 0 {
			e.asked = elapsed
			return 0, false
		}
		r.tat, r.wait, r.hold = e.tat, wait, e.hold
		return now, true
	}
	return 0, false
}

// put remembers the answer if the bucket is empty. Otherwise it forgets an
// older answer.
func (s *seen) put(r *request, now, sent int64, empty bool) {
	set := s.set(r.key)
	set.mu.Lock()
	defer set.mu.Unlock()
	at := len(set.ways)
	for i := range set.ways {
		if set.ways[i].key == r.key {
			if set.ways[i].now > now {
				return // a newer answer
			}
			at = i
			break
		}
	}
	switch {
	case !empty && at < len(set.ways):
		set.ways = append(set.ways[:at], set.ways[at+1:]...)
	case empty:
		if at == len(set.ways) && at < seenWays {
			set.ways = append(set.ways, sighting{})
		}
		at = min(at, seenWays-1)
		copy(set.ways[1:at+1], set.ways[:at])
		set.ways[0] = sighting{key: r.key, tat: r.tat, hold: r.hold, now: now, sent: sent}
	}
}

func (s *seen) forget(key stint.Key) {
	set := s.set(key)
	set.mu.Lock()
	defer set.mu.Unlock()
	for i := range set.ways {
		if set.ways[i].key == key {
			set.ways = append(set.ways[:i], set.ways[i+1:]...)
			return
		}
	}
}

func (s *seen) clear() {
	for i := range s.sets {
		set := &s.sets[i]
		set.mu.Lock()
		set.ways = nil
		set.mu.Unlock()
	}
}
