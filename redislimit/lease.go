package redislimit

import "time"

// lease is what a node knows of one bucket whose limit is Leased: the tokens in
// its hand, the demand, and the callers that wait. It reads no clock and sends
// nothing, so that the simulated network has the same one. Whoever calls it
// holds the lock of its shard.
//
// elapsed is the node's monotonic time. A grant lives for at most life from
// before its request was sent. So of the tokens that a node uses in any stretch,
// the server counted each at most that long before.
type lease struct {
	interval  int64 // T
	tolerance int64 // τ
	most      int64 // tokens that it may have: burst ÷ 8
	life      int64 // of a grant: min(τ ÷ 8, Options.MaxLease)

	grants [2]grant // the older first
	want   int64    // tokens of the next grant
	used   int64    // tokens since the last grant was asked for
	asked  int64    // elapsed time when it was
	empty  bool     // the last grant that no caller waited for brought nothing

	tat, now int64 // the server's last answer
	sent     int64 // elapsed time before its question

	waiting []*waiter // the first ones are part of the question under way
}

// grant is tokens that the server has counted as spent.
type grant struct {
	left int64 // not used yet
	all  int64 // that were granted
	at   int64 // the server's time then
	sent int64 // elapsed time before its request
	over bool  // it has ended early
}

// waiter is a caller that waits for a grant.
type waiter struct {
	request request
	cost    int64
	served  bool
	now     int64 // the server's time of the decision
	err     error
	done    chan struct{}
}

// question is one bucket's part in a call of the lease script.
type question struct {
	first, need, want int64    // tokens
	callers           int      // those that need them
	back              [2]grant // ended, with what is left of them
	sent              int64    // elapsed time
}

// answer is the script's.
type answer struct {
	now     int64 // the server's time
	granted int64 // nanoseconds
	tat     int64
	wait    int64
	hold    int64
}

// newLease returns the lease of a bucket that was not used lately.
func newLease(burst, interval, tolerance int64, longest time.Duration, elapsed int64) lease {
	life := min(tolerance/8, int64(longest))
	return lease{interval: interval, tolerance: tolerance, most: burst / 8, life: life, asked: elapsed - life}
}

func (b *lease) lives(g *grant, elapsed int64) bool {
	return g.left > 0 && !g.over && elapsed-g.sent < b.life
}

// left returns the tokens that may be used now.
func (b *lease) left(elapsed int64) (n int64) {
	for i := range b.grants {
		if b.lives(&b.grants[i], elapsed) {
			n += b.grants[i].left
		}
	}
	return n
}

// take uses tokens of the lease. If it has too few, it returns false and
// changes nothing.
func (b *lease) take(elapsed, cost int64) bool {
	if b.left(elapsed) < cost {
		return false
	}
	b.used += cost
	for i := range b.grants {
		if g := &b.grants[i]; b.lives(g, elapsed) {
			n := min(cost, g.left)
			g.left -= n
			cost -= n
		}
	}
	return true
}

// low reports whether it is time to ask for a grant before a caller waits: half
// of the tokens are spent, or half of the time.
func (b *lease) low(elapsed int64) bool {
	if b.most < 1 || b.empty && elapsed-b.asked < b.life/4 {
		return false
	}
	live, old := 0, false
	for i := range b.grants {
		if g := &b.grants[i]; b.lives(g, elapsed) {
			live, old = live+1, elapsed-g.sent > b.life/2
		}
	}
	return live == 0 || live == 1 && (old || b.left(elapsed) <= b.want/2)
}

// ask returns the next question. What is wanted follows the demand. If the last
// grant was asked for less than a quarter of a life ago, it doubles. Otherwise it
// is what was used since then. If callers wait, the lease was too small for them,
// and ends. What is left of it goes back in the same call, so the server decides
// on all there is.
func (b *lease) ask(elapsed int64) (q question) {
	q.sent = elapsed
	for i, w := range b.waiting {
		if i > 0 && q.need+w.cost > b.most {
			break
		}
		q.need += w.cost
		q.callers++
	}
	if q.callers > 0 {
		q.first = b.waiting[0].cost
	}
	q.back = b.end(elapsed, q.callers > 0)
	if elapsed-b.asked < b.life/4 {
		b.want *= 2
	} else {
		b.want = b.used
	}
	b.want = min(max(b.want, 1), b.most)
	b.asked, b.used = elapsed, 0
	q.want = min(b.want, b.most-b.left(elapsed))
	return q
}

// end takes the grants that have ended out of the lease, or all of them. It
// returns those that have tokens to give back.
func (b *lease) end(elapsed int64, all bool) (back [2]grant) {
	kept := [2]grant{}
	n := 0
	for i, g := range b.grants {
		switch {
		case g.left == 0:
		case !all && b.lives(&g, elapsed):
			kept[n] = g
			n++
		default:
			back[i] = g
		}
	}
	b.grants = kept
	return back
}

// receive takes an answer in. Callers of the question are served from the grant,
// however late it comes, because the server decided on them. What is left is the
// lease. It returns the callers that are decided; the others wait on.
func (b *lease) receive(q *question, a *answer, elapsed int64) (decided []*waiter) {
	k := a.granted / b.interval
	g := grant{left: k, all: k, at: a.now, sent: q.sent}
	b.tat, b.now, b.sent = a.tat, a.now, q.sent
	b.empty = q.callers == 0 && k == 0
	if a.hold > a.now {
		b.grants[0].over, b.grants[1].over = true, true
	}
	callers := b.waiting
	for i, w := range callers {
		if w.served = i < q.callers && w.cost <= g.left; w.served {
			g.left -= w.cost
			b.used += w.cost
		}
	}
	if b.grants[0].left > 0 {
		b.grants[1] = g
	} else {
		b.grants[0] = g
	}
	b.waiting = nil
	for i, w := range callers {
		w.now = a.now
		if i >= q.callers { // it came later
			w.now += elapsed - q.sent
		}
		w.served = w.served || b.take(elapsed, w.cost)
		if w.request.wait = 0; !w.served {
			w.request.wait = max(b.short(w.now, elapsed, w.cost), a.hold-w.now)
		}
		if w.served || w.request.wait > 0 {
			decided = append(decided, w)
		} else {
			b.waiting = append(b.waiting, w)
		}
	}
	for _, w := range decided {
		w.request.tat, w.request.hold = b.seenTAT(elapsed), a.hold
	}
	return decided
}

// restore puts the grants of a question that was not asked back into the lease.
func (b *lease) restore(q *question) {
	for _, g := range q.back {
		switch {
		case g.left == 0:
		case b.grants[0].left == 0:
			b.grants[0] = g
		default:
			b.grants[1] = g
		}
	}
}

// short returns how long the bucket and the lease together lack the cost, if
// nothing was spent since the last answer, or 0 or less.
func (b *lease) short(now, elapsed, cost int64) int64 {
	return max(b.tat-now, 0) - (b.tolerance - (cost-b.left(elapsed))*b.interval)
}

// seenTAT returns the bucket's TAT as the server last said it, if the tokens in
// hand were in the bucket.
func (b *lease) seenTAT(elapsed int64) int64 {
	return max(0, b.tat-b.left(elapsed)*b.interval)
}

// useful reports whether a grant that ends has tokens that have not come back by
// themselves.
func (b *lease) useful(g *grant, elapsed int64) bool {
	return g.left > 0 && (elapsed-g.sent)/b.interval < g.all
}
