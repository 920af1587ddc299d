package stint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// Some calls return only after a save: one that sets a hold, one that changes a
// bucket at Synced, and one that changes a bucket at Leased beyond its lease.
// This is what happens between the decision and the answer:
//
//   - The caller has changed memory, and still holds the lock of the shard.
//     submitLocked asks needLocked what the store must get, and whether the caller
//     waits.
//   - putLocked puts the TAT, and the change that may be undone, into the batch
//     that groupcommit is filling. The bucket is pending now: it stays in memory,
//     and flushes leave it out. The caller unlocks the shard, and awaits the batch.
//   - Other callers decide on the new TAT at once. They join the same batch, or
//     the one after it if the save has begun.
//   - The group's goroutine calls save, which gives all TATs of the batch to the
//     Store in one call, and then finishes the changes, the last one first.
//   - If the save succeeded, finishLocked marks the bucket clean, unless its TAT
//     is no longer the saved one. If the saved TAT is a lease, finishLocked
//     records what the lease covers.
//   - If the save failed, the bucket is dirty again, because the file may or
//     may not have the new TAT. The bucket gets its old TAT back, with three
//     exceptions: the TAT has changed since, other than in this batch; a later
//     batch has the bucket; or an answer builds on the TAT. In these cases the
//     tokens stay spent, because a token that comes back twice is worse than
//     one that is lost. If the limits have changed, the old TAT is converted or
//     cut as they ask.
//   - The waiting callers return, with nil or ErrNotDurable.
//
// The renewal of a lease takes the same path, except that no caller waits. Two
// changes of one call can form a pair: the second is undone only if the first
// was.

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
	limits   int  // how many of pending.limits came before it
	renewal  bool // of a lease: no caller waits
	counted  bool // as allowed
	leads    bool // in its pair
	pair     *pair
}

// work has what one commit saves, and the changes that it finishes.
type work struct {
	saves   []Change
	changes []change
	holds   map[Key]savedHold
}

// savedHold is the newest hold of a bucket in a commit. A Store may reorder
// saves, so after the save its index is no longer valid.
type savedHold struct {
	index int // in work.saves
	end   int64
}

// batch is the work of one commit.
type batch = groupcommit.Batch[work]

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

func newCommitter(f *flusher, timeout time.Duration) *committer {
	c := &committer{flusher: f, timeout: timeout}
	c.Group = groupcommit.New(timeout, renewalPause, &f.mu, c.save)
	return c
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
func (c *committer) needLocked(ch *change, b table.Slot, now int64) (tat int64, when need) {
	s := ch.shard
	level := c.levelFor(ch, b.Rule())
	tail := s.tailLocked(b)
	durable := needNone
	if level >= Leased {
		durable = needFirst
	}
	switch {
	case tail <= now:
		return 0, durable
	case level != Leased:
		return tail, durable
	case tail != ch.to: // there is a queue
		_, tat = s.limits.rules[b.Rule()].rate.lease(tail)
		return tat, needFirst
	}
	r := &s.limits.rules[b.Rule()].rate
	return r.renew(ch.from, ch.to, coveredBy(b.Meta()))
}

// coveredBy returns what the meta word of a slot says of the bucket's leases.
func coveredBy(meta uint64) covered {
	return covered{this: meta&table.Covered != 0, next: meta&table.Ahead != 0, coming: meta&table.Pending != 0}
}

// submitLocked puts the changes of rs into one commit and returns it, if the
// caller must wait for it: one of them must be in the store before the answer,
// or a crash could forget some of them and keep others. Otherwise submitLocked
// renews the leases that are due, and returns nil.
func (l *Limiter) submitLocked(rs []request, now int64) *batch {
	c := l.committer
	most, least, strictest := needNone, Synced, Memory
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
		most = needFirst
	}
	if most != needFirst {
		for i := range rs {
			rs[i].keepLocked()
		}
	}
	if most == needNone {
		return nil
	}
	in := c.Lock(most == needFirst)
	defer c.Unlock()
	begin := len(in.Work.changes)
	for i := range rs {
		r := &rs[i]
		b, changed := r.changedLocked()
		if !changed {
			continue
		}
		if tat, when := c.needLocked(&r.change, b, now); when == most || most == needFirst {
			ch := r.change
			if most == needSoon { // the caller has its answer: nothing to undo
				ch = renewalOf(r.shard, r.hash, b)
			} else if r.stays {
				ch.from = ch.to
			}
			c.putLocked(in, &ch, b, tat)
		}
	}
	orderPairs(in.Work.changes[begin:])
	if most == needSoon {
		return nil
	}
	return in
}

// submitCancelLocked is called after a turn has left the queue of a bucket. It
// puts the bucket into a commit if the limit is Leased or Synced.
func (l *Limiter) submitCancelLocked(s *shard, h uint64, b table.Slot, now int64, given *rule) *batch {
	if s.limits == nil || b.Rule() == 0 && given == nil {
		return nil
	}
	if p := s.pendingLocked(b); p != nil {
		p.kept = true
	}
	b.Clear(table.Covered) // the store has a lease that the queue needed
	ch := change{key: slotKey(b), shard: s, hash: h, from: b.TAT(), to: b.TAT(), given: given}
	tat, when := l.committer.needLocked(&ch, b, now)
	if when != needFirst {
		return nil
	}
	in := l.committer.Lock(true)
	defer l.committer.Unlock()
	l.committer.putLocked(in, &ch, b, tat)
	return in
}

// changedLocked returns the slot of a request, and whether there is something
// to save: the request changed the bucket, or its answer builds on changes that
// the store may lack.
func (r *request) changedLocked() (b table.Slot, changed bool) {
	i, ok := r.shard.findLocked(r.key, r.hash)
	if !ok {
		return b, false
	}
	b = r.shard.At(i)
	return b, r.from != r.to || r.turn != nil || r.builds() && r.shard.unsavedLocked(b)
}

// builds reports whether the answer builds on the TAT that the request finds,
// even if the request changes nothing.
func (r *request) builds() bool {
	return r.op == opReset || (r.op == opRefund || r.op == opRaise) && r.cost > 0
}

// keepLocked is for a call that waits for no commit. If its answer builds on
// changes that are in a commit, they stay even if that commit fails.
func (r *request) keepLocked() {
	if !r.builds() || r.from != r.to {
		return
	}
	if i, ok := r.shard.findLocked(r.key, r.hash); ok {
		if p := r.shard.pendingLocked(r.shard.At(i)); p != nil {
			p.kept = true
		}
	}
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
	p.key, p.tat = ch.key, tat
	p.entries++
	w.saves[p.index] = Change{ch.key, tat}
	ch.limits = len(p.limits)
	w.changes = append(w.changes, *ch)
	if ch.turns != nil {
		s.gateOfLocked(b).resets++
	}
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
	saved, ok := w.holds[ch.key]
	if !ok {
		saved.index = len(w.saves)
		w.saves = append(w.saves, Change{})
		if w.holds == nil {
			w.holds = make(map[Key]savedHold)
		}
	}
	saved.end = ch.to
	w.holds[ch.key] = saved
	w.saves[saved.index] = Change{holdKey(ch.key), ch.to}
	w.changes = append(w.changes, *ch)
	g.newest = in
	g.commits++
}

// await waits for a commit. It returns nil or ErrNotDurable.
func (c *committer) await(in *batch) error {
	return c.awaitUntil(context.Background(), time.Now(), in)
}

// awaitUntil is await, but also returns when ctx ends. The caller has waited
// since begun, which counts towards CommitTimeout.
func (c *committer) awaitUntil(ctx context.Context, begun time.Time, in *batch) error {
	err := in.Await(begun, ctx.Done())
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
		ch.shard.lock()
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
		return // this does not happen: a bucket in a commit stays in memory
	}
	b := s.At(i)
	if err != nil {
		s.failLocked(ch, i)
	}
	if ch.turns != nil {
		g := s.gateOfLocked(b)
		g.resets--
		defer s.tidyGateLocked(ch.key, g, now)
	}
	p := s.pendingLocked(b)
	if p == nil || p.batch != in {
		return // a later commit has the bucket
	}
	if err != nil && !p.kept && b.TAT() == ch.to && ch.mayUndo() {
		g := s.gateOfLocked(b)
		b.SetTAT(p.undone(ch, g))
		if g != nil {
			g.queue.Put(ch.turns)
		}
	}
	if p.entries--; p.entries > 0 {
		return
	}
	tat := p.tat
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
	default: // the store has a lease, perhaps in place of a TAT that a flush saved before
		s.MarkDirty(i)
	}
	if tat != 0 && b.Rule() > blocked && c.levelOf(s.limits, b.Rule()) == Leased {
		s.coverLocked(b, tail, tat)
	}
}

// failLocked notes that the store may or may not have a change. Its decision no
// longer counts as allowed, and its turn leaves the queue.
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
	switch this, next := s.limits.rules[b.Rule()].rate.lease(tail); stored {
	case next:
		b.Set(table.Covered | table.Ahead)
	case this:
		b.Clear(table.Ahead)
		b.Set(table.Covered)
	}
}

// finishHoldLocked notes how the commit of a hold ended. If the newest commit
// fails, the hold that was last saved is in force again, and not a newer one
// whose commit failed before.
func (s *shard) finishHoldLocked(ch *change, in *batch, now int64, err error) {
	g := s.gateLocked(ch.key, ch.hash)
	g.commits--
	switch newest := g.newest == in; {
	case err == nil:
		g.saved = in.Work.holds[ch.key].end
		g.unsaved = g.hold != g.saved
	case newest:
		g.hold, g.unsaved = g.saved, true
	}
	if g.commits == 0 {
		g.newest = nil
	}
	s.tidyGateLocked(ch.key, g, now)
}

// pending is a bucket in a commit that has not ended.
type pending struct {
	key     Key
	batch   *batch // newest commit of the bucket
	index   int    // of its change in the batch, until the save
	tat     int64  // that the batch saves
	entries int    // changes of the batch to this bucket
	limits  []limitChange
	kept    bool // a failed commit takes nothing back: TAT was lowered since, or an answer builds on it
}

// limitChange is a change of the limit of a pending bucket.
type limitChange struct {
	was, is *rule
	at      int64
	convert bool
}

// undone returns the TAT that a bucket gets back: the one before a change, under
// the limits that came since. If one of them has no queue, what waited is charged
// with that change, as changeRuleLocked would have done, and ch has no turns then.
func (p *pending) undone(ch *change, g *gate) int64 {
	tat := ch.from
	for _, c := range p.limits[ch.limits:] {
		if c.is.periods != nil && ch.turns != nil {
			var waited queue.Queue
			waited.Put(ch.turns)
			tat, ch.turns = waited.Tail(tat, g.rate), nil
		}
		if c.convert {
			tat = c.is.convert(tat, c.at, c.was)
		} else {
			tat = c.is.clamp(tat, c.at)
		}
	}
	return tat
}

// pendingLocked returns the commit that a bucket is in, or nil.
func (s *shard) pendingLocked(b table.Slot) *pending {
	if b.Has(table.Pending) {
		for i := range s.pending {
			if p := &s.pending[i]; uint16(p.key.Name) == b.Name() && p.key.ID == string(b.ID()) {
				return p
			}
		}
	}
	return nil
}

// dropPendingLocked notes that a bucket's newest commit has ended.
func (s *shard) dropPendingLocked(b table.Slot, p *pending) {
	last := &s.pending[len(s.pending)-1]
	*p, *last = *last, pending{}
	s.pending = s.pending[:len(s.pending)-1]
	b.Clear(table.Pending)
}

// unsavedLocked reports whether the store may have another TAT for a bucket
// than memory has.
func (s *shard) unsavedLocked(b table.Slot) bool {
	saving := s.directory.saving.Load()
	return b.Has(table.Dirty|table.Pending) || saving != 0 && b.Meta()&table.SaveMask == saving
}

// lowerLocked gives a bucket an earlier TAT, after a refund, a reset or a change
// of its limit. Write gives it a later one, after a spend, a raise or a change of
// its limit. Only two other things change the TAT of a bucket in memory. A queue
// charges its turns, which leaves the tail as it is. A failed commit takes back
// its own change.
func (s *shard) lowerLocked(i uint32, tat int64) {
	if p := s.pendingLocked(s.At(i)); p != nil {
		p.kept = true
	}
	s.Write(i, tat)
}

// pair links two changes of one call: if their commit fails, the second is
// undone only if the leading one was.
type pair struct{ undone bool }

// mayUndo reports whether a change may be undone. It notes that the leading
// change of a pair is undone, so call it for that one first.
func (ch *change) mayUndo() bool {
	if ch.pair != nil && ch.leads {
		ch.pair.undone = true
	}
	return ch.pair == nil || ch.pair.undone
}

// orderPairs puts the leading changes of one call last, because save finishes
// the last change of a commit first.
func orderPairs(changes []change) {
	last := len(changes)
	for i := len(changes) - 1; i >= 0; i-- {
		if changes[i].leads {
			last--
			changes[i], changes[last] = changes[last], changes[i]
		}
	}
}
