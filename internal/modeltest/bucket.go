package modeltest

import (
	"math"
	"time"
)

// Span is an interval of instants, both ends included.
type Span struct{ Lo, Hi int64 }

// hull returns the least interval that has all of the instants in it, which
// spans that are turned around may have too.
func hull(s Span, more ...Span) Span {
	s = Span{min(s.Lo, s.Hi), max(s.Lo, s.Hi)}
	for _, m := range more {
		s = Span{min(s.Lo, m.Lo, m.Hi), max(s.Hi, m.Lo, m.Hi)}
	}
	return s
}

// Turn is a reservation that waits for its instant.
type Turn struct{ At, Cost int64 }

// Bucket is the model of one bucket.
type Bucket struct {
	TAT   Span    // when it is full again, turns that wait left out
	Queue []*Turn // those that wait, in order
	Hold  int64   // nobody passes before; 0: none

	base Span    // the TAT before it was charged for
	due  []*Turn // these, since it was last written
}

// charge returns the TAT after a turn has come.
func (l Limit) charge(tat int64, turns ...*Turn) int64 {
	for _, t := range turns {
		tat = min(max(tat, t.At)+t.Cost*l.T(), t.At+l.Tau())
	}
	return tat
}

func (l Limit) chargeSpan(s Span, turns ...*Turn) Span {
	return Span{l.charge(s.Lo, turns...), l.charge(s.Hi, turns...)}
}

// advance lets the turns come whose instant has.
func (b *Bucket) advance(l Limit, on bool, now int64) (came bool) {
	for len(b.Queue) > 0 && b.Queue[0].At <= now {
		if len(b.due) == 0 {
			b.base = b.TAT
		}
		t := b.Queue[0]
		b.Queue, b.due, came = b.Queue[1:], append(b.due, t), true
		if on {
			b.TAT = l.chargeSpan(b.TAT, t)
		}
	}
	return came
}

// newLimits allows for turns that came under other limits: a System may charge
// for them when it looks at the bucket next.
func (b *Bucket) newLimits(l Limit, on bool) {
	if on && len(b.due) > 0 {
		b.TAT = hull(b.TAT, l.chargeSpan(b.base, b.due...))
	}
}

// set gives the bucket a TAT that the System has written.
func (b *Bucket) set(s Span) { b.TAT, b.due = s, nil }

// tail returns the TAT after all who wait.
func (b *Bucket) tail(l Limit, tat int64) int64 { return l.charge(tat, b.Queue...) }

func (b *Bucket) tailSpan(l Limit) Span { return l.chargeSpan(b.TAT, b.Queue...) }

// last returns the instant of the last turn, or 0.
func (b *Bucket) last() int64 {
	if len(b.Queue) == 0 {
		return 0
	}
	return b.Queue[len(b.Queue)-1].At
}

// outcome is a decision, and the TAT that it leads to.
type outcome struct {
	Decision
	next int64
}

// decide decides on a request as if the TAT were tat.
func (b *Bucket) decide(l Limit, tat, now int64, op Op, cost int64) (o outcome) {
	capped := min(tat, now+l.Tau())
	shown := b.tail(l, capped)
	if op == Refund {
		o.Allowed, o.next = true, max(min(capped, now), capped-cost*l.T())
		shown = b.tail(l, o.next)
	} else {
		after := max(now, shown) + cost*l.T()
		wait := max(0, after-now-l.Tau(), b.last()-now, b.Hold-now)
		o.Allowed, o.RetryAfter, o.next = wait == 0, time.Duration(wait), capped
		if o.Allowed {
			shown, o.next = after, after
		}
	}
	ahead := max(now, shown) - now
	o.ResetAfter = time.Duration(ahead)
	o.Remaining = max(0, l.Tau()-ahead) / l.T()
	if op == Check || cost == 0 {
		o.next = tat
	}
	return o
}

// decideOff decides for a bucket that has no limit.
func (b *Bucket) decideOff(now int64, op Op) (o outcome) {
	o.Remaining, o.next = math.MaxInt64, b.TAT.Lo
	if op != Refund {
		o.RetryAfter = time.Duration(max(0, b.Hold-now))
	}
	o.Allowed = o.RetryAfter == 0
	return o
}

// Decide decides on a request at both ends of the TAT.
func (b *Bucket) Decide(l Limit, on bool, now int64, op Op, cost int64) (lo, hi outcome) {
	if !on {
		o := b.decideOff(now, op)
		return o, o
	}
	return b.decide(l, b.TAT.Lo, now, op, cost), b.decide(l, b.TAT.Hi, now, op, cost)
}

// after returns the TAT after a request that was answered so.
func (b *Bucket) after(l Limit, now int64, op Op, cost int64, lo, hi outcome, d Decision) Span {
	s := Span{lo.next, hi.next}
	switch {
	case op == Check || cost == 0:
		if op != Check { // a System may write the cap, or not
			s.Lo = min(s.Lo, now+l.Tau())
		}
	case op == Spend && d.Allowed && !hi.Allowed:
		s.Hi = now + l.Tau()
	case op == Spend && !d.Allowed:
		s = Span{min(b.TAT.Lo, now+l.Tau()), min(b.TAT.Hi, now+l.Tau())}
		if b.Hold > now || len(b.Queue) > 0 {
			s.Hi = b.TAT.Hi // it may be denied before anything is written
		}
	}
	if len(b.Queue) == 0 && (op != Check || !d.Allowed || cost == 0) {
		s = s.narrow(now+int64(d.ResetAfter), now, l.Tau())
	}
	return s
}

// narrow returns what is left of s when a bucket shows the TAT seen.
func (s Span) narrow(seen, now, tau int64) Span {
	switch {
	case s.Lo == s.Hi:
		return s
	case seen == now:
		return Span{min(s.Lo, now), min(s.Hi, now)}
	case seen < now+tau:
		return Span{seen, seen}
	}
	return Span{max(s.Lo, seen), max(s.Hi, seen)}
}

// Reserve returns the instants at which a reservation's turn may come, at
// both ends of the TAT, and whether more would wait than the limit allows.
func (b *Bucket) Reserve(l Limit, now, cost int64) (at Span, full [2]bool) {
	start := max(now, b.Hold)
	for i, tat := range []int64{b.TAT.Lo, b.TAT.Hi} {
		tail := b.tail(l, min(tat, now+l.Tau()))
		wait := max(0, max(start, tail)+cost*l.T()-start-l.Tau())
		tokens := (wait + l.T() - 1) / l.T()
		if start > now {
			all := cost
			for _, t := range b.Queue {
				all += t.Cost
			}
			tokens = max(tokens, all)
		}
		full[i] = l.Queue > 0 && tokens > l.Queue
		turn := max(start+wait, b.last())
		if i == 0 {
			at.Lo = turn
		}
		at.Hi = turn
	}
	return at, full
}
