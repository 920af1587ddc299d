package stint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// A decision at Leased or Synced waits for a commit, and so does a hold. The
// committer puts changes that arrive together into one save. When the save has
// ended, it finishes them in the reverse order of their submission. If the save
// failed, a bucket gets its old TAT back. The tokens stay spent only if the TAT
// has changed again, or if a later commit has the bucket.

// change is the change that one call made to one bucket, or to its hold.
type change struct {
	key   Key
	shard *shard
	hash  uint64

	from, to int64         // TAT in the slot, or end of the hold
	given    *rule         // the caller's; nil: the configured one
	turn     *queue.Turn   // that joined the queue
	turns    []*queue.Turn // that a reset took out of the queue
	isHold   bool
	renewal  bool // of a lease: no caller waits
	counted  bool // as allowed
	leads    bool // in its pair
	pair     *pair
}

// work has what one commit saves, and the changes that it finishes.
type work struct {
	saves   []Change
	changes []change
	holds   map[Key]int // index in saves, by the held bucket
}

// renewalPause is the longest that a renewal of a lease waits for others. Half
// a lease lasts longer, unless callers spend much faster than tokens come back.
const renewalPause = 5 * time.Millisecond

// committer runs the commits of a Limiter.
type committer struct {
	*groupcommit.Group[work]
	flusher *flusher
	timeout time.Duration
	buckets atomic.Int64
	leases  atomic.Int64
}

// CommitStats are counts and times of commits. Holds wait for commits, and so
// do decisions at Leased and Synced.
type CommitStats struct {
	Commits  int64
	Buckets  int64 // buckets and holds written
	Leases   int64 // leases written, new or renewed
	Failures int64
	Last     time.Duration // how long the last one took
	Longest  time.Duration
	Err      error // why the last one failed; nil if it did not
}

func newCommitter(f *flusher, timeout time.Duration) *committer {
	c := &committer{flusher: f, timeout: timeout}
	c.Group = groupcommit.New(timeout, renewalPause, &f.mu, c.save)
	return c
}

func (c *committer) stats() CommitStats {
	st := c.Stats()
	return CommitStats{st.Saves, c.buckets.Load(), c.leases.Load(), st.Failures, st.Last, st.Longest, st.Err}
}

// levelOf returns the durability of a rule.
func (c *committer) levelOf(limits *Limits, rule uint32) Durability {
	return cmp.Or(limits.rules[rule].limit.Durability, c.flusher.level)
}

// levelFor returns the durability of a change to a bucket with a rule. A given
// limit has no lease, because leases in the file are of the configured limit.
func (c *committer) levelFor(ch *change, rule uint32) Durability {
	if ch.given == nil {
		return c.levelOf(ch.shard.limits, rule)
	}
	level := cmp.Or(ch.given.limit.Durability, c.flusher.level)
	if level == Leased {
		level = Synced
	}
	return level
}

// needLocked returns the TAT that the store must get for a changed bucket, and
// when. A TAT of 0 deletes the bucket.
func (c *committer) needLocked(ch *change, b table.Slot, now int64) (tat int64, when gcra.Need) {
	s := ch.shard
	level := c.levelFor(ch, b.Rule())
	tail := s.tailLocked(b)
	durable := gcra.NeedNone
	if level >= Leased {
		durable = gcra.NeedFirst
	}
	switch {
	case tail <= now:
		return 0, durable
	case level != Leased:
		return tail, durable
	case tail != ch.to: // there is a queue
		_, tat = s.limits.rules[b.Rule()].rate.Lease(tail)
		return tat, gcra.NeedFirst
	}
	r := &s.limits.rules[b.Rule()].rate
	return r.Renew(ch.from, ch.to, b.Has(table.Covered), b.Has(table.Ahead), b.Has(table.Pending))
}

// unsavedLocked reports whether the store may have another TAT for a bucket
// than memory has.
func (s *shard) unsavedLocked(b table.Slot) bool {
	saving := s.directory.saving.Load()
	return b.Has(table.Dirty|table.Pending) || saving != 0 && b.Meta()&table.SaveMask == saving
}

// submitLocked puts the changes of rs into one commit in two cases. Either one
// of them must be in the store before the answer, or a crash would forget some
// of them and not others. It returns the commit to wait for. In all other cases
// it renews the leases that are due, and returns nil.
func (l *Limiter) submitLocked(rs []request, now int64) *batch {
	c := l.committer
	most, least, strictest := gcra.NeedNone, Synced, Memory
	for i := range rs {
		r := &rs[i]
		b, changed := r.changedLocked()
		if !changed {
			continue
		}
		level := c.levelFor(&r.change, r.rule)
		if r.given != nil {
			r.keepGivenLocked(b, level)
		}
		least, strictest = min(least, level), max(strictest, level)
		_, when := c.needLocked(&r.change, b, now)
		most = max(most, when)
	}
	if least < Leased && strictest >= Leased {
		most = gcra.NeedFirst
	}
	if most == gcra.NeedNone {
		return nil
	}
	in := c.Lock(most == gcra.NeedFirst)
	defer c.Unlock()
	begin := len(in.Work.changes)
	for i := range rs {
		r := &rs[i]
		b, changed := r.changedLocked()
		if !changed {
			continue
		}
		if tat, when := c.needLocked(&r.change, b, now); when == most || most == gcra.NeedFirst {
			ch := r.change
			if most == gcra.NeedSoon { // the caller has its answer: nothing to undo
				ch = renewalOf(r.shard, r.hash, b)
			}
			c.putLocked(in, &ch, b, tat)
		}
	}
	orderPairs(in.Work.changes[begin:])
	if most == gcra.NeedSoon {
		return nil
	}
	return in
}

// changedLocked returns the slot of a request, and whether the store must save
// it. That is so if the request changed the bucket. After a refund or a reset
// it is also so if the store may lack earlier changes.
func (r *request) changedLocked() (b table.Slot, changed bool) {
	i, ok := r.shard.findLocked(r.key, r.hash)
	if !ok {
		return b, false
	}
	b = r.shard.At(i)
	again := r.op == opReset || r.op == opRefund && r.cost > 0
	return b, r.from != r.to || r.turn != nil || again && r.shard.unsavedLocked(b)
}

// putLocked puts the TAT that the store must get for a bucket into a batch. The
// caller has locked the batch.
func (c *committer) putLocked(in *batch, ch *change, b table.Slot, tat int64) {
	s, w := ch.shard, &in.Work
	p := s.pendingLocked(b)
	if p == nil {
		s.pending = append(s.pending, pending{})
		p = &s.pending[len(s.pending)-1]
	}
	if p.batch != in {
		*p = pending{batch: in, index: len(w.saves)}
		w.saves = append(w.saves, Change{})
	}
	p.key = ch.key
	p.entries++
	w.saves[p.index] = Change{ch.key, tat}
	w.changes = append(w.changes, *ch)
	b.Set(table.Pending | table.Stored)
	if ch.renewal {
		b.Clear(table.Ahead)
	} else {
		b.Clear(table.Covered)
	}
	if tat > max(ch.to, s.tailLocked(b)) {
		c.leases.Add(1)
	}
}

// renewalOf returns a renewal of the lease of the bucket in b. Its callers have
// their answers, so a failure takes nothing back.
func renewalOf(s *shard, hash uint64, b table.Slot) change {
	return change{key: slotKey(b), shard: s, hash: hash, from: b.TAT(), to: b.TAT(), renewal: true}
}

// renewLocked puts the next lease of the bucket in b into a batch. Until the
// commit, the half that is left covers what the bucket spends. renewLocked
// reports whether the caller should yield to the committer.
func (c *committer) renewLocked(s *shard, hash uint64, b table.Slot, tat int64) (late bool) {
	in := c.Lock(false)
	defer c.Unlock()
	ch := renewalOf(s, hash, b)
	c.putLocked(in, &ch, b, tat)
	return c.Late()
}

// putHoldLocked puts a hold into a batch. It is in force in memory already.
func (c *committer) putHoldLocked(in *batch, ch *change, g *gate) {
	w := &in.Work
	i, ok := w.holds[ch.key]
	if !ok {
		i = len(w.saves)
		w.saves = append(w.saves, Change{})
		if w.holds == nil {
			w.holds = make(map[Key]int)
		}
		w.holds[ch.key] = i
	}
	w.saves[i] = Change{holdKey(ch.key), ch.to}
	w.changes = append(w.changes, *ch)
	g.newest = in
	g.commits++
}

// await waits for a commit. It returns nil or ErrNotDurable.
func (c *committer) await(in *batch) error { return c.awaitUntil(context.Background(), in) }

// awaitUntil is await, but also returns when ctx ends.
func (c *committer) awaitUntil(ctx context.Context, in *batch) error {
	err := in.Await(ctx.Done())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, groupcommit.ErrStopped):
		return fmt.Errorf("%w: %w: %w, and the commit may still succeed", ErrNotDurable, err, ctx.Err())
	case errors.Is(err, groupcommit.ErrTimeout):
		return fmt.Errorf("%w: %w: %v have passed, and the commit may still succeed", ErrNotDurable, err, c.timeout)
	}
	return fmt.Errorf("%w: %w", ErrNotDurable, err)
}

// save saves a batch and finishes its changes. flusher.mu is held.
func (c *committer) save(in *batch) error {
	w := &in.Work
	n := len(w.saves)
	if n > 0 {
		w.saves = append(w.saves, c.flusher.timeOfSave())
	}
	err := c.flusher.save(w.saves)
	c.flusher.committed(err)
	if err == nil {
		c.buckets.Add(int64(n))
	}
	const ahead = 8 // changes whose slots are being fetched
	now := c.flusher.clock.Now()
	for i := len(w.changes) - 1; i >= 0; i-- {
		if next := i - ahead; next >= 0 {
			w.changes[next].shard.Prefetch(w.changes[next].hash)
		}
		ch := &w.changes[i]
		ch.shard.mu.Lock()
		if ch.isHold {
			ch.shard.finishHoldLocked(ch, in, now, err)
		} else {
			c.finishLocked(ch, in, now, err)
		}
		ch.shard.mu.Unlock()
	}
	clear(w.saves)
	clear(w.changes)
	*w = work{saves: w.saves[:0], changes: w.changes[:0]}
	return err
}

// finishLocked notes how the commit of a change to a bucket ended.
func (c *committer) finishLocked(ch *change, in *batch, now int64, err error) {
	s := ch.shard
	i, ok := s.findLocked(ch.key, ch.hash)
	if !ok {
		return // no bucket leaves memory while it is in a commit
	}
	b := s.At(i)
	if err != nil {
		s.failLocked(ch, i)
	}
	p := s.pendingLocked(b)
	if p == nil || p.batch != in {
		return // a later commit has the bucket
	}
	if err != nil && !p.lowered && b.TAT() == ch.to && ch.mayUndo() {
		b.SetTAT(ch.from)
		if g := s.gateOfLocked(b); g != nil {
			g.queue.Put(ch.turns)
		}
	}
	if p.entries--; p.entries > 0 {
		return
	}
	tat := in.Work.saves[p.index].TAT
	s.dropPendingLocked(b, p)
	if err != nil || s.limits == nil {
		return // a flush saves it
	}
	tail := s.tailLocked(b)
	switch {
	case tat == 0 && tail <= now:
		s.MarkClean(i)
		b.Clear(table.Stored)
	case tail == tat:
		s.MarkClean(i)
	}
	if tat != 0 && b.Rule() > blocked && c.levelOf(s.limits, b.Rule()) == Leased {
		s.coverLocked(b, tail, tat)
	}
}

// failLocked notes that the store may or may not have a change.
func (s *shard) failLocked(ch *change, i uint32) {
	b := s.At(i)
	if ch.counted && s.limits != nil && s.limits.declares(ch.key.Name) {
		s.countOf(s.limits.index(ch.key.Name)).allowed--
	}
	if g := s.gateOfLocked(b); g != nil && ch.turn != nil {
		g.queue.Leave(ch.turn)
	}
	b.Set(table.Stored)
	if !ch.renewal { // otherwise half a lease still covers the bucket
		b.Clear(table.Covered)
	}
	s.MarkDirty(i)
}

// coverLocked notes that the store has a TAT, maybe a lease, for a bucket.
func (s *shard) coverLocked(b table.Slot, tail, stored int64) {
	switch this, next := s.limits.rules[b.Rule()].rate.Lease(tail); stored {
	case next:
		b.Set(table.Covered | table.Ahead)
	case this:
		b.Clear(table.Ahead)
		b.Set(table.Covered)
	}
}

// finishHoldLocked notes how the commit of a hold ended.
func (s *shard) finishHoldLocked(ch *change, in *batch, now int64, err error) {
	g := s.gateLocked(ch.key, ch.hash)
	g.commits--
	switch newest := g.newest == in; {
	case err == nil && newest:
		g.unsaved = false
	case err != nil:
		g.unsaved = true
		if newest && g.hold == ch.to {
			g.hold = ch.from
		}
	}
	if g.commits == 0 {
		g.newest = nil
	}
	s.tidyGateLocked(ch.key, g, now)
}
