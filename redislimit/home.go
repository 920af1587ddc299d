package redislimit

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// home is this machine's share of the limits, for the time while the server is
// away. It has two buckets for each key. The seen bucket is the server's bucket
// as this machine last saw it. The own bucket starts from the seen one, and
// this machine spends from it while it decides by itself. The debt is the time
// by which the own TAT is later than the seen one. The server does not know it
// yet. Until this machine decides by itself, the own bucket is full, and takes
// no space.
//
// A share has the burst ÷ n and n times the interval. If n divides the burst,
// its tolerance is that of the limit, and a TAT means the same fraction of
// both.
type home struct {
	l     *stint.Limiter
	nodes int64
	level stint.Durability // of all buckets; 0: as their limits say

	// mu is read-locked by decisions and replies. It is locked when the server goes
	// away or comes back, and while debts move. It comes before the locks of l.
	mu sync.RWMutex

	holdsMu   sync.Mutex
	holds     map[stint.Key]int64 // ends, by the server's time, of holds in l
	holdOrder sync.Mutex          // before holdsMu: one hold at a time
}

// ownBit is set in the Name of an own bucket. The seen bucket's Name is the
// same without it.
const ownBit stint.Name = 0x8000

func ownKey(key stint.Key) stint.Key { return stint.Key{Name: key.Name | ownBit, ID: key.ID} }

// openHome returns this machine's home, or nil if no limit may have AwayShare.
func openHome(o *Options, names stint.Names) (*home, error) {
	if !o.shares() {
		return nil, nil
	}
	own, err := homeNames(o, names)
	if err != nil {
		return nil, err
	}
	limits, err := stint.NewLimits(own, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("redislimit: names while the server is away: %w", err)
	}
	var local stint.Options
	if o.LocalOptions != nil {
		local = *o.LocalOptions
	}
	local.Now, local.Durability = o.Now, stint.Flushed
	local.CommitTimeout = cmp.Or(local.CommitTimeout, o.Timeout)
	h := &home{nodes: int64(o.Nodes), holds: make(map[stint.Key]int64)}
	if o.Local == "" {
		h.level = stint.Memory
		h.l, err = stint.New(newDebtStore(cmp.Or(local.MaxResident, 1<<20)), limits, &local)
	} else {
		h.l, err = stint.Open(o.Local, limits, &local)
	}
	if err != nil {
		return nil, fmt.Errorf("redislimit: Options.Local: %w", err)
	}
	for held := range h.l.Held() {
		h.holds[held.Key] = -1 // its end by the server's time is not known
	}
	return h, nil
}

// homeNames returns the Names of a home.
func homeNames(o *Options, names stint.Names) (stint.Names, error) {
	own := make(stint.Names)
	for name, spec := range names {
		if o.away(name) != AwayShare {
			continue
		}
		if name >= ownBit {
			return nil, fmt.Errorf("redislimit: limit %s is number %d, want a number under %d for AwayShare", spec.Label, name,
				ownBit)
		}
		var id stint.IDFormat
		if spec.ID == stint.Shared {
			id = stint.Shared
		}
		own[name] = stint.NameSpec{Label: spec.Label, ID: id, Limit: stint.Unlimited}
		own[name|ownBit] = stint.NameSpec{Label: spec.Label + ".away", ID: id, Limit: stint.Unlimited}
	}
	return own, nil
}

// declare adds names that new limits have.
func (h *home) declare(o *Options, names stint.Names) error {
	if h == nil {
		return nil
	}
	own, err := homeNames(o, names)
	if err != nil {
		return err
	}
	return h.l.Declare(own)
}

// close saves the buckets. h may be nil.
func (h *home) close() error {
	if h == nil {
		return nil
	}
	return h.l.Close()
}

// wide returns the request that raises or reads a bucket. Its limit only bounds
// how far the TAT may be ahead.
func (h *home) wide(key stint.Key, tolerance int64) stint.Request {
	return stint.Request{Key: key, Limit: stint.Limit{Burst: 1, Count: 1, Period: time.Duration(tolerance),
		Durability: cmp.Or(h.level, stint.Flushed)}}
}

// durable returns a limit with the durability that its own bucket has.
func (h *home) durable(limit stint.Limit, level stint.Durability) stint.Limit {
	if limit.Count > 0 {
		limit.Durability = cmp.Or(h.level, limit.Durability, level)
	}
	return limit
}

// tat returns the TAT of a bucket.
func (h *home) tat(key stint.Key, tolerance int64) (int64, error) {
	full, err := h.l.Raise(h.wide(key, tolerance), time.Time{})
	return instant(full), err
}

// now returns the present by the clock of l.
func (h *home) now() int64 { return instant(h.l.Now()) }

// saw updates the seen buckets and the holds from a reply of the server.
func (l *Limiter) saw(t *trip) {
	h := l.home
	if h == nil {
		return
	}
	ahead := h.now() - instant(l.Now()) // clock of the home, less the server's
	for i := range t.requests {
		r := &t.requests[i]
		if l.opts.away(r.key.Name) != AwayShare {
			continue
		}
		switch t.op {
		case opSpend, opCheck, opCharge:
			tat := r.tat
			if r.wait == 0 && (t.op == opCheck || t.op == opSpend && (!t.allowed || r.mode == stint.CheckOnly)) {
				tat -= r.need // the reply is what a spend would have left
			}
			if r.limited() && tat > t.now {
				l.raiseSeen(r, tat+ahead)
			}
			l.sawHold(r, ahead)
		case opRefund:
			if r.limited() && r.need > 0 {
				l.refundSeen(r)
			}
		case opHold:
			l.sawHold(r, ahead)
		case opReset:
			h.mu.Lock()
			h.l.Reset(r.key, ownKey(r.key))
			h.mu.Unlock()
			l.sawHold(r, ahead)
		}
	}
}

// raiseSeen raises a seen bucket. If this machine has a debt on it, raiseSeen
// also raises the own bucket, so that the debt stays the same.
func (l *Limiter) raiseSeen(r *request, tat int64) {
	h := l.home
	seen := h.wide(r.key, max(r.tolerance, r.fourth))
	o := l.outageOf(r.name)
	h.mu.RLock()
	if !o.away.Load() && o.spends.Load() == o.settled.Load() {
		h.l.Raise(seen, time.Unix(0, tat))
		h.mu.RUnlock()
		return
	}
	h.mu.RUnlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.debt(r.key)
	full, err2 := h.l.Raise(seen, time.Unix(0, tat))
	if owes := d.at(h.now()); err == nil && err2 == nil && owes > 0 {
		h.setDebt(ownKey(r.key), d.own, instant(full), owes)
	}
}

// refundSeen gives tokens back to a seen bucket. It also lowers the own bucket,
// so that the debt stays the same.
func (l *Limiter) refundSeen(r *request) {
	h, own := l.home, ownKey(r.key)
	limit := r.limit
	limit.Durability = cmp.Or(h.level, stint.Flushed)
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.debt(r.key)
	h.l.RefundAll(stint.Request{Key: r.key, Cost: r.need / r.interval, Limit: limit})
	now := h.now()
	if err != nil || d.own <= now {
		return
	}
	if seen, err := h.tat(r.key, maxTolerance); err == nil {
		h.setDebt(own, d.own, seen, d.at(now))
	}
}

// setDebt brings an own bucket from a TAT, in one step, to what the debt and the
// seen TAT make of it. Without a debt it is full. A hold stays.
func (h *home) setDebt(own stint.Key, from, seen, owes int64) error {
	to := h.now()
	if owes > 0 {
		to = max(to, seen) + owes
	}
	req := h.wide(own, maxTolerance)
	if to >= from {
		_, err := h.l.Raise(req, time.Unix(0, to))
		return err
	}
	req.Limit.Burst, req.Limit.Count = maxTolerance, maxTolerance // a token is a nanosecond
	req.Cost = from - to
	_, err := h.l.RefundAll(req)
	return err
}

// debt returns what this machine owes on a key.
func (h *home) debt(key stint.Key) (d debt, err error) {
	if d.own, err = h.tat(ownKey(key), maxTolerance); err == nil && d.own > h.now() {
		d.seen, err = h.tat(key, maxTolerance)
	}
	return d, err
}

// debt is what this machine has spent on a key and the server does not know
// yet: the TATs of the own and the seen bucket.
type debt struct{ own, seen int64 }

// at returns the part of the debt that time has not brought back, in
// nanoseconds of the own bucket.
func (d debt) at(now int64) int64 { return max(0, d.own-max(now, d.seen)) }

// sawHold gives a key in the home the hold that it has at the server. A hold
// waits for a commit, so another goroutine sets it.
func (l *Limiter) sawHold(r *request, ahead int64) {
	h, own := l.home, ownKey(r.key)
	h.holdsMu.Lock()
	known, has := h.holds[own]
	if !has && r.hold == 0 || known == r.hold {
		h.holdsMu.Unlock()
		return
	}
	if len(h.holds)%1024 == 1023 {
		now := instant(l.Now())
		for key, end := range h.holds {
			if end >= 0 && end <= now {
				delete(h.holds, key)
			}
		}
	}
	h.holds[own] = r.hold
	h.holdsMu.Unlock()
	l.begin(func() {
		h.holdOrder.Lock() // the last one reads the newest end
		defer h.holdOrder.Unlock()
		h.holdsMu.Lock()
		end, has := h.holds[own]
		if end == 0 {
			delete(h.holds, own)
		}
		h.holdsMu.Unlock()
		if has {
			h.l.Hold(own, time.Unix(0, max(0, end+ahead)))
		}
	})
}

// carryOut asks the server, or decides without it while it is away. If the server
// went away and came back during a call that spent nothing, carryOut asks again.
func (l *Limiter) carryOut(t *trip, n *limitsInForce) {
	for {
		aways := l.stats.aways.Load()
		if l.whileAway(t, nil) {
			return
		}
		l.run(t, n)
		l.watchShard(t)
		if t.err == nil {
			l.saw(t)
			return
		}
		if l.whileAway(t, t.err) || !errors.Is(t.err, ErrAway) || l.stats.aways.Load() == aways {
			return
		}
		t.err = nil
	}
}

// whileAway decides a trip without the server, as Options.Away says. cause is
// the error of the trip, or nil if it was not made. It returns false, and changes
// nothing, if the server is not away.
func (l *Limiter) whileAway(t *trip, cause error) bool {
	o := l.outageOf(t.requests[0].name)
	if !o.away.Load() || cause != nil && !errors.Is(cause, ErrAway) && !errors.Is(cause, ErrNoAnswer) {
		return false
	}
	if h := l.home; h != nil {
		h.mu.RLock()
		defer h.mu.RUnlock()
		if !o.away.Load() {
			return false
		}
	}
	if cause == nil {
		cause = fmt.Errorf("%w: it has not come back", ErrAway)
	}
	decides := t.op == opSpend || t.op == opCheck || t.op == opRefund && errors.Is(cause, ErrAway)
	for i := range t.requests {
		decides = decides && l.opts.away(t.requests[i].key.Name) != AwayClosed
	}
	if t.err = cause; decides {
		t.err = unsure(cause, l.decideHere(t, o))
	}
	return true
}

// unsure returns the error of a decision that this machine made after a call with
// the error cause. If that call may have spent, the error is not ErrAway.
func unsure(cause, err error) error {
	if errors.Is(cause, ErrNoAnswer) && errors.Is(err, ErrAway) {
		return fmt.Errorf("%w, and then: %v", cause, err)
	}
	return err
}

// decideHere decides on buckets without the server. None of them may have
// AwayClosed. After an error nothing was spent on this machine, except that after
// stint.ErrNotDurable the tokens may be spent.
func (l *Limiter) decideHere(t *trip, o *outage) error {
	h := l.home
	t.here, t.allowed, t.now = true, true, instant(l.Now())
	var reqs []stint.Request
	var at []*request
	for i := range t.requests {
		r := &t.requests[i]
		if l.opts.away(r.key.Name) == AwayOpen {
			r.limit, r.tat, r.wait, r.hold = stint.Unlimited, 0, 0, 0
			if t.op == opSpend {
				l.stats.open.Add(1)
			}
			continue
		}
		req, err := l.requestHere(r, t.op)
		if err != nil {
			return err
		}
		reqs, at = append(reqs, req), append(at, r)
	}
	if len(reqs) == 0 {
		return nil
	}
	ds := make([]stint.Decision, len(reqs))
	var err error
	if t.op == opRefund {
		for i := range reqs {
			if ds[i], err = h.l.RefundAll(reqs[i]); err != nil {
				break
			}
		}
	} else {
		_, err = h.l.SpendTogether(reqs, ds)
		o.spends.Add(1)
	}
	if errors.Is(err, stint.ErrNotDurable) {
		return fmt.Errorf("redislimit: server is away, and this machine decided by itself: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%w: and this machine cannot decide by itself: %w", ErrAway, err)
	}
	for i, r := range at {
		d := &ds[i]
		r.tat, r.wait, r.hold = t.now+int64(d.ResetAfter), int64(d.RetryAfter), 0
		t.allowed = t.allowed && (d.Allowed || r.mode == stint.SpendOnly)
	}
	if t.op == opCheck && len(at) == 1 {
		if b, err := h.l.Bucket(reqs[0].Key); err == nil && !b.HeldUntil.IsZero() {
			at[0].hold = t.now + int64(b.HeldUntil.Sub(h.l.Now()))
		}
	}
	l.stats.here.Add(1)
	return nil
}

// requestHere returns the request to the own bucket, and gives r this machine's
// share of the limit.
func (l *Limiter) requestHere(r *request, op string) (stint.Request, error) {
	h := l.home
	share := r.limit.DividedBy(h.nodes)
	req := stint.Request{Key: ownKey(r.key), Mode: r.mode, Limit: h.durable(share, l.opts.Durability)}
	if op == opCheck {
		req.Mode = stint.CheckOnly
	}
	if !r.limited() {
		return req, nil
	}
	if req.Cost = r.need / r.interval; req.Cost > req.Limit.Burst && op != opRefund {
		return req, fmt.Errorf("%w: %v asks for %d tokens, and the share of this machine is %d", ErrAway, r.key, req.Cost,
			req.Limit.Burst)
	}
	most := max(r.tolerance, r.fourth)
	seen, err := h.tat(r.key, most)
	if err == nil && seen > h.now() {
		_, err = h.l.Raise(h.wide(req.Key, most), time.Unix(0, seen))
	}
	if err != nil {
		return req, fmt.Errorf("%w: and this machine cannot decide by itself: %w", ErrAway, err)
	}
	r.limit = share
	r.interval, r.tolerance = int64(r.limit.Interval()), int64(r.limit.Tolerance())
	r.need = req.Cost * r.interval
	return req, nil
}

// undoHere returns what a trip that was decided here has spent, because another
// trip of the same call denied or failed.
func (l *Limiter) undoHere(t *trip) {
	for i := range t.requests {
		r := &t.requests[i]
		if r.mode == stint.CheckOnly || r.wait != 0 || r.need == 0 || r.limit == stint.Unlimited {
			continue
		}
		l.home.l.RefundAll(stint.Request{Key: ownKey(r.key), Cost: r.need / r.interval,
			Limit: l.home.durable(r.limit, l.opts.Durability)})
	}
}
