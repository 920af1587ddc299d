package stint

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/table"
)

// A lane decides on one hot bucket without the lock of its shard. A lock that
// many goroutines want at once costs more than the work that it guards: its cache
// line moves from core to core, and goroutines end up waiting for the scheduler.
// A fast path that fails to swap the TAT twice takes the lock after all, because
// too many processors try. Those that wait for the lock leave the line of the TAT
// to the others.
//
// A fast path counts the spends for which it had to wait for the lock. After
// promoteAfter of them at one bucket, and none at another bucket of the shard in
// between, it publishes a lane. The lane then has the bucket's TAT, and the TAT in
// the slot is out of date. Fast paths for the bucket find the lane before they ask
// for the lock, and compare and swap its TAT. A denial writes nothing but its
// count.
//
// All else that needs a TAT locks the shard with shard.lock, which also retires
// the lane: it puts laneRetired in place of the TAT, and writes the TAT to the
// slot. So a hold, a flush, an eviction, new limits, or a spend from several
// buckets finds the TATs of all buckets in their slots. A decision that finds
// laneRetired takes the lock instead. If the bucket gets hot again, it gets a new
// lane, so a decision that read its TAT from the old lane cannot swap a stale one
// into the new lane. Fast paths for other buckets of the shard take the lock
// without retiring the lane, because they change only their own slots.
//
// A shard has at most one lane. A bucket gets none if it has a hold or a queue, if
// it is in a tree of shares, or if its limit is Leased or Synced or follows the
// calendar.
type lane struct {
	key   Key
	hash  uint64
	rule  *rule
	tally *tally
	clock *clock.Clock
	index uint32 // of the slot

	tat atomic.Int64 // in another cache line: it changes, and the fields above do not
	_   [56]byte
}

const (
	promoteAfter = 16
	laneTries    = 2             // to swap the TAT, without the lock
	laneRetired  = math.MinInt64 // in place of a TAT
)

// lanes has the lanes in force, each at an index that comes from its hash. All
// decisions read it and few change it, so it stays in the cache of each processor.
type lanes [64]atomic.Pointer[lane]

func (ls *lanes) at(hash uint64) *atomic.Pointer[lane] { return &ls[hash%uint64(len(ls))] }

func (n *lane) is(a *ask) bool {
	return n.hash == a.hash && n.key == a.key
}

// decide is fastPathLocked without a lock. It declines if it cannot swap the TAT
// in as many tries.
func (n *lane) decide(a *ask, d *Decision, tries int) fastAnswer {
	r, now := n.rule, a.now
	if uint64(a.cost) > uint64(r.rate.burst) { // it may be negative
		return fastDeclined
	}
	tat := n.tat.Load()
	next, wait := int64(0), int64(0)
	for {
		if tat == laneRetired {
			return fastDeclined
		}
		if next, wait = r.rate.spend(tat, now, a.cost); wait != 0 || a.op != opSpend || next == tat {
			break
		}
		if n.tat.CompareAndSwap(tat, next) {
			break
		}
		if tries--; tries == 0 {
			return fastDeclined
		}
		tat = n.tat.Load()
	}
	if wait != 0 {
		if fresh := n.clock.Now(); overtaken(now, fresh, wait) {
			a.now = fresh
			return n.decide(a, d, tries)
		}
	}
	if a.op == opSpend {
		n.tally.count(wait == 0)
	}
	if d != nil {
		d.Allowed = wait == 0
		d.RetryAfter = time.Duration(wait)
		d.Key = n.key
		r.reportAt(d, next, now, now)
	}
	if wait != 0 {
		return fastDenied
	}
	return fastAllowed
}

// lock takes the lock of a shard for anything but a fast path.
func (s *shard) lock() {
	s.mu.Lock()
	if s.lane != nil {
		s.retireLocked()
	}
}

// retireLocked gives the slot of a hot bucket its TAT back.
func (s *shard) retireLocked() {
	n := s.lane
	s.lane, s.contended = nil, 0
	tat := n.tat.Swap(laneRetired)
	s.directory.lanes.at(n.hash).Store(nil)
	if tat != s.At(n.index).TAT() {
		s.Write(n.index, tat)
	}
}

// contendedLocked counts a spend for which a fast path had to wait for the lock.
func (s *shard) contendedLocked(l *Limiter, a *ask) {
	i, ok := s.findLocked(a.key, a.hash)
	if !ok || s.lane != nil {
		return
	}
	if s.rival != i {
		s.rival, s.contended = i, 0
	}
	if s.contended++; s.contended == promoteAfter {
		s.contended = 0
		l.promoteLocked(a.located, i)
	}
}

// promoteLocked gives a bucket a lane, if it can have one. A bucket that only a
// Check has clamped cannot, because a lane does not record that it is used now.
func (l *Limiter) promoteLocked(at located, i uint32) {
	s, b, place := at.shard, at.shard.At(i), l.directory.lanes.at(at.hash)
	r := &s.limits.rules[b.Rule()]
	if !r.limited() || r.limit.calendar != 0 || r.level(l.opts.Durability) >= Leased ||
		b.Has(table.Gate|table.Clamped) || place.Load() != nil {
		return
	}
	key := slotKey(b)
	s.lane = &lane{key: key, hash: at.hash, rule: r, tally: l.directory.tally(key.Name), clock: l.clock, index: i}
	s.lane.tat.Store(b.TAT())
	place.Store(s.lane)
}

// tally counts the decisions of all lanes of a Name. Many goroutines count at
// once, so each takes one of several cells, by the address of its stack.
type tally [64]struct {
	allowed, denied atomic.Uint64
	_               [48]byte
}

func (t *tally) count(allowed bool) {
	var here byte
	c := &t[uint64(uintptr(unsafe.Pointer(&here))>>10)*table.Golden>>58]
	if allowed {
		c.allowed.Add(1)
	} else {
		c.denied.Add(1)
	}
}

func (t *tally) sum() (c count) {
	for i := range t {
		c.allowed += t[i].allowed.Load()
		c.denied += t[i].denied.Load()
	}
	return c
}

// tally returns the tally of a Name. It lives as long as the Limiter, because a
// decision may be counted after its lane was retired.
func (t *directory) tally(name Name) *tally {
	if c, ok := t.tallies.Load(name); ok {
		return c.(*tally)
	}
	c, _ := t.tallies.LoadOrStore(name, new(tally))
	return c.(*tally)
}
