package stint

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/gcra"
)

// SetLimits puts other limits in force while decisions go on. Until SetLimits
// has returned, a decision is held to the old limits or to the new ones. After
// that it is held to the new ones.
//
// An id whose override comes, goes or changes keeps what it used, as after
// SetOverrides: of 1,000 a day that are used up, a move to 20,000 a day leaves
// 19,000. That holds for buckets in memory and in the store, with the exceptions
// that SetOverrides has, and for a bucket that cannot be read: it keeps the time at
// which it will be full. Such ids are converted a few at a time, before the other
// limits change. The error is ErrNotDurable as after SetOverrides.
//
// Any other bucket, as after a change of the default, keeps the time at which it will
// be full. The first request that comes under the new limit, which may be a Check,
// cuts that time down to the wait of an empty bucket, whether the bucket is in memory
// or not. Then it has more tokens than before if the larger limit comes back; if no
// request came, nothing was cut.
// The next flush saves the new time. After a crash before that flush, the bucket is
// at worst empty. The same happens, to all buckets, if a program is started with
// other limits.
//
// If a quota that follows the calendar gets another size, what was used stays used
// until the period ends, whatever the sizes in between: a bucket that has used 80
// of 100 has none left of 50, and 20 if the 100 come back. The same holds for
// another zone, start or unit, even after a restart: what was used counts in the
// period that is the present one when a request comes.
//
// If a rolling limit becomes a quota that follows the calendar, a bucket that
// would have been full before the end of the present period is full, and any
// other one is empty. If it is not in memory, it has used a token for each
// nanosecond from the end of the period until it would be full, as after a
// restart. An override keeps what was used.
//
// Names must keep their numbers, or the error is ErrNameMismatch. Those of Declare
// stay declared. After any error but ErrNotDurable the old limits stay in force.
func (l *Limiter) SetLimits(limits *Limits) error {
	if limits == nil {
		return errors.New("stint: SetLimits: no limits")
	}
	durable := false
	prepare := func() { durable = l.keepUsed(limits) }
	err := l.declare(limits.withLent, prepare, l.cache.SetLimits)
	if err != nil || !durable {
		return err
	}
	return l.saveConverted()
}

// keepUsed puts the overrides in force that other limits change, a few ids at a
// time, so that these keep what they used, in memory or not. durable reports whether
// that is to be saved. It leaves out the ids whose buckets cannot be read.
func (l *Limiter) keepUsed(limits *Limits) (durable bool) {
	const few = 256
	old, batch := l.limits.Load(), make([]Override, 0, few)
	keep := func() {
		saves, err := l.override(batch)
		for i := 0; err != nil && i < len(batch) && len(batch) > 1; i++ {
			one, _ := l.override(batch[i : i+1])
			saves = saves || one
		}
		durable, batch = durable || saves, batch[:0]
	}
	add := func(name Name, ids iter.Seq[string]) {
		for id := range ids {
			key := Key{name, id}
			was, is := old.ruleOf(key), limits.ruleOf(key)
			switch {
			case !is.Converts(was):
			case old.settings[name].leading > 0: // only the buckets in memory are known
				durable = durable || l.mayWait(was, is)
			default:
				if batch = append(batch, Override{Key: key, Limit: limitOf(is)}); len(batch) == few {
					keep()
				}
			}
		}
	}
	for _, name := range limits.order {
		if !old.declares(name) {
			continue
		}
		was, is := &old.overrides[old.index(name)].rules, &limits.overrides[limits.index(name)].rules
		add(name, is.IDs())
		add(name, func(yield func(string) bool) {
			for id := range was.IDs() {
				if _, ok := is.Get(id); !ok && !yield(id) {
					return
				}
			}
		})
	}
	if len(batch) > 0 {
		keep()
	}
	return durable
}

// declare enters new Names into the store, and then puts new limits in force by
// calling put. next returns the new limits. While the
// store enters Names, which may take long, overrides can change. Afterwards prepare
// is called, unless it is nil, and next again.
func (l *Limiter) declare(next func(old *Limits) (*Limits, error), prepare func(), put func(*cache.Limits)) error {
	l.declareMu.Lock()
	defer l.declareMu.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	old := l.limits.Load()
	ls, err := next(old)
	if err == nil && !old.declaresAll(ls) {
		err = l.store.Declare(ls.Names())
	}
	if err != nil {
		return err
	}
	if prepare != nil {
		prepare()
	}
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	if ls, err = next(l.limits.Load()); err != nil {
		return err
	}
	l.limits.Store(ls) // before the shards have them
	put(ls.inForce())
	l.lines.wake()
	return nil
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
// Nothing is written to a limits file: a restart forgets these overrides, and a
// later SetLimits replaces them, too. To keep them, give SetLimits the new limits
// with them: limits.With(plans...). After another error the old overrides stay in
// force.
func (l *Limiter) SetOverrides(overrides ...Override) error {
	durable, err := l.override(overrides)
	if err != nil || !durable {
		return err
	}
	return l.saveConverted()
}

// saveConverted saves the buckets that new limits have converted.
func (l *Limiter) saveConverted() error {
	if err := l.cache.Flush(l.opts.CommitTimeout); err != nil {
		return fmt.Errorf("%w: the new limits are in force: %w", ErrNotDurable, err)
	}
	return nil
}

// override is SetOverrides, which saves nothing. durable reports whether the buckets
// are to be saved.
func (l *Limiter) override(overrides []Override) (durable bool, err error) {
	durable, bs, err := l.setOverrides(overrides, nil)
	for err == nil && bs != nil {
		// Disks are waited for without limitsMu, so that another id can be blocked
		// while one hangs.
		if at, err := l.cache.LoadUnknown(bs, nil); err != nil {
			return false, l.failed(Key{Name(bs[at].Key.Name), bs[at].Key.ID}, err)
		}
		durable, bs, err = l.setOverrides(overrides, bs)
	}
	return durable, err
}

// setOverrides puts overrides in force, and converts buckets in memory. durable
// reports whether they are to be saved. If the state of a bucket that converts is
// not known, setOverrides changes nothing, and returns all of them. loaded has them
// after that, or is nil.
func (l *Limiter) setOverrides(
	overrides []Override, loaded []cache.Bucket,
) (durable bool, load []cache.Bucket, err error) {
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	if l.isClosed() {
		return false, nil, ErrClosed
	}
	old := l.limits.Load()
	if tidied := old.tidied(); tidied != old {
		l.limits.Store(tidied)
		l.cache.SetLimits(tidied.inForce())
		old = tidied
	}
	ls, overrides, err := old.with(overrides) // with canonical ids
	if err != nil {
		return false, nil, err
	}
	var bs []cache.Bucket // that convert
	for _, o := range overrides {
		was, is := old.ruleOf(o.Key), ls.ruleOf(o.Key)
		if !is.Converts(was) {
			continue
		}
		durable = durable || l.mayWait(was, is)
		if ls.settings[o.Key.Name].leading > 0 { // ChangeRules finds only buckets in memory
			continue
		}
		b := cache.Bucket{Key: cacheKey(o.Key)}
		if i := slices.IndexFunc(loaded, func(of cache.Bucket) bool { return of.Key == b.Key }); i >= 0 {
			b = loaded[i]
		} else {
			l.cache.Locate(&b)
		}
		bs = append(bs, b)
	}
	slices.SortFunc(bs, func(a, b cache.Bucket) int { return a.Compare(&b) })
	if !cache.LockKnown(bs) {
		return false, bs, nil
	}
	// The buckets convert before their shards are unlocked: later they might leave
	// memory as they were. None enters memory before all are known: it might push
	// another one out.
	l.limits.Store(ls)
	now := l.clock.Now()
	for i := range bs {
		if b := &bs[i]; !b.Resident {
			b.ReadyLocked(b.RuleLocked(), now)
			b.PutLocked(b.TAT, b.RuleLocked(), now, false)
		}
	}
	inForce := ls.inForce()
	for i := range bs {
		bs[i].Shard.Limits = inForce
		bs[i].ChangeRuleLocked(now)
	}
	cache.UnlockBuckets(bs)
	l.cache.ReplaceLimits(inForce)
	for _, o := range overrides {
		if ls.settings[o.Key.Name].leading > 0 {
			l.cache.ChangeRules(uint16(o.Key.Name), o.Key.ID+":")
		} else {
			l.cache.ChangeRule(cacheKey(o.Key))
		}
	}
	l.lines.wake()
	return durable, nil, nil
}

// mayWait reports whether a spend under one of two rules may wait for the disk.
func (l *Limiter) mayWait(a, b *gcra.Rule) bool {
	byDefault := gcra.Level(l.opts.Durability)
	return max(a.Level.Or(byDefault), b.Level.Or(byDefault)) >= gcra.Leased
}

// ruleOf returns the rule of an override with a canonical id.
func (ls *Limits) ruleOf(override Key) *gcra.Rule {
	s := &ls.settings[override.Name]
	if r, ok := ls.overrides[s.index].rules.Get(override.ID); ok {
		return &ls.rules[r]
	}
	return &ls.rules[s.rule]
}

// Declare adds Names, without a limit, while decisions go on: they are for requests
// that bring their own. They stay declared over SetLimits, even those that had been
// declared before. It is what hostlimit does for the Names of other processes; a
// program that has new limits calls SetLimits. The buckets in memory stay as they
// are, even those that a given limit has emptied further than the configured limit
// could.
func (l *Limiter) Declare(names Names) error {
	if !l.isClosed() && l.limits.Load().lends(names) {
		return nil
	}
	return l.declare(func(old *Limits) (*Limits, error) { return old.withNames(names) }, nil, l.cache.ReplaceLimits)
}
