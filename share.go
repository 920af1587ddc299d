package stint

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/share"
	"github.com/stint-go/stint/internal/table"
)

// part returns the request for one bucket of the group, or nil.
func (g *group) part(rs []request, of role) *request {
	if !g.has[of] {
		return nil
	}
	return &rs[g.at[of]]
}

// lockParts adds the parts of requests for shares, sorts all, and locks their
// shards once the buckets are known. After an error, which is that of rs[at], no
// shard is locked.
func (l *Limiter) lockParts(rs []request) (_ []request, at int, err error) {
	for {
		if rs, at, err = l.withShares(rs); err != nil {
			return rs, at, err
		}
		if at, err = l.sortParts(rs); err != nil {
			return rs, at, err
		}
		if at, err = l.lockFound(rs); err != nil {
			return rs, at, err
		}
		again := false // a SetLimits has made a request one for a share
		for i := range rs {
			r := &rs[i]
			again = again || r.role == plainRole && limitsIn(r.shard).isShare(r.key.Name)
		}
		if again {
			unlockAll(rs)
			continue
		}
		for i := range rs {
			rs[i].useConfiguredLocked(l.opts.Durability)
		}
		return rs, 0, nil
	}
}

// withShares adds the requests to the total and the floor of each class in rs. An
// error is that of rs[at].
func (l *Limiter) withShares(rs []request) (_ []request, at int, err error) {
	ls := l.limits.Load()
	if ls.members == nil {
		return rs, 0, nil
	}
	for i := range rs {
		r := &rs[i]
		if r.role != plainRole { // from an earlier round of lockParts
			continue
		}
		m := ls.member(r.key.Name)
		r.role = m.role
		switch {
		case m.role == plainRole:
			continue
		case r.op == opRaise:
			return rs, i, fmt.Errorf("%w: %s cannot be raised", errShare, ls.labeled(r.key))
		case r.alone: // it became a share during a Wait
			return rs, i, fmt.Errorf("%w: %s has no queue", errShare, ls.labeled(r.key))
		case r.given != nil && r.given.periods != nil:
			return rs, i, fmt.Errorf("%w: %s cannot be held to %v", errShare, ls.labeled(r.key), r.given.limit)
		case m.role == floorRole && r.mode != CheckOnly:
			return rs, i, fmt.Errorf("%w: %s is a floor", errShare, ls.labeled(r.key))
		case m.role == totalRole && r.given != nil:
			return rs, i, fmt.Errorf("%w: %s is a total, whose limit is the configured one", errShare,
				ls.labeled(r.key))
		case m.role == floorRole:
			continue
		}
		r.group = &group{upTo: r.mode == UpTo}
		if r.mode == UpTo {
			r.mode = CheckAndSpend // the group limits the cost
		}
		if m.role == totalRole {
			continue
		}
		if _, err := ls.resolve(r.key); err != nil {
			return rs, i, err
		}
		add := func(key Key, role role) {
			class := &rs[i]
			part := request{asked: class.asked}
			part.key, part.role, part.given, part.added = key, role, nil, true
			part.located = l.locate(key)
			rs = append(rs, part)
		}
		add(m.total.Key(""), totalRole)
		if floor, ok := ls.floorOf(m, rs[i].key.ID); ok {
			add(floor, floorRole)
		}
	}
	return rs, 0, nil
}

// sortParts sorts requests, and lets the groups that have the same total draw from
// it in turn. Any other two requests for one bucket are an error, that of rs[at].
func (l *Limiter) sortParts(rs []request) (at int, err error) {
	sortRequests(rs)
	for i := range rs[1:] {
		a, b := &rs[i], &rs[i+1]
		switch {
		case a.key != b.key:
			continue
		case !b.added || b.role != totalRole: // if b is not, a is not, either
			return i + 1, fmt.Errorf("%w: %s", ErrDuplicateKey, l.limits.Load().labeled(b.key))
		case a.drawn == nil:
			a.drawn = new(drawn)
		}
		b.drawn = a.drawn
	}
	return 0, nil
}

// decideUpToLocked is decideLocked for as many tokens as the group has, up to the
// cost. It asks for none first, to learn how many there are.
func (g *group) decideUpToLocked(rs []request, now int64, d *Decision) error {
	most := g.part(rs, totalRole).cost
	for _, cost := range []int64{0, most} {
		for of, has := range g.has {
			if has {
				r := g.part(rs, role(of))
				r.cost, r.op = min(cost, d.Remaining), opSpend
			}
		}
		if err := g.decideLocked(rs, now, d); err != nil || !d.Allowed {
			return err
		}
	}
	return nil
}

// decideLocked decides on a group at the instant now, and sets the new TATs of
// its buckets.
func (g *group) decideLocked(rs []request, now int64, d *Decision) error {
	ceiling, floor, total := g.part(rs, classRole), g.part(rs, floorRole), g.part(rs, totalRole)
	var sd shareDecision
	var err error
	if ceiling != nil {
		err = ceiling.decideLocked(now, &sd.ceiling)
	} else {
		sd.ceiling = Decision{Allowed: true, Remaining: math.MaxInt64, Key: total.key}
	}
	if err == nil {
		err = total.decideLocked(now, &sd.total)
	}
	if err != nil {
		return err
	}
	sd.Ceiling, sd.Floor, sd.Total = int64(sd.ceiling.RetryAfter), share.Never, int64(sd.total.RetryAfter)
	if floor != nil && floor.rule > blocked {
		floor.refundLikeLocked(total, now)
		if floor.decideLocked(now, &sd.floor) == nil {
			sd.Floor = int64(sd.floor.RetryAfter)
		} else { // the cost is over its burst
			floor.cost = 0
			_ = floor.decideLocked(now, &sd.floor)
		}
		if floor.shard.GateLocked(cacheKey(floor.key)).NotBefore() > now {
			sd.floor.Remaining = 0 // a held floor cannot pay
		}
	}
	var alone drawn
	dr := total.drawn
	if dr == nil {
		dr = &alone
	}
	if sd.Loan = sd.Total; total.rule > blocked && total.op != opRefund {
		sd.kept = limitsIn(total.shard).kept(total.key.Name)
		sd.Loan = total.waitLocked(now, dr, sd.kept)
		if total.drawn != nil {
			sd.Total = total.waitLocked(now, dr, 0)
		}
	}
	if sd.Own() == share.Never && sd.Loan == share.Never && total.rule > blocked {
		most := sd.total.Limit.Burst - sd.kept
		return fmt.Errorf("%w: %d of %d for %v", ErrCostOverBurst, dr.asked+total.cost, most,
			limitsIn(total.shard).labeled(total.key))
	}
	if total.op == opSpend && total.mode != SpendOnly {
		if dr.asked += total.cost; sd.RetryAfter() > 0 {
			dr.lacked += total.cost
		}
	}
	chargeLocked(ceiling, floor, total, &sd.Waits)
	if !dr.begun {
		dr.begun, dr.from, dr.to = true, total.from, total.from
	}
	if total.op != opCheck {
		dr.to = total.to
	}
	*d = sd.decision(total.ruleLocked(), total.shard.GateLocked(cacheKey(total.key)).Tail(total.tat), now)
	total.reportTaken(d)
	return nil
}

// joinTotals merges the requests of several groups to their total, once all are
// decided on.
func joinTotals(rs []request, allowed bool) []request {
	n := 0
	for i := range rs {
		r := &rs[i]
		if n == 0 || r.drawn == nil || r.drawn != rs[n-1].drawn {
			if n < i {
				rs[n] = *r
			}
			n++
			continue
		}
		all := &rs[n-1]
		if r.op != opCheck {
			all.op = r.op
		}
		all.cost = max(all.cost, r.cost)
		all.allowances += r.allowances
		all.denials += r.denials
		all.stays = all.stays || r.stays
		all.from, all.to = r.drawn.from, r.drawn.from
		if allowed {
			all.to = r.drawn.to
		}
	}
	return rs[:n]
}

// refundLikeLocked is called before a floor gets a refund of tokens that were
// spent at a known instant. It moves that instant back, so that as many tokens have
// come back to the floor since as to the total, which refills faster: the total must
// get as many as the floor.
func (r *request) refundLikeLocked(total *request, now int64) {
	ago := now - r.spent
	if r.op != opRefund || r.spent == 0 || ago <= 0 || total.rule <= blocked {
		return
	}
	ago = r.ruleLocked().rate.timeFor(ago, &total.ruleLocked().rate)
	r.spent = cmp.Or(now-ago, -1) // 0 means unknown
}

// waitLocked returns the wait until a total has the tokens of the request, and kept
// more, after the requests before it in the call.
func (r *request) waitLocked(now int64, dr *drawn, kept int64) (wait int64) {
	before := *dr
	if r.mode == SpendOnly { // it takes what is left
		before = drawn{}
	}
	if kept > r.ruleLocked().rate.burst-r.cost-before.asked {
		return share.Never
	}
	all := *r
	all.cost += before.lacked + kept
	var d Decision
	_ = all.decideLocked(now, &d) // the cost is not over the burst
	return int64(d.RetryAfter)
}

// chargeLocked cancels the new TATs of the buckets in a group that do not pay.
// ceiling and floor may be nil.
func chargeLocked(ceiling, floor, total *request, w *share.Waits) {
	total.allowed = w.TotalPays()
	allowed := w.RetryAfter() == 0
	if ceiling != nil {
		ceiling.allowed = allowed
	}
	for _, r := range []*request{ceiling, total, floor} {
		if r != nil && (!allowed || r == floor && !w.FloorPays()) {
			r.to = r.from
		}
	}
	if !allowed && total.allowed && total.op == opSpend {
		total.op = opCheck // the denial counts at the ceiling only
	}
	if floor == nil {
		return
	}
	if floor.allowed = true; !w.FloorPays() {
		floor.op = opCheck
	} else {
		// After a failed commit the floor must not have tokens that the total lacks.
		isRefund := floor.op == opRefund
		floor.stays, total.stays = !isRefund, isRefund
	}
}

// shareDecision has the separate decisions on the buckets of a class's request, and
// the waits for them. floor is the zero Decision without a floor.
type shareDecision struct {
	share.Waits
	ceiling, floor, total Decision
	kept                  int64 // tokens that loans leave in the total
}

// decision returns the stricter decision of two: that of the ceiling, and that of the
// floor or total that pays. tat is that of the total before the request.
func (sd *shareDecision) decision(total *rule, tat, now int64) Decision {
	if sd.total.Allowed && !sd.TotalPays() { // it could pay, but keeps its tokens
		total.report(&sd.total, tat, now)
	}
	sd.floor.Remaining = min(sd.floor.Remaining, sd.total.Remaining) // after a crash the total may have less
	sd.total.Remaining = max(0, sd.total.Remaining-sd.kept)
	source := sd.total
	if sd.ShowsFloor(sd.floor.Remaining, sd.total.Remaining) {
		source = sd.floor
	}
	source.Allowed, source.RetryAfter = sd.TotalPays(), time.Duration(min(sd.Own(), sd.Loan))
	if sd.ceiling.Stricter(&source) {
		return sd.ceiling
	}
	return source
}

// fastPathShare is fastPath for a class, over two buckets or three. It takes two
// fifths of the time of the slow path, and allocates nothing.
func (l *Limiter) fastPathShare(req *Request, d *Decision) (done bool) {
	m := l.limits.Load().member(req.Key.Name)
	if m.role != classRole || req.Mode > CheckOnly || req.Limit != (Limit{}) || len(req.Key.ID) > maxIDLen {
		return false
	}
	keys := [3]Key{req.Key, m.total.Key(""), m.floor.Key(req.Key.ID)}
	var at [len(keys)]spot
	var shards [len(keys)]*cache.Shard
	n := len(keys)
	if m.floor == 0 {
		n--
	}
	for i := range keys[:n] {
		f := &at[i]
		f.located = l.locate(keys[i])
		f.shard.Prefetch(f.hash)
		shards[i] = f.shard
	}
	locked := cache.LockAll(shards[:n])
	done = l.fastPathShareLocked(m, keys[:n], at[:n], req, d)
	cache.UnlockAll(locked)
	return done
}

func (l *Limiter) fastPathShareLocked(m member, keys []Key, at []spot, req *Request, d *Decision) (done bool) {
	now := l.clock.Now()
	var sd shareDecision
	of := [...]*Decision{&sd.ceiling, &sd.total, &sd.floor}
	for i := range at {
		f, s := &at[i], at[i].shard
		index, ok := s.Find(uint16(keys[i].Name), keys[i].ID, f.hash)
		limits := limitsIn(s)
		if !ok && i == 2 && limits != nil {
			if _, has := limits.floorOf(m, req.Key.ID); !has {
				at = at[:i]
				break
			}
		}
		if !ok || limits == nil || s.At(index).Rule() <= blocked || s.At(index).Has(table.Gate|table.Uncut) {
			return false
		}
		rule, tat := &limits.rules[s.At(index).Rule()], s.At(index).TAT()
		if rule.level(l.opts.Durability) >= Leased && req.Mode != CheckOnly {
			return false
		}
		f.index, f.rule = index, rule
		cost, most := req.Cost, rule.rate.burst
		switch {
		case i == 1:
			sd.kept = limits.kept(keys[i].Name)
			most -= sd.kept
		case i == 2 && cost > most: // the floor never pays it
			cost = 0
		}
		if uint64(cost) > uint64(most) { // the cost may be negative
			return false
		}
		f.next, f.state = rule.decide(tat, now, cost, 0)
		of[i].Key = keys[i]
		f.report(of[i], rule)
		if cost != req.Cost {
			f.next, f.wait = tat, share.Never
		}
	}
	total := &at[1]
	tat := total.shard.At(total.index).TAT()
	_, loan := total.rule.decide(tat, now, req.Cost+sd.kept, 0)
	sd.Waits = share.Waits{Ceiling: at[0].wait, Floor: share.Never, Total: total.wait, Loan: loan.wait}
	if len(at) == 3 {
		sd.Floor = at[2].wait
	}
	*d = sd.decision(total.rule, tat, now)
	if req.Mode == CheckOnly {
		return true
	}
	if d.Allowed {
		d.Taken = req.Cost
	}
	for i := range at {
		f := &at[i]
		pays := d.Allowed && (i != 2 || sd.FloorPays())
		if pays && req.Cost > 0 {
			f.shard.Write(f.index, f.next)
		} else if !f.shard.At(f.index).Has(table.Used) {
			f.shard.Use(f.index)
		}
		if pays || i == 0 || i == 1 && !sd.TotalPays() {
			f.shard.CountLocked(uint16(keys[i].Name))[denied(pays)]++
		}
	}
	return true
}
