package stint

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/table"
)

// SetLimits puts other limits in force while decisions go on. Until SetLimits
// has returned, a decision is held to the old limits or to the new ones. After
// that it is held to the new ones.
//
// A bucket keeps the time at which it will be full. The first request that comes
// under the new limit, which may be a Check, cuts that time down to the wait of an
// empty bucket, whether the bucket is in memory or not. Then it has more tokens
// than before if the larger limit comes back; if no request came, nothing was cut.
// The next flush saves the new time. After a crash before that flush, the bucket is
// at worst empty. The same happens if a program is started with other limits. Only
// SetOverrides knows what was used under the limit before.
//
// If a quota that follows the calendar gets another size, what was used stays used
// until the period ends, whatever the sizes in between: a bucket that has used 80
// of 100 has none left of 50, and 20 if the 100 come back.
//
// If a rolling limit becomes a quota that follows the calendar, a bucket that
// would have been full before the end of the present period is full, and any
// other one is empty. If it is not in memory, it has used a token for each
// nanosecond from the end of the period until it would be full, as after a
// restart. SetOverrides keeps what was used.
//
// Names must keep their numbers, or the error is ErrNameMismatch. They must
// keep their Parent and Floor, too. After an error the old limits stay in
// force.
func (l *Limiter) SetLimits(limits *Limits) error {
	if limits == nil {
		return errors.New("stint: SetLimits: no limits")
	}
	var with *Limits
	return l.declare(limits, func(*Limits) (_ *Limits, err error) {
		with, err = l.withPlans(limits)
		return with, err
	}, func(s *cache.Shard) {
		changeLimitsLocked(s, with, l.clock.Now())
	})
}

// keepPlans remembers what SetOverrides puts in force, if Options.KeepOverrides
// asks for that. The ids are canonical.
func (l *Limiter) keepPlans(overrides []Override) {
	if !l.opts.KeepOverrides {
		return
	}
	l.plansMu.Lock()
	defer l.plansMu.Unlock()
	for _, o := range overrides {
		listed := false
		if l.base.declares(o.Key.Name) {
			_, listed = l.base.overrides[l.base.index(o.Key.Name)].rules.Get(o.Key.ID)
		}
		if o.Limit == (Limit{}) && !listed {
			delete(l.plans, o.Key)
			continue
		}
		if l.plans == nil {
			l.plans = make(map[Key]Override)
		}
		l.plans[o.Key] = o
	}
}

// withPlans returns limits with the overrides that SetOverrides put in force.
// All are checked at once, because a limit may need its floor, and a floor the
// tokens that another one has given up.
func (l *Limiter) withPlans(limits *Limits) (*Limits, error) {
	l.plansMu.Lock()
	defer l.plansMu.Unlock()
	var plans []Override
	for key, o := range l.plans {
		if limits.declares(key.Name) {
			plans = append(plans, o)
		}
	}
	if plans == nil {
		return limits, nil
	}
	return limits.With(plans...)
}

// declare enters new Names into the store, and then puts new limits in force by
// calling change with each shard, locked. next returns the new limits. While the
// store enters Names, which may take long, overrides can change. Afterwards next
// is called again. If base is not nil, it is what KeepOverrides compares with from
// then on.
func (l *Limiter) declare(
	base *Limits, next func(old *Limits) (*Limits, error), change func(*cache.Shard),
) error {
	l.declareMu.Lock()
	defer l.declareMu.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	old := l.limits.Load()
	ls, err := next(old)
	if err == nil {
		err = old.sameTrees(ls)
	}
	if err == nil && !old.declaresAll(ls) {
		err = l.store.Declare(ls.Names())
	}
	if err != nil {
		return err
	}
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	if ls, err = next(l.limits.Load()); err != nil {
		return err
	}
	if base != nil {
		l.plansMu.Lock()
		l.base = base
		l.plansMu.Unlock()
	}
	l.putInForce(ls)
	l.cache.SetLimits(forCache(ls), change)
	l.lines.wake()
	return nil
}

// putInForce makes limits the newest, before the shards have them.
func (l *Limiter) putInForce(ls *Limits) {
	if ls.members != nil {
		l.hasShares.Store(true)
	}
	l.limits.Store(ls)
}

// declaresAll reports whether ls, whose Names the store has, declares all Names of
// other with the same labels.
func (ls *Limits) declaresAll(other *Limits) bool {
	for i, name := range other.order {
		if ls.label(name) != other.specs[i].Label {
			return false
		}
	}
	return true
}

// SetOverrides puts other overrides in force, as Limits.With makes them, while
// decisions go on: a new plan of an id, or Blocked for a while. A call for one id
// takes microseconds, however many ids there are, unless the Name has an Override
// format. Such an override covers many buckets, and each bucket in memory is
// compared with it. A call in a thousand or more looks at all overrides, as
// Limits.With says.
//
// What was used stays used: of 100 a day that are used up, an upgrade to 10,000 a
// day leaves 9,900, and after 5,000 of 10,000, a downgrade to 100 leaves none.
// This holds for buckets in memory and in the store, and for quotas that follow
// the calendar. A rolling limit forgets what was used beyond its burst, so another
// upgrade leaves 9,900. A quota that follows the calendar forgets nothing before
// its period ends. There are two exceptions, which are as after SetLimits: buckets
// of an Override format that are not in memory, and limits that take the place of
// Blocked or Unlimited. What a larger Limit of a Request used beyond the limit
// before is forgotten.
//
// If the limit, or the one before, is Leased or Synced, SetOverrides saves what it
// converted. ErrNotDurable then means that the new limits are in force, and that
// after a crash the bucket may be as it was before. At the other levels the next
// flush saves it.
//
// Nothing is written to a limits file: a later SetLimits replaces these overrides,
// too, unless Options.KeepOverrides is set, and a restart forgets them.
// After another error the old overrides stay in force.
func (l *Limiter) SetOverrides(overrides ...Override) error {
	durable, rs, err := l.setOverrides(overrides, nil)
	for err == nil && rs != nil {
		// Disks are waited for without limitsMu, so that another id can be blocked
		// while one hangs.
		for i := range rs {
			if rs[i].known {
				continue
			}
			if err := l.load(&rs[i]); err != nil {
				return l.failed(rs[i].key, err)
			}
		}
		durable, rs, err = l.setOverrides(overrides, rs)
	}
	if err != nil || !durable {
		return err
	}
	if err := l.cache.Flush(l.opts.CommitTimeout); err != nil {
		return fmt.Errorf("%w: the new limits are in force: %w", ErrNotDurable, err)
	}
	return nil
}

// setOverrides puts overrides in force, and converts buckets in memory. durable
// reports whether they are to be saved. If the state of a bucket that converts is
// not known, setOverrides changes nothing, and returns requests for all of them.
// loaded has these requests after the buckets were loaded, or is nil.
func (l *Limiter) setOverrides(
	overrides []Override, loaded []request,
) (durable bool, load []request, err error) {
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	if l.isClosed() {
		return false, nil, ErrClosed
	}
	old := l.limits.Load()
	if tidied := old.tidied(); tidied != old {
		l.limits.Store(tidied)
		l.cache.SetLimits(forCache(tidied), func(s *cache.Shard) { changeLimitsLocked(s, tidied, l.clock.Now()) })
		old = tidied
	}
	ls, overrides, err := old.with(overrides) // with canonical ids
	if err != nil {
		return false, nil, err
	}
	var rs []request // of the buckets that convert
	for _, o := range overrides {
		was, is := old.ruleOf(o.Key), ls.ruleOf(o.Key)
		if !is.converts(was) {
			continue
		}
		level := max(cmp.Or(was.limit.Durability, l.opts.Durability), cmp.Or(is.limit.Durability, l.opts.Durability))
		durable = durable || level >= Leased
		if ls.settings[o.Key.Name].leading > 0 { // changeRules finds only buckets in memory
			continue
		}
		r := request{asked: asked{key: o.Key, op: opRefund}}
		if i := slices.IndexFunc(loaded, func(of request) bool { return of.key == r.key }); i >= 0 {
			r = loaded[i]
		} else if err := r.locate(l); err != nil {
			return false, nil, l.failed(r.key, err)
		}
		rs = append(rs, r)
	}
	sortRequests(rs)
	if !lockAll(rs) {
		unlockAll(rs)
		return false, rs, nil
	}
	// The buckets convert before their shards are unlocked: later they might leave
	// memory as they were. None enters memory before all are known: it might push
	// another one out.
	l.limits.Store(ls)
	now := l.clock.Now()
	for i := range rs {
		if r := &rs[i]; !r.resident {
			_ = r.decideLocked(now, &Decision{}) // it returns no tokens
			r.writeLocked(now)
		}
	}
	for i := range rs {
		rs[i].shard.Limits = forCache(ls)
		changeRuleOfLocked(rs[i].shard, cacheKey(rs[i].key), rs[i].hash, now)
	}
	unlockAll(rs)
	l.keepPlans(overrides)
	l.cache.SetLimits(forCache(ls), func(s *cache.Shard) { s.Limits = forCache(ls) })
	for _, o := range overrides {
		l.changeRules(o.Key, ls.settings[o.Key.Name].leading)
	}
	l.lines.wake()
	return durable, nil, nil
}

// ruleOf returns the rule of an override with a canonical id.
func (ls *Limits) ruleOf(override Key) *rule {
	s := &ls.settings[override.Name]
	if r, ok := ls.overrides[s.index].rules.Get(override.ID); ok {
		return &ls.rules[r]
	}
	return &ls.rules[s.rule]
}

// Declare adds Names that are not declared yet, without a limit, while decisions go
// on: they are for requests that bring their own. It is what hostlimit does for the
// Names of other processes; a program that has new limits calls SetLimits. The
// buckets in memory stay as they are, even those that a
// given limit has emptied further than the configured limit could.
func (l *Limiter) Declare(names Names) error {
	var ls *Limits
	next := func(old *Limits) (_ *Limits, err error) {
		ls, err = old.withNames(names)
		return ls, err
	}
	return l.declare(nil, next, func(s *cache.Shard) { s.Limits = forCache(ls) })
}

// changeLimitsLocked puts limits in force in a shard, for every bucket in it.
func changeLimitsLocked(s *cache.Shard, limits *Limits, now int64) {
	old := limitsIn(s)
	s.Limits = forCache(limits)
	s.Each(func(i uint32, b table.Slot) table.Outcome { return changeRuleLocked(s, i, b, old, now, false) })
}

// changeRules holds the buckets of an override to the limits in force. The id
// of the override is the whole id of the bucket if parts is 0.
func (l *Limiter) changeRules(key Key, parts int) {
	if parts == 0 {
		s, h := l.cache.Shard(uint16(key.Name), key.ID)
		s.Lock()
		changeRuleOfLocked(s, cacheKey(key), h, l.clock.Now())
		s.Mu.Unlock()
		return
	}
	l.cache.Each(func(s *cache.Shard) {
		s.Each(func(i uint32, b table.Slot) table.Outcome {
			if Name(b.Name()) == key.Name && bytes.HasPrefix(b.ID(), []byte(key.ID+":")) {
				return changeRuleLocked(s, i, b, limitsIn(s), l.clock.Now(), true)
			}
			return table.Done
		})
	})
}

// changeRuleOfLocked is changeRuleLocked for a bucket that may be in memory. A
// second call changes nothing.
func changeRuleOfLocked(s *cache.Shard, key cache.Key, h uint64, now int64) {
	if i, ok := s.Find(key.Name, key.ID, h); ok && s.Limits != nil {
		changeRuleLocked(s, i, s.At(i), limitsIn(s), now, true)
	}
}

// changeRuleLocked holds a bucket to the limits in force, after the old ones,
// which have the bucket's rule. If its rate is the same, the bucket keeps its
// TAT, which may be that of a larger given limit. If convert is true, and the
// rules give a TAT another meaning, the bucket keeps the tokens that were used.
func changeRuleLocked(s *cache.Shard, i uint32, b table.Slot, old *Limits, now int64, convert bool) table.Outcome {
	limits := limitsIn(s)
	key := cache.Key{Name: b.Name(), ID: string(b.ID())}
	rule, _ := limits.resolve(Key{Name(key.Name), key.ID}) // 0 if the Name is not declared: then the next call is an error
	was, r := &old.rules[b.Rule()], &limits.rules[rule]
	convert = convert && r.converts(was)
	b.SetRule(rule)
	b.Clear(table.Covered)
	if b.Has(table.Dirty) {
		s.MarkDirty(i) // at the new level it may no longer be deferred
	}
	if rule <= blocked {
		return table.Done // a queue keeps the rate that it had
	}
	if g := s.GateLocked(key); g != nil {
		s.RerateLocked(i, g, now, r.queueRate(), r.periods != nil)
	}
	if r.rate == was.rate && r.sameTime(was) {
		return table.Done
	}
	if b.Has(table.Pending) {
		s.ConvertedLocked(b, r.periods != nil, func(tat int64) int64 { return r.after(was, tat, now, convert) })
	}
	tat := b.TAT()
	if convert && b.Has(table.Uncut) {
		tat = was.clamp(tat, now)
	}
	tat = r.after(was, tat, now, convert)
	b.Clear(table.Uncut)
	if r.clamp(tat, now) < tat {
		b.Set(table.Uncut) // the next request cuts it
	}
	switch {
	case tat < b.TAT():
		s.LowerLocked(i, tat)
	case tat > b.TAT():
		s.Write(i, tat)
	}
	return table.Done
}
