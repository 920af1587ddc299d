package lease

import (
	"slices"
	"time"

	"github.com/stint-go/stint/redislimit/internal/script"
)

// lease is what a machine knows of one bucket whose limit is Leased: the tokens
// that it has, the demand, and the callers that wait. It reads no clock and
// sends nothing, so that the tests can use it in a simulated network. The
// caller holds the lock of the lease's shard.
//
// elapsed is the machine's monotonic time. A grant lives for at most life,
// which begins before its request is sent. So a machine uses each token less
// than life after the server counted it.
type lease struct {
	interval  int64 // T
	tolerance int64 // τ
	most      int64 // tokens that it may have: burst ÷ 8
	life      int64 // of a grant: min(τ ÷ 8, Options.MaxLease)

	grants [2]grant // the older first
	want   int64    // tokens wanted by the last question
	used   int64    // tokens since the last grant was asked for
	asked  int64    // elapsed time of that request

	tat, now int64 // the server's last answer
	sent     int64 // elapsed time before its question

	waiting []*waiter // the first ones are part of the question under way
	asking  int       // callers that are part of it

	demands int   // requests that came one soon after the other
	last    int64 // elapsed time of the last one
}

// grant is tokens that the server has counted as spent.
type grant struct {
	left int64 // not used yet
	all  int64 // tokens granted
	at   int64 // the server's time of the grant
	sent int64 // elapsed time before its request
	over bool  // it has ended early
}

// waiter is a caller that waits for a grant.
type waiter struct {
	cost   int64
	served bool
	script.Answer
	err  error
	done chan struct{}
	gone bool // it waits no longer: its tokens join the lease
}

// question is one bucket's part in a call of the lease script.
type question struct {
	first, need, want int64    // tokens
	back              [2]grant // ended, with unused tokens
	sent              int64    // elapsed time
}

// newLease returns the lease of a bucket that was not used lately.
func newLease(burst, tolerance int64, longest time.Duration, elapsed int64) lease {
	life := min(tolerance/8, int64(longest))
	return lease{interval: tolerance / burst, tolerance: tolerance, most: burst / 8, life: life, asked: elapsed - life}
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

// low reports whether it is time to ask for a grant before a caller waits. That
// is so if at most half of the tokens that the lease last wanted are left. In a
// simulation of 16 callers, 2,000 tokens a second and a server 5 ms away, the slowest
// hundredth of the decisions then takes no time. It takes 4.7 ms if the lease asks
// when it is empty.
func (b *lease) low(elapsed int64) bool {
	live := 0
	for i := range b.grants {
		if b.lives(&b.grants[i], elapsed) {
			live++
		}
	}
	return b.most > 0 && live < len(b.grants) && b.left(elapsed) <= b.want/2
}

// ask returns the next question. How many tokens it wants follows the demand.
// If the last question is less than a quarter of a life old, it wants twice as
// many as that one. Otherwise it wants as many as were used since. If callers
// wait, the lease was too small for them, and ends. Its unused tokens go back
// in the same call, so the server decides with them, too.
//
// A machine that dies withholds what it has. Five quick requests of 1,000 a day leave
// it 4 tokens, and 125 if it always asks for all that it may have. Without the
// doubling, a busy bucket takes 40 times as many trips.
func (b *lease) ask(elapsed int64) (q question) {
	q.sent = elapsed
	for _, w := range b.waiting {
		q.need += w.cost
	}
	b.asking, q.need = len(b.waiting), min(q.need, b.tolerance/b.interval)
	if b.asking > 0 {
		q.first = b.waiting[0].cost
	}
	q.back = b.end(elapsed, b.asking > 0)
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

// end removes the grants that have ended from the lease, or all grants if all
// is true. It returns the removed grants that have unused tokens.
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

// receive applies an answer. It serves the callers of the question from the
// grant, however late the answer comes, because the server decided on them. The
// rest of the grant joins the lease. receive returns the callers that are
// decided. The others go on waiting.
func (b *lease) receive(q *question, a *script.LeaseAnswer, elapsed int64) (decided []*waiter) {
	k := a.Granted / b.interval
	g := grant{left: k, all: k, at: a.Now, sent: q.sent}
	b.tat, b.now, b.sent = a.TAT, a.Now, q.sent
	if a.Hold > a.Now {
		b.grants[0].over, b.grants[1].over = true, true
	}
	callers, asked := b.waiting, b.asking
	for i, w := range callers {
		if w.served = i < asked && w.cost <= g.left && !w.gone; w.served {
			g.left -= w.cost
			b.used += w.cost
		}
	}
	if b.grants[0].left > 0 {
		b.grants[1] = g
	} else {
		b.grants[0] = g
	}
	b.waiting, b.asking = nil, 0
	for i, w := range callers {
		if w.gone {
			continue
		}
		w.Now = a.Now
		if i >= asked { // it came after the question
			w.Now += elapsed - q.sent
		}
		w.served = w.served || b.take(elapsed, w.cost)
		if w.Wait = 0; !w.served {
			w.Wait = max(b.short(w.Now, elapsed, w.cost), a.Hold-w.Now)
		}
		if w.served || w.Wait > 0 {
			decided = append(decided, w)
		} else {
			b.waiting = append(b.waiting, w)
		}
	}
	for _, w := range decided {
		w.TAT, w.Hold = b.seenTAT(elapsed), a.Hold
	}
	return decided
}

// leave removes a caller that waits no longer. It returns true if the caller is
// part of the question under way: then the server may grant its tokens, which
// join the lease.
func (b *lease) leave(w *waiter) (asked bool) {
	i := slices.Index(b.waiting, w)
	if w.gone = true; i >= 0 && i < b.asking {
		return true
	}
	if i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	}
	return false
}

// minDemands is the number of requests, one soon after the other, from which on a
// lease costs the server less than exact decisions, which share their calls. If 64
// callers ask for 10,000 ids in turn, 20,200 decisions a second are made with it, and
// 13,900 if the first request makes a lease (BenchmarkCold).
const minDemands = 3

// demanded notes a request, and reports whether a lease is worth its calls.
func (b *lease) demanded(elapsed int64) bool {
	if elapsed-b.last > b.life/4 {
		b.demands = 0
	}
	b.last = elapsed
	b.demands = min(b.demands+1, minDemands)
	return b.demands == minDemands
}

// restore returns the grants of a question to the lease. The script must not have
// taken them back.
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
// nothing was spent since the last answer. It is 0 or less if they have the
// cost.
func (b *lease) short(now, elapsed, cost int64) int64 {
	return max(b.tat-now, 0) - (b.tolerance - (cost-b.left(elapsed))*b.interval)
}

// seenTAT returns the TAT of the server's last answer, as if the lease's tokens
// were back in the bucket.
func (b *lease) seenTAT(elapsed int64) int64 {
	return max(0, b.tat-b.left(elapsed)*b.interval)
}

// useful reports whether a grant that ends has unused tokens that time has not
// brought back.
func (b *lease) useful(g *grant, elapsed int64) bool {
	return g.left > 0 && (elapsed-g.sent)/b.interval < g.all
}

// args returns what the script gets for a bucket. A TAT of an earlier generation is
// cut down to the tolerance. Without a question for tokens, the script only takes
// tokens back.
func (q *question) args(interval, tolerance int64) (args [12]int64) {
	if q.want > 0 || q.need > 0 {
		args = [12]int64{interval, tolerance, tolerance, q.first * interval, q.need * interval, q.want * interval}
	}
	for i, g := range q.back {
		args[6+3*i], args[7+3*i], args[8+3*i] = g.left*interval, g.all*interval, g.at
	}
	return args
}
