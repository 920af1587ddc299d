package modeltest

import (
	"math"
	"math/big"
	"slices"
	"time"
)

// Span is an interval of instants, both ends included.
type Span struct{ Lo, Hi int64 }

// hull returns the smallest interval that contains all of the spans. A span may
// have its ends in either order.
func hull(s Span, more ...Span) Span {
	s = Span{min(s.Lo, s.Hi), max(s.Lo, s.Hi)}
	for _, m := range more {
		s = Span{min(s.Lo, m.Lo, m.Hi), max(s.Hi, m.Lo, m.Hi)}
	}
	return s
}

// Turn is a reservation that waits for its instant.
type Turn struct {
	At, Cost int64
	limit    *Limit // its own, or nil
}

// Bucket is the model of one bucket.
type Bucket struct {
	TAT   Span    // time when it is full, without waiting turns
	Queue []*Turn // waiting turns, in order
	Hold  int64   // end of the hold; 0 means none
	Rate  Limit   // last limit; waiting turns are charged by it
}

// charge returns the TAT after the turns went. A turn gives nothing back: it leaves
// a bucket as it is that no request has cut down to a smaller limit yet.
func (l Limit) charge(tat int64, turns ...*Turn) int64 {
	for _, t := range turns {
		own := l
		if t.limit != nil {
			own = *t.limit
		}
		tat = max(tat, min(max(tat, t.At)+t.Cost*own.T(), t.At+own.Tau()))
	}
	return tat
}

func (l Limit) chargeSpan(s Span, turns ...*Turn) Span {
	return Span{l.charge(s.Lo, turns...), l.charge(s.Hi, turns...)}
}

// advance charges the turns whose instant has come.
func (b *Bucket) advance(now int64) (came bool) {
	for len(b.Queue) > 0 && b.Queue[0].At <= now {
		t := b.Queue[0]
		b.TAT = b.Rate.chargeSpan(b.TAT, t)
		b.Queue, came = b.Queue[1:], true
	}
	return came
}

// leave takes a turn out of the queue, and returns those behind it. These move up,
// each as if it joined now, but never go later than before: at has their instants
// at both ends of the TAT.
func (b *Bucket) leave(gone *Turn, now int64) (behind []*Turn, at []Span) {
	i := slices.Index(b.Queue, gone)
	if i < 0 {
		return nil, nil
	}
	b.Queue = slices.Delete(slices.Clone(b.Queue), i, i+1)
	front := b.Queue[:i]
	behind = b.Queue[i:]
	at = make([]Span, len(behind))
	for end, tat := range []int64{b.TAT.Lo, b.TAT.Hi} {
		tail, earliest := b.Rate.charge(tat, front...), max(now, b.Hold)
		if i > 0 {
			earliest = max(earliest, front[i-1].At)
		}
		for n, t := range behind {
			own := b.Rate
			if t.limit != nil {
				own = *t.limit
			}
			moved := *t
			moved.At = min(t.At, max(earliest, max(earliest, tail)+t.Cost*own.T()-own.Tau()))
			tail, earliest = b.Rate.charge(tail, &moved), moved.At
			if at[n].Hi = moved.At; end == 0 {
				at[n].Lo = moved.At
			}
		}
	}
	return behind, at
}

// convert gives the bucket the TAT with which as many tokens are used under a
// limit as were under another, rounded up to a nanosecond.
func (b *Bucket) convert(was, is Limit, now int64) {
	b.advance(now)
	to := func(tat int64) int64 {
		if tat <= now {
			return tat
		}
		used := new(big.Int).SetInt64(min(tat-now, was.Tau()))
		used.Mul(used, big.NewInt(is.T()))
		used.Add(used, big.NewInt(was.T()-1)).Div(used, big.NewInt(was.T()))
		if !used.IsInt64() {
			return now + is.Tau()
		}
		return now + min(used.Int64(), is.Tau())
	}
	b.TAT = Span{to(b.TAT.Lo), to(b.TAT.Hi)}
}

// cap returns the span without the instants after `end`. A span that is wholly
// after it becomes that instant.
func (s Span) cap(end int64) Span { return Span{min(s.Lo, end), min(s.Hi, end)} }

// tail returns the TAT after all waiting turns.
func (b *Bucket) tail(tat int64) int64 { return b.Rate.charge(tat, b.Queue...) }

func (b *Bucket) tailSpan() Span { return b.Rate.chargeSpan(b.TAT, b.Queue...) }

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
func (b *Bucket) decide(l Limit, tat, now int64, op Op, cost, leave int64) (o outcome) {
	return b.decideSpent(l, tat, now, op, cost, leave, 0)
}

// decideSpent is decide for a refund of what was spent some time ago, and has
// come back since with that time.
func (b *Bucket) decideSpent(l Limit, tat, now int64, op Op, cost, leave, ago int64) (o outcome) {
	capped := min(tat, now+l.clamp())
	shown := b.tail(capped)
	if op == Refund {
		o.Allowed, o.next = true, max(min(capped, now), capped-max(0, cost*l.T()-ago))
		shown = b.tail(o.next)
	} else {
		after := max(now, shown) + cost*l.T()
		wait := max(0, b.last()-now, b.Hold-now)
		if cost+leave > 0 { // a smaller limit may have less than none
			wait = max(wait, after+leave*l.T()-now-l.Tau())
		}
		o.Allowed, o.RetryAfter, o.next = wait == 0, time.Duration(wait), capped
		if o.Allowed {
			shown, o.next = after, after
		}
	}
	ahead := max(now, shown) - now
	o.ResetAfter = time.Duration(ahead)
	o.Remaining = max(0, l.Tau()-ahead) / l.T()
	if cost == 0 {
		o.next = capped
	}
	if op == Check {
		o.next = tat
	}
	return o
}

// decideOff decides for a bucket without a limit, or with one that allows
// nothing.
func (b *Bucket) decideOff(l Limit, now int64, op Op) (o outcome) {
	o.next = b.TAT.Lo
	switch {
	case l.Blocked && op != Refund:
		o.RetryAfter, o.ResetAfter = math.MaxInt64, math.MaxInt64
	case !l.Blocked:
		o.Remaining = math.MaxInt64
		if op != Refund {
			o.RetryAfter = time.Duration(max(0, b.Hold-now))
		}
	}
	o.Allowed = o.RetryAfter == 0
	return o
}

// Decide decides on a request at both ends of the TAT. leave is how many tokens must
// remain.
func (b *Bucket) Decide(l Limit, on bool, now int64, op Op, cost, leave int64) (lo, hi outcome) {
	if !on {
		o := b.decideOff(l, now, op)
		return o, o
	}
	return b.decide(l, b.TAT.Lo, now, op, cost, leave), b.decide(l, b.TAT.Hi, now, op, cost, leave)
}

// free returns how many tokens a SpendUpTo takes at both ends of the TAT.
func (b *Bucket) free(l Limit, now, cost, leave int64) (lo, hi int64) {
	if b.last() > now || b.Hold > now {
		return 0, 0
	}
	free := func(tat int64) int64 { return min(cost, max(0, (l.Tau()-max(0, b.tail(tat)-now))/l.T()-leave)) }
	return free(b.TAT.Lo), free(b.TAT.Hi)
}

// after returns the TATs that fit the answer d to a request.
func (b *Bucket) after(l Limit, now int64, op Op, cost int64, lo, hi outcome, d Decision) Span {
	s := Span{lo.next, hi.next}
	switch {
	case op == Spend && d.Allowed && !hi.Allowed:
		s.Hi = now + l.Tau()
	case op == Spend && !d.Allowed:
		s = b.TAT.cap(now + l.clamp())
	}
	if len(b.Queue) == 0 && (op != Check || !d.Allowed || cost == 0) {
		s = s.narrow(now+int64(d.ResetAfter), now, l.clamp())
	}
	return s
}

// narrow returns the part of s that fits the TAT seen in an answer.
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

// Reserve returns the instants at which a reservation's turn may come, at both
// ends of the TAT. full says whether more tokens would then wait than
// Limit.Queue allows.
func (b *Bucket) Reserve(l Limit, now, cost int64) (at Span, full [2]bool) {
	start := max(now, b.Hold)
	for i, tat := range []int64{b.TAT.Lo, b.TAT.Hi} {
		tail := b.tail(min(tat, now+l.clamp()))
		wait := max(0, max(start, tail)+cost*l.T()-start-l.Tau())
		tokens := cost
		for _, t := range b.Queue {
			tokens += t.Cost
		}
		if start == now { // some of them may be there
			tokens = min(tokens, (wait+l.T()-1)/l.T())
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
