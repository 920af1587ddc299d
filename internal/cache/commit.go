package cache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/groupcommit"
	"github.com/stint-go/stint/internal/queue"
	"github.com/stint-go/stint/internal/table"
)

// Some calls return only after a save: a Hold, a change of a bucket at Synced, and
// a change at Leased that its lease does not cover.
// This is what happens between the decision and the answer:
//
//   - The caller has changed memory, and still holds the lock of the shard.
//     SubmitLocked asks needLocked what the store must get, and whether the caller
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
//     one that is lost. If the limits have changed, the old TAT is converted to
//     the new ones, and the next request may cut it.
//   - The waiting callers return, with nil or ErrNotDurable.
//
// The renewal of a lease begins at putLocked, from the fast path or the slow one. No
// caller waits for it, and there is nothing to undo.

// renewalPause is after what time the committer begins the batch of a renewal, if
// no caller has joined it. Half a lease lasts longer, unless callers spend much faster
// than tokens come back.
const renewalPause = 5 * time.Millisecond

// levelFor returns the level of a change to a bucket. A given
// limit has no lease, because leases in the file are of the bucket's rule.
func (c *Cache) levelFor(ch *Change, b table.Slot) gcra.Level {
	switch ch.Given {
	case 0:
		return ch.Shard.ruleOf(b).Level.Or(c.flusher.level)
	case gcra.Leased:
		return gcra.Synced
	}
	return ch.Given
}

// needLocked returns the TAT that the store must get for a changed bucket, and
// when. A TAT of 0 deletes the bucket.
func (c *Cache) needLocked(ch *Change, b table.Slot, now int64) (tat int64, when need) {
	s := ch.Shard
	level := c.levelFor(ch, b)
	tail := s.TailLocked(b)
	durable := needNone
	if level >= gcra.Leased {
		durable = needFirst
	}
	switch {
	case tail <= now:
		return 0, durable
	case level != gcra.Leased:
		return tail, durable
	case tail != ch.To: // there is a queue
		_, tat = s.ruleOf(b).Lease.Of(tail)
		return tat, needFirst
	}
	return renew(&s.ruleOf(b).Lease, ch.From, ch.To, b.Meta())
}

// If the caller must wait, SubmitLocked puts the changes of one call into one commit,
// and returns it: one of them must be in the store before the answer, or a crash
// could forget some of them and keep others. Otherwise SubmitLocked
// renews the leases that are due, and returns nil. The shards of all changes are
// locked, and their buckets have the new TATs.
func (c *Cache) SubmitLocked(changes []Change, now int64) *Batch {
	most, least, strictest := needNone, gcra.Synced, gcra.Memory
	for i := range changes {
		ch := &changes[i]
		b, changed := ch.changedLocked()
		if !changed {
			continue
		}
		level := c.levelFor(ch, b)
		if ch.Given != 0 {
			ch.keepGivenLocked(b, level)
		}
		least, strictest = min(least, level), max(strictest, level)
		_, when := c.needLocked(ch, b, now)
		most = max(most, when)
	}
	if least < gcra.Leased && strictest >= gcra.Leased {
		most = needFirst
	}
	if most != needFirst {
		for i := range changes {
			changes[i].keepLocked()
		}
	}
	if most == needNone {
		return nil
	}
	in := c.commits.Lock(most == needFirst)
	defer c.commits.Unlock()
	for i := range changes {
		ch := &changes[i]
		b, changed := ch.changedLocked()
		if !changed {
			continue
		}
		if tat, when := c.needLocked(ch, b, now); when == most || most == needFirst {
			put := *ch
			if most == needSoon { // the caller has its answer: nothing to undo
				put = renewalOf(ch.Shard, ch.Hash, b)
			} else if ch.SurvivesFailure {
				put.From = put.To
			}
			c.putLocked(in, &put, b, tat)
		}
	}
	if most == needSoon {
		return nil
	}
	return in
}

// Due returns the instant of a turn, at which its tokens are taken, and the time until
// its request may go, which a hold can put off. If the caller will sleep until then,
// sooner has a value once the turn comes sooner. The turns that have come leave the
// queue, so that the first one that is left hears of it.
func (c *Cache) Due(key Key, turn *queue.Turn, sleeps bool) (at int64, delay time.Duration, sooner <-chan struct{}) {
	s, h := c.shardOf(key)
	s.Lock()
	defer s.Unlock()
	now := c.flusher.clock.Now()
	g, end := s.GateLocked(key), turn.At
	if g != nil {
		end = max(end, g.Hold)
	}
	delay = max(0, time.Duration(end-now))
	if sleeps {
		if i, ok := s.findLocked(key, h); ok && g != nil {
			s.AdvanceLocked(s.At(i), g, now)
		}
		if delay > 0 && turn.Sooner == nil {
			turn.Sooner = make(chan struct{}, 1)
		}
		turn.Seen = turn.At
	}
	return turn.At, delay, turn.Sooner
}

// Cancel takes a turn out of the queue of a bucket, if it has not come, and
// reports whether it was charged before: false if a reset has emptied the
// queue. If the level is Leased or Synced, the caller waits for the commit that
// Cancel returns.
func (c *Cache) Cancel(key Key, turn *queue.Turn, given gcra.Level) (charged bool, in *Batch) {
	s, h := c.shardOf(key)
	s.Lock()
	defer s.Unlock()
	g := s.GateLocked(key)
	i, resident := s.findLocked(key, h)
	if g == nil || !resident {
		return turn.Charged, nil
	}
	now := c.flusher.clock.Now()
	b := s.At(i)
	s.AdvanceLocked(b, g, now)
	if g.leaveLocked(turn, b.TAT(), now) {
		s.AdvanceLocked(b, g, now) // the turns that moved up may have come
		s.MarkDirty(i)
		in = c.cancelLocked(s, h, b, now, given)
	}
	s.tidyGateLocked(key, g, now)
	return turn.Charged, in
}

// cancelLocked is called after a turn has left the queue of the bucket in b. It
// puts the bucket into a commit if the level is Leased or Synced.
func (c *Cache) cancelLocked(s *Shard, hash uint64, b table.Slot, now int64, given gcra.Level) *Batch {
	if s.Limits == nil || b.Rule() == 0 && given == 0 {
		return nil
	}
	if p := s.pendingLocked(b); p != nil {
		p.survivesFailure = true
	}
	b.Clear(table.Covered) // the lease in the store was for the queue with the turn
	ch := Change{Key: slotKey(b), Shard: s, Hash: hash, From: b.TAT(), To: b.TAT(), Given: given}
	tat, when := c.needLocked(&ch, b, now)
	if when != needFirst {
		return nil
	}
	in := c.commits.Lock(true)
	defer c.commits.Unlock()
	c.putLocked(in, &ch, b, tat)
	return in
}

// Hold sets the end of a hold, and returns it with the commit that makes
// it durable, or with nil if there is nothing to change. An end that has passed
// means no hold. If extend is set, a later end stays. A hold needs no bucket, and the
// bucket of a key that has no rule any more can still be held if it is in memory.
func (c *Cache) Hold(key Key, end int64, extend bool) (until int64, in *Batch, err error) {
	b, err := c.lockOne(key, Never)
	if err != nil {
		return 0, nil, err
	}
	s := b.Shard
	defer s.Unlock()
	now, held := c.flusher.clock.Now(), int64(0)
	g := b.GateLocked()
	if g != nil && g.Hold > now {
		held = g.Hold
	}
	if extend {
		end = max(end, held)
	}
	if end <= now {
		end = 0
	}
	if extend && end == 0 || end == held && (g == nil || g.savedLocked()) {
		return end, nil, nil
	}
	g = s.makeGateLocked(key, b.Hash)
	ch := Change{Key: key, Shard: s, Hash: b.Hash}
	if b.Resident {
		slot := s.At(b.index)
		s.AdvanceLocked(slot, g, now)
		ch.From, ch.To = slot.TAT(), slot.TAT()
	}
	return end, c.holdLocked(&ch, g, end, now, false), nil
}

// holdLocked puts a hold in force, and into a commit. The same commit saves the
// change of the bucket if the hold moves its queue, or if reset is set.
func (c *Cache) holdLocked(ch *Change, g *Gate, end, now int64, reset bool) *Batch {
	s := ch.Shard
	hold := Change{Key: ch.Key, Shard: s, Hash: ch.Hash, To: end, isHold: true}
	g.Hold = end
	moved := g.Queue.Delay(end)
	in := c.commits.Lock(true)
	defer c.commits.Unlock()
	c.putHoldLocked(in, &hold, g)
	if i, ok := s.findLocked(ch.Key, ch.Hash); ok && (moved || reset) {
		s.MarkDirty(i)
		tat, _ := c.needLocked(ch, s.At(i), now) // the level of a turn may not be that of the bucket
		c.putLocked(in, ch, s.At(i), tat)
	}
	return in
}

// changedLocked returns the slot of a change, and whether there is something
// to save: the bucket changed, or the answer builds on changes that the store may
// lack.
func (ch *Change) changedLocked() (b table.Slot, changed bool) {
	i, ok := ch.Shard.findLocked(ch.Key, ch.Hash)
	if !ok {
		return b, false
	}
	b = ch.Shard.At(i)
	return b, ch.From != ch.To || ch.Turn != nil || ch.Builds && ch.Shard.unsavedLocked(b)
}

// keepLocked is for a call that waits for no commit: the changes in a commit on
// which its answer builds stay even if that commit fails.
func (ch *Change) keepLocked() {
	if !ch.Builds || ch.From != ch.To {
		return
	}
	if i, ok := ch.Shard.findLocked(ch.Key, ch.Hash); ok {
		if p := ch.Shard.pendingLocked(ch.Shard.At(i)); p != nil {
			p.survivesFailure = true
		}
	}
}

// keepGivenLocked marks a bucket that was changed under a given limit. So a
// flush saves it at the level of that limit, not at that of the bucket's rule.
func (ch *Change) keepGivenLocked(b table.Slot, level gcra.Level) {
	b.Clear(table.Covered) // the lease is of the bucket's rule
	if level > gcra.Memory {
		b.Set(table.Flush)
		i, _ := ch.Shard.findLocked(ch.Key, ch.Hash)
		ch.Shard.MarkDirty(i)
	}
}

// putLocked puts the TAT that the store must get for a bucket into a batch. The
// caller has locked the batch.
func (c *Cache) putLocked(in *Batch, ch *Change, b table.Slot, tat int64) {
	s, w := ch.Shard, &in.Work
	p := s.pendingLocked(b)
	if p == nil {
		s.pending = append(s.pending, pending{})
		p = &s.pending[len(s.pending)-1]
	}
	if p.batch != in {
		*p = pending{batch: in, index: len(w.saves)}
		w.saves = append(w.saves, format.Entry{})
	}
	p.key, p.tat = ch.Key, tat
	p.entries++
	w.saves[p.index] = format.Entry{Name: ch.Key.Name, ID: ch.Key.ID, TAT: tat}
	ch.limits = len(p.limits)
	w.changes = append(w.changes, *ch)
	if ch.Turns != nil {
		s.gateOfLocked(b).resets++
	}
	b.Set(table.Pending | table.Stored)
	if ch.renewal {
		b.Clear(table.Ahead)
	} else {
		b.Clear(table.Covered)
	}
	if tat > max(ch.To, s.TailLocked(b)) {
		c.leases.Add(1)
	}
}

// renewalOf returns a renewal of the lease of the bucket in b. Its callers have
// their answers, so a failure takes nothing back.
func renewalOf(s *Shard, hash uint64, b table.Slot) Change {
	return Change{Key: slotKey(b), Shard: s, Hash: hash, From: b.TAT(), To: b.TAT(), renewal: true}
}

// SpendLeasedLocked gives the bucket at index i a later TAT, if its lease covers
// that. If half of the lease is left then, it puts the next one into a batch. Until
// the commit, the half that is left covers what the bucket spends. late says that
// the caller should yield to the committer.
func (c *Cache) SpendLeasedLocked(s *Shard, i uint32, hash uint64, lease *gcra.Lease, to, now int64) (covered, late bool) {
	b := s.At(i)
	next, when := renew(lease, b.TAT(), to, b.Meta())
	if when == needFirst {
		return false, false
	}
	s.SpendLocked(i, to, now)
	if when == needSoon {
		in, ch := c.commits.Lock(false), renewalOf(s, hash, b)
		c.putLocked(in, &ch, b, next)
		late = c.commits.Late()
		c.commits.Unlock()
	}
	return true, late
}

// putHoldLocked puts a hold into a batch. It is in force in memory already.
func (c *Cache) putHoldLocked(in *Batch, ch *Change, g *Gate) {
	w := &in.Work
	saved, ok := w.holds[ch.Key]
	if !ok {
		saved.index = len(w.saves)
		w.saves = append(w.saves, format.Entry{})
		if w.holds == nil {
			w.holds = make(map[Key]savedHold)
		}
	}
	saved.end = ch.To
	w.holds[ch.Key] = saved
	w.saves[saved.index] = holdEntry(ch.Key, ch.To)
	w.changes = append(w.changes, *ch)
	g.newest = in
	g.commits++
}

// Await waits for a commit. It returns nil or ErrNotDurable, even when ctx
// ends. The caller has waited since begun, which counts towards
// Options.Timeout.
func (c *Cache) Await(ctx context.Context, begun time.Time, in *Batch) error {
	err := in.Await(begun, ctx.Done())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, groupcommit.ErrStopped):
		return fmt.Errorf("%w: %w: %w, and the commit may still succeed", ErrNotDurable, err, ctx.Err())
	case errors.Is(err, groupcommit.ErrTimeout):
		return fmt.Errorf("%w: %w: %v have passed, and the commit may still succeed", ErrNotDurable, err, c.flusher.timeout)
	}
	return fmt.Errorf("%w: %w", ErrNotDurable, err)
}

// save saves a batch and finishes its changes. flusher.mu is held.
func (c *Cache) save(in *Batch) error {
	w := &in.Work
	n := len(w.saves)
	if n > 0 {
		w.saves = append(w.saves, c.flusher.timeOfSave())
	}
	err := c.flusher.save(w.saves)
	c.flusher.committed(err)
	if err == nil {
		c.committed.Add(int64(n))
	}
	const ahead = 8 // changes whose slots are being fetched
	now := c.flusher.clock.Now()
	for i := len(w.changes) - 1; i >= 0; i-- {
		if next := i - ahead; next >= 0 {
			w.changes[next].Shard.Prefetch(w.changes[next].Hash)
		}
		ch := &w.changes[i]
		ch.Shard.Lock()
		if ch.isHold {
			ch.Shard.finishHoldLocked(ch, in, now, err)
		} else {
			c.finishLocked(ch, in, now, err)
		}
		ch.Shard.Unlock()
	}
	clear(w.saves)
	clear(w.changes)
	*w = work{saves: w.saves[:0], changes: w.changes[:0]}
	return err
}

// finishLocked confirms or undoes a change to a bucket, whose commit has ended.
func (c *Cache) finishLocked(ch *Change, in *Batch, now int64, err error) {
	s := ch.Shard
	i, ok := s.findLocked(ch.Key, ch.Hash)
	if !ok {
		return // this does not happen: a bucket in a commit stays in memory
	}
	b := s.At(i)
	if err != nil {
		s.failLocked(ch, i, now)
	}
	if ch.Turns != nil {
		g := s.gateOfLocked(b)
		g.resets--
		defer s.tidyGateLocked(ch.Key, g, now)
	}
	p := s.pendingLocked(b)
	if p == nil || p.batch != in {
		return // a later commit has the bucket
	}
	if err != nil && !p.survivesFailure && b.TAT() == ch.To {
		g := s.gateOfLocked(b)
		b.SetTAT(p.undone(ch, g))
		if len(p.limits) > ch.limits {
			b.Set(table.Uncut)
		}
		if g != nil {
			g.Queue.Put(ch.Turns, b.TAT(), max(now, g.Hold), g.rate)
		}
	}
	if p.entries--; p.entries > 0 {
		return
	}
	tat := p.tat
	s.dropPendingLocked(b, p)
	if err != nil || s.Limits == nil {
		return // a flush saves it
	}
	tail := s.TailLocked(b)
	switch {
	case tat == 0 && tail <= now:
		s.MarkClean(i)
		b.Clear(table.Stored)
	case tail == tat:
		s.MarkClean(i)
	default: // the store has a lease, so the exact TAT is unsaved
		s.MarkDirty(i)
	}
	if r := s.ruleOf(b); tat != 0 && r.Limited() && r.Level.Or(c.flusher.level) == gcra.Leased {
		s.coverLocked(b, tail, tat)
	}
}

// failLocked notes that the store may or may not have a change. Its decision no
// longer counts as allowed, and its turn leaves the queue.
func (s *Shard) failLocked(ch *Change, i uint32, now int64) {
	b := s.At(i)
	if ch.Counted > 0 {
		s.CountLocked(ch.Key.Name)[0] -= uint64(ch.Counted)
	}
	if g := s.gateOfLocked(b); g != nil && ch.Turn != nil {
		g.leaveLocked(ch.Turn, b.TAT(), now)
	}
	b.Set(table.Stored)
	if !ch.renewal { // otherwise half a lease still covers the bucket
		b.Clear(table.Covered)
	}
	s.MarkDirty(i)
}

// coverLocked notes that the store has a TAT, maybe a lease, for a bucket.
func (s *Shard) coverLocked(b table.Slot, tail, stored int64) {
	switch half, next := s.ruleOf(b).Lease.Of(tail); stored {
	case next:
		b.Set(table.Covered | table.Ahead)
	case half:
		b.Clear(table.Ahead)
		b.Set(table.Covered)
	}
}

// finishHoldLocked confirms or undoes a hold, whose commit has ended. If the newest commit
// fails, the hold that was last saved is in force again, and not a newer one
// whose commit failed before.
func (s *Shard) finishHoldLocked(ch *Change, in *Batch, now int64, err error) {
	g := s.makeGateLocked(ch.Key, ch.Hash)
	g.commits--
	switch newest := g.newest == in; {
	case err == nil:
		g.saved = in.Work.holds[ch.Key].end
		g.unsaved = g.Hold != g.saved
	case newest:
		g.Hold, g.unsaved = g.saved, true
		if i, ok := s.findLocked(ch.Key, ch.Hash); ok && g.Queue.Delay(g.Hold) { // it was shorter for a while
			s.MarkDirty(i)
		}
	}
	if g.commits == 0 {
		g.newest = nil
	}
	s.tidyGateLocked(ch.Key, g, now)
}

// undone returns the TAT that a bucket gets back: the one before a change, under
// the limits that came since. If one of them has no queue, the waiting turns are
// charged, and ch loses them.
func (p *pending) undone(ch *Change, g *Gate) int64 {
	tat := ch.From
	for _, c := range p.limits[ch.limits:] {
		if c.noQueue && ch.Turns != nil {
			var waited queue.Queue
			waited.Put(ch.Turns, tat, 0, g.rate)
			tat, ch.Turns = waited.Tail(tat, g.rate), nil
		}
		tat = c.convert(tat)
	}
	return tat
}
