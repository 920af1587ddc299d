package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Seen remembers buckets that were empty lately. A TAT only grows, unless tokens
// are returned elsewhere. So a request that the last TAT denies is denied again,
// for a while, without a trip. At most sets × ways buckets are remembered.
type Seen struct {
	seed  maphash.Seed
	since atomic.Pointer[script.Since] // of the limits in force
	sets  [4096]sightings
}

type sightings struct {
	mu   sync.Mutex
	ways []sighting // at most 4, the newest first
}

type sighting struct {
	key stint.Key
	script.Answer
	sent  int64 // elapsed time before the question
	asked int64 // elapsed time when a caller asked again, or 0
}

const seenWays = 4

// NewSeen returns an empty Seen.
func NewSeen() *Seen { return &Seen{seed: maphash.MakeSeed()} }

func (s *Seen) set(key stint.Key) *sightings {
	return &s.sets[(maphash.String(s.seed, key.ID)+uint64(key.Name)*0x9E3779B97F4A7C15)%uint64(len(s.sets))]
}

// Denies returns the denial of a request by a bucket that was seen, if that denies
// it. A spend is allowed if the bucket is full within room nanoseconds. The
// server's time is then at most the returned one, because the server read its
// clock after the question was sent. When the sighting is older than fresh, one
// caller asks again, and the others are denied until it has its answer.
func (s *Seen) Denies(key stint.Key, room, elapsed int64, fresh, timeout time.Duration) (o script.Answer, denied bool) {
	if fresh <= 0 {
		return o, false
	}
	set := s.set(key)
	set.mu.Lock()
	defer set.mu.Unlock()
	for i := range set.ways {
		e := &set.ways[i]
		if e.key != key {
			continue
		}
		age := elapsed - e.sent
		now := e.Now + age
		if age < 0 || age > int64(fresh+2*timeout) {
			return o, false
		}
		wait := max(max(now, e.TAT)-now-room, e.Hold-now)
		if wait <= 0 {
			return o, false
		}
		if age > int64(fresh) && e.asked == 0 {
			e.asked = elapsed
			return o, false
		}
		return script.Answer{Now: now, TAT: e.TAT, Wait: wait, Hold: e.Hold}, true
	}
	return o, false
}

// Put remembers the answer to a question that was sent at an elapsed time, if
// the bucket is empty. Otherwise it forgets an older answer. The times of two
// answers do not say which is older if the server's clock was set back: then the
// later question has the newer one. An answer under other limits than those in
// force is not remembered.
func (s *Seen) Put(key stint.Key, since *script.Since, o script.Answer, sent int64, empty bool) {
	set := s.set(key)
	set.mu.Lock()
	defer set.mu.Unlock()
	if since != s.since.Load() {
		return
	}
	at := len(set.ways)
	for i := range set.ways {
		if set.ways[i].key == key {
			if set.ways[i].Now > o.Now && set.ways[i].sent >= sent {
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
		set.ways[0] = sighting{key: key, Answer: o, sent: sent}
	}
}

// Forget forgets a bucket, because tokens are returned to it.
func (s *Seen) Forget(key stint.Key) {
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

// SetLimits puts other limits in force, and forgets all buckets.
func (s *Seen) SetLimits(since *script.Since) {
	s.since.Store(since)
	for i := range s.sets {
		set := &s.sets[i]
		set.mu.Lock()
		set.ways = nil
		set.mu.Unlock()
	}
}
