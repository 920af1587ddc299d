package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Table has the leases of this machine, and the buckets that were empty lately.
type Table struct {
	Config
	seed   maphash.Seed
	since  atomic.Pointer[script.Since] // of the limits in force
	shards [shards]shard
}

const shards = 64

// shard has some of the buckets. Its lock guards them.
type shard struct {
	mu      sync.Mutex
	buckets map[stint.Key]*bucket
	seen    map[stint.Key]*sighting
	_       [40]byte // a cache line each
}

// maxBuckets is the most buckets of a shard. A decision on any other is a trip.
const maxBuckets = 1024

// bucket is a bucket with a lease.
type bucket struct {
	lease
	key   stint.Key
	limit stint.Limit
	since *script.Since // of the limits that it was last asked for with
	busy  bool          // a question is under way
}

// Config are the settings of a Table, and the functions that it calls.
type Config struct {
	MaxLease      time.Duration          // the longest life of a lease
	RepeatDenials time.Duration          // a denial may be repeated without a trip
	Timeout       time.Duration          // of a call
	Label         func(stint.Key) string // a bucket, as errors have it

	Elapsed func() int64                       // the time by the clock that measures the age of leases
	Away    func(stint.Key) bool               // the server that has a bucket is away
	Lease   func([]*script.LeaseRequest) error // makes the calls that the requests need
	Begin   func(f func()) bool                // starts a goroutine, unless no more may start
}

// NewTable returns a Table without leases.
func NewTable(c Config) *Table {
	t := &Table{Config: c, seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].buckets, t.shards[i].seen = make(map[stint.Key]*bucket), make(map[stint.Key]*sighting)
	}
	return t
}

func (t *Table) shardOf(key stint.Key) int {
	return int((maphash.String(t.seed, key.ID) + uint64(key.Name)*0x9E3779B97F4A7C15) % shards)
}

// lock locks and returns the shard of a bucket.
func (t *Table) lock(key stint.Key) *shard {
	s := &t.shards[t.shardOf(key)]
	s.mu.Lock()
	return s
}

// of returns the bucket of a request, which may be new, or nil if it may have no lease:
// there are too many buckets, or the limits of the request are not in force any more. A
// bucket whose limit has changed is new.
func (s *shard) of(t *Table, r *script.Request, elapsed int64) *bucket {
	b := s.buckets[r.Bucket]
	if b != nil && b.limit == r.Limit {
		b.since = r.Since
		return b
	}
	if r.Since != t.since.Load() || b == nil && len(s.buckets) >= maxBuckets && !s.makeRoom() {
		return nil
	}
	b = &bucket{lease: newLease(r.Limit.Burst, int64(r.Limit.Tolerance()), t.MaxLease, elapsed),
		key: r.Bucket, limit: r.Limit, since: r.Since}
	s.buckets[r.Bucket] = b
	return b
}

// makeRoom removes a bucket that has no tokens. It tries a few, and returns
// false if all of them are in use.
func (s *shard) makeRoom() bool {
	looks := 8
	for _, b := range s.buckets {
		if !b.busy && b.grants[0].left == 0 && b.grants[1].left == 0 {
			delete(s.buckets, b.key)
			return true
		}
		if looks--; looks == 0 {
			break
		}
	}
	return false
}

// outcome returns a decision of the lease. The server's time is at most the one of
// the outcome, because the server read its clock after the question was sent.
func (b *bucket) outcome(elapsed int64) script.Answer {
	return script.Answer{Now: b.now + elapsed - b.sent, TAT: b.seenTAT(elapsed)}
}

// Check decides on a check if the lease has the tokens. Otherwise the request needs only
// those that the lease lacks.
func (t *Table) Check(r *script.Request) (done bool) {
	elapsed := t.Elapsed()
	s := t.lock(r.Bucket)
	defer s.mu.Unlock()
	b := s.buckets[r.Bucket]
	if b == nil || b.limit != r.Limit || r.Cost == 0 {
		return false
	}
	if left := b.left(elapsed); left < r.Cost {
		r.Need = max(0, r.Need-left*b.interval)
		return false
	}
	r.Answer = b.outcome(elapsed)
	r.TAT += r.Cost * b.interval // as if they were spent
	return true
}

// Take takes as many tokens as the lease has, up to the cost. If done is false, the
// request needs the others.
func (t *Table) Take(r *script.Request) (done bool) {
	elapsed := t.Elapsed()
	s := t.lock(r.Bucket)
	defer s.mu.Unlock()
	b := s.buckets[r.Bucket]
	if b == nil || b.limit != r.Limit {
		return false
	}
	if r.Taken = min(r.Cost, b.left(elapsed)); r.Taken > 0 {
		b.take(elapsed, r.Taken)
	}
	r.Answer = b.outcome(elapsed)
	r.Cost -= r.Taken
	r.Need -= r.Taken * b.interval
	return r.Taken > 0 && r.Cost == 0
}

// Busy reports whether a question is under way.
func (t *Table) Busy() bool {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for _, b := range s.buckets {
			if b.busy {
				s.mu.Unlock()
				return true
			}
		}
		s.mu.Unlock()
	}
	return false
}
