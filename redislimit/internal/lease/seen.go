package lease

import (
	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// sighting is the answer for a bucket that was empty lately. A TAT only grows, unless
// tokens are returned elsewhere. So a request that the last TAT denies is denied again,
// for a while, without a trip.
type sighting struct {
	script.Answer
	sent  int64 // elapsed time before the question
	asked bool  // a caller has asked again
}

// maxSeen is the most sightings of a shard. It forgets any one for each further one.
const maxSeen = 256

// Denies reports whether a sighting denies a request, and puts the denial into it.
func (t *Table) Denies(r *script.Request, elapsed int64) bool {
	s := t.lock(r.Bucket)
	defer s.mu.Unlock()
	o, denied := t.denies(s, r.Bucket, r.Room(), elapsed)
	if denied {
		r.Answer = o
	}
	return denied
}

// denies returns the denial of a request by a bucket that was seen, if that denies
// it. A spend is allowed if the bucket is full within room nanoseconds. The
// server's time is then at most the returned one, because the server read its
// clock after the question was sent. When the sighting is older than RepeatDenials,
// one caller asks again, and the others are denied until it has its answer. The caller
// holds the lock of the shard.
func (t *Table) denies(s *shard, key stint.Key, room, elapsed int64) (o script.Answer, denied bool) {
	e := s.seen[key]
	if e == nil {
		return o, false
	}
	age := elapsed - e.sent
	now := e.Now + age
	if age < 0 || age > int64(t.RepeatDenials+2*t.Timeout) {
		return o, false
	}
	wait := max(max(now, e.TAT)-now-room, e.Hold-now)
	if wait <= 0 {
		return o, false
	}
	if age > int64(t.RepeatDenials) && !e.asked {
		e.asked = true
		return o, false
	}
	return script.Answer{Now: now, TAT: e.TAT, Wait: wait, Hold: e.Hold}, true
}

// Saw remembers the answer to a question that was sent at an elapsed time, if
// the bucket is empty. Otherwise it forgets an older answer. The times of two
// answers do not say which is older if the server's clock was set back: then the
// later question has the newer one. An answer under other limits than those in
// force is not remembered.
func (t *Table) Saw(r *script.Request, sent int64, empty bool) {
	s := t.lock(r.Bucket)
	defer s.mu.Unlock()
	t.saw(s, r.Bucket, r.Since, r.Answer, sent, empty)
}

// saw is Saw for a caller that holds the lock of the shard.
func (t *Table) saw(s *shard, key stint.Key, since *script.Since, o script.Answer, sent int64, empty bool) {
	old := s.seen[key]
	newer := old != nil && old.Now > o.Now && old.sent >= sent
	if newer || since != t.since.Load() || t.RepeatDenials <= 0 {
		return
	}
	if delete(s.seen, key); !empty {
		return
	}
	for other := range s.seen {
		if len(s.seen) < maxSeen {
			break
		}
		delete(s.seen, other)
	}
	s.seen[key] = &sighting{Answer: o, sent: sent}
}

// Forget forgets the sighting of a bucket, because tokens are returned to it.
func (t *Table) Forget(key stint.Key) {
	s := t.lock(key)
	defer s.mu.Unlock()
	delete(s.seen, key)
}
