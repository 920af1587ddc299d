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
// for a while, without a trip.
type Seen struct {
	seed   maphash.Seed
	since  atomic.Pointer[script.Since] // of the limits in force
	shards [256]sightings
}

type sightings struct {
	mu sync.Mutex
	of map[stint.Key]*sighting
}

type sighting struct {
	script.Answer
	sent  int64 // elapsed time before the question
	asked bool  // a caller has asked again
}

// maxSeen is the most buckets that a shard remembers. It forgets any one for each
// further one.
const maxSeen = 64

// NewSeen returns an empty Seen.
func NewSeen() *Seen { return &Seen{seed: maphash.MakeSeed()} }

// lock locks and returns the shard of a bucket.
func (s *Seen) lock(key stint.Key) *sightings {
	shard := &s.shards[hash(s.seed, key)%uint64(len(s.shards))]
	shard.mu.Lock()
	return shard
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
	shard := s.lock(key)
	defer shard.mu.Unlock()
	e := shard.of[key]
	if e == nil {
		return o, false
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
	if age > int64(fresh) && !e.asked {
		e.asked = true
		return o, false
	}
	return script.Answer{Now: now, TAT: e.TAT, Wait: wait, Hold: e.Hold}, true
}

// Put remembers the answer to a question that was sent at an elapsed time, if
// the bucket is empty. Otherwise it forgets an older answer. The times of two
// answers do not say which is older if the server's clock was set back: then the
// later question has the newer one. An answer under other limits than those in
// force is not remembered.
func (s *Seen) Put(key stint.Key, since *script.Since, o script.Answer, sent int64, empty bool) {
	shard := s.lock(key)
	defer shard.mu.Unlock()
	old := shard.of[key]
	if since != s.since.Load() || old != nil && old.Now > o.Now && old.sent >= sent { // a newer answer
		return
	}
	if delete(shard.of, key); !empty {
		return
	}
	if shard.of == nil {
		shard.of = make(map[stint.Key]*sighting)
	}
	for other := range shard.of {
		if len(shard.of) < maxSeen {
			break
		}
		delete(shard.of, other)
	}
	shard.of[key] = &sighting{Answer: o, sent: sent}
}

// Forget forgets a bucket, because tokens are returned to it.
func (s *Seen) Forget(key stint.Key) {
	shard := s.lock(key)
	defer shard.mu.Unlock()
	delete(shard.of, key)
}

// SetLimits puts other limits in force, and forgets all buckets.
func (s *Seen) SetLimits(since *script.Since) {
	s.since.Store(since)
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.Lock()
		shard.of = nil
		shard.mu.Unlock()
	}
}
