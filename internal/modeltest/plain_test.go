package modeltest

import (
	"time"
)

// plainStore is what a plain leaves.
type plainStore struct{ tats, holds map[Key]int64 }

// plain is a System as simple as can be: it charges for turns when it looks at
// a bucket, and saves at Leased and Synced before it replies. A cheat is a
// mistake that it makes.
type plain struct {
	store   *plainStore
	disk    *Session
	limits  Limits
	buckets map[Key]*Bucket
	dirty   map[Key]bool
	places  []*place
	cheat   string
}

func plainEnv(cheat string) Env {
	disk, store := &Disk{}, &plainStore{make(map[Key]int64), make(map[Key]int64)}
	return Env{Disk: disk, Crashes: true, Open: func(ls Limits) System {
		return &plain{store, disk.Open(), ls, make(map[Key]*Bucket), make(map[Key]bool), nil, cheat}
	}}
}

func (p *plain) Crash() { p.disk.Kill() }

func (p *plain) bucket(key Key, now int64) *Bucket {
	b := p.buckets[key]
	if b == nil {
		tat := p.store.tats[key]
		b = &Bucket{TAT: Span{tat, tat}, Hold: p.store.holds[key]}
		p.buckets[key] = b
	}
	if l, on, _ := p.limits.For(key); on {
		b.advance(l, on, now)
		if p.cheat == "a look writes" {
			tat := min(b.TAT.Lo, now+l.Tau())
			b.TAT = Span{tat, tat}
		}
	}
	return b
}

// save makes the change to a bucket durable, or undoes it.
func (p *plain) save(keys []Key, undo func()) Failure {
	must := false
	for _, key := range keys {
		l, _, _ := p.limits.For(key)
		must = must || l.Level >= Leased
		p.dirty[key] = true
	}
	if !must {
		return ""
	}
	err := p.disk.Save(func() error {
		for _, key := range keys {
			p.write(key)
		}
		return nil
	})
	if err != nil {
		undo()
		return NotDurable
	}
	return ""
}

func (p *plain) write(key Key) {
	b := p.buckets[key]
	l, on, _ := p.limits.For(key)
	p.store.tats[key], p.store.holds[key] = b.TAT.Lo, b.Hold
	if on && p.cheat != "a turn is not saved" {
		p.store.tats[key] = b.tail(l, b.TAT.Lo)
	}
}

func (p *plain) flush() Failure {
	err := p.disk.Save(func() error {
		for key := range p.buckets {
			p.write(key)
		}
		return nil
	})
	if err != nil {
		return NotDurable
	}
	return ""
}

// requests decides requests together, or one.
func (p *plain) requests(c Call, op Op) Reply {
	var o [8]outcome
	strict, voted := Decision{Allowed: true, Remaining: unlimited}, false
	for i, q := range c.Reqs {
		l, on, declared := p.limits.For(q.Key)
		if !declared {
			return Reply{Failure: UnknownName}
		}
		one := op
		if q.Mode == CheckOnly && op == Spend {
			one = Check
		} else if q.Mode == CheckOnly {
			q.Cost = 0
		}
		if on && q.Cost > l.Burst && op != Refund {
			return Reply{Failure: CostOverBurst}
		}
		o[i], _ = p.bucket(q.Key, c.Now).Decide(l, on, c.Now, one, q.Cost)
		if q.Mode != SpendOnly && (!voted || stricter(o[i].Decision, strict)) {
			strict, voted = o[i].Decision, true
		}
	}
	var keys []Key
	var was []Span
	for i, q := range c.Reqs {
		b := p.bucket(q.Key, c.Now)
		_, on, _ := p.limits.For(q.Key)
		if on && op != Check && q.Mode != CheckOnly && (strict.Allowed || len(c.Reqs) == 1) &&
			o[i].next != b.TAT.Lo {
			keys, was = append(keys, q.Key), append(was, b.TAT)
			b.set(Span{o[i].next, o[i].next})
			if p.cheat == "a part of a group" && len(keys) == 1 {
				p.write(q.Key)
			}
		}
	}
	f := Failure("")
	if strict.Allowed {
		f = p.save(keys, func() {
			for i, key := range keys {
				if p.buckets[key].TAT = was[i]; p.cheat == "an undo gives more" {
					p.buckets[key].TAT = Span{}
				}
			}
		})
	}
	return Reply{Decisions: []Decision{strict}, Failure: f}
}

func (p *plain) Do(c Call) (r Reply) {
	var key Key
	if len(c.Reqs) > 0 {
		key = c.Reqs[0].Key
	}
	l, on, declared := p.limits.For(key)
	switch c.Op {
	case Spend, Check, Refund:
		return p.requests(c, c.Op)
	case SpendAll:
		return p.requests(c, Spend)
	case RefundAll:
		return p.requests(c, Refund)
	case SpendEach:
		for _, q := range c.Reqs {
			one := p.requests(Call{Now: c.Now, Reqs: []Request{{q.Key, q.Cost,
				q.Mode & CheckOnly}}}, Spend)
			if one.Failure != "" {
				r.Failure, one.Decisions = one.Failure, []Decision{{}}
			}
			r.Decisions = append(r.Decisions, one.Decisions...)
		}
	case Reserve, Hold, Reset, Inspect:
		if !declared {
			return Reply{Failure: UnknownName}
		}
		return p.alone(c, key, l, on)
	case Delay:
		return Reply{Delay: time.Duration(max(0, p.places[c.Place].turn.At-c.Now))}
	case Cancel:
		at := p.places[c.Place]
		b := p.bucket(at.key, c.Now)
		waited := at.turn.At > c.Now
		b.Queue = remove(b.Queue, at.turn)
		if p.cheat == "cancel gives back twice" && !waited ||
			p.cheat == "cancel needs limits" && !on {
			b.set(Span{})
		}
		p.save([]Key{at.key}, func() {})
	case SetLimits:
		p.limits = *c.Limits
	case Buckets:
		for k := range p.store.tats {
			p.bucket(k, c.Now)
		}
		for k := range p.buckets {
			if k.Name == key.Name && declared {
				l, on, _ := p.limits.For(k)
				r.Listed = append(r.Listed, p.alone(Call{Op: Inspect, Now: c.Now,
					Reqs: []Request{{Key: k}}}, k, l, on).Listed...)
			}
		}
	case Flush:
		return Reply{Failure: p.flush()}
	case Close:
		if p.cheat == "close forgets" {
			return Reply{}
		}
		return Reply{Failure: p.flush()}
	}
	return r
}

func remove(turns []*Turn, out *Turn) (left []*Turn) {
	for _, t := range turns {
		if t != out {
			left = append(left, t)
		}
	}
	return left
}

// alone does what concerns one bucket.
func (p *plain) alone(c Call, key Key, l Limit, on bool) Reply {
	b, cost := p.bucket(key, c.Now), c.Reqs[0].Cost
	was := *b
	undo := func() { *b = was }
	switch c.Op {
	case Reserve:
		at := Span{c.Now, c.Now}
		if on {
			var full [2]bool
			if cost > l.Burst {
				return Reply{Failure: CostOverBurst}
			}
			if at, full = b.Reserve(l, c.Now, cost); full[0] {
				return Reply{Failure: QueueFull}
			}
			tat := min(b.TAT.Lo, c.Now+l.Tau())
			if at.Lo == c.Now {
				tat = max(c.Now, tat) + cost*l.T()
				b.set(Span{tat, tat})
			} else {
				b.set(Span{tat, tat})
				b.Queue = append(remove(b.Queue, nil), &Turn{at.Lo, cost})
			}
		}
		t := &Turn{at.Lo, cost}
		if n := len(b.Queue); n > 0 && at.Lo > c.Now {
			t = b.Queue[n-1]
		}
		p.places = append(p.places, &place{key: key, turn: t})
		f := p.save([]Key{key}, undo)
		return Reply{Place: len(p.places) - 1, Delay: time.Duration(at.Lo - c.Now), Failure: f}
	case Hold:
		if b.Hold = c.Until; c.Until <= c.Now {
			b.Hold = 0
		}
		later := int64(0)
		if len(b.Queue) > 0 && p.cheat != "a hold lets turns pass" {
			later = max(0, b.Hold-b.Queue[0].At)
		}
		for _, t := range b.Queue {
			t.At += later
		}
		if f := p.saveHold(key); f != "" {
			b.Hold = was.Hold
			for _, t := range b.Queue {
				t.At -= later
			}
			return Reply{Failure: f}
		}
	case Reset:
		b.Queue, b.Hold = nil, 0
		if b.set(Span{}); p.cheat != "a reset is not saved" {
			return Reply{Failure: p.saveHold(key)}
		}
	case Inspect:
		o, _ := b.Decide(l, on, c.Now, Refund, 0)
		held := b.Hold
		if held <= c.Now {
			held = 0
		}
		return Reply{Listed: []Listed{{key, o.Decision, held}}}
	}
	return Reply{}
}

func (p *plain) saveHold(key Key) Failure {
	if p.disk.Save(func() error { p.write(key); return nil }) != nil {
		return NotDurable
	}
	return ""
}
