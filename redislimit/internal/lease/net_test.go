package lease

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/model"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// mutant is a mistake that makes nodes break the law.
type mutant int

const (
	noMutant      mutant = iota
	plainRefund          // unused tokens go back whole
	lifeFromReply        // a lease lives from when its reply came
	returnTwice          // a return is repeated
)

// network is one history of nodes with leases of one bucket, in virtual time.
// Messages are late or lost, and nodes die. It records all tokens that callers
// get.
type network struct {
	rnd     *rand.Rand
	mutant  mutant
	now     int64
	server  model.Lease
	nodes   []netNode
	pending []message
	used    []usage
	spent   int64 // tokens

	interval, burst, life int64
	delay                 int64 // mean delay of a message
	loss                  float64
	timeout               int64
}

type netNode struct {
	lease
	clock    int64 // its monotonic time less the true one
	number   int   // of the question under way, or 0
	question question
}

// message is on its way to the server or to a node, or is the timeout of a
// node's question.
type message struct {
	at       int64
	kind     messageKind
	node     int
	number   int
	question question
	answer   script.LeaseAnswer
}

type messageKind int

const (
	toServer messageKind = iota
	toNode
	timesOut
)

type usage struct{ at, tokens int64 }

func (w *network) exp(mean int64) int64 { return int64(w.rnd.ExpFloat64() * float64(mean)) }

// reset begins another history.
func (w *network) reset(seed uint64, m mutant) {
	rnd := rand.New(rand.NewPCG(seed, 13))
	*w = network{rnd: rnd, mutant: m, pending: w.pending[:0], used: w.used[:0], nodes: w.nodes[:0], now: 1e15}
	w.server.PlainRefund = m == plainRefund
	w.interval = 1 + rnd.Int64N(1000)
	w.burst = 8 + rnd.Int64N([]int64{8, 100, 2000}[rnd.IntN(3)])
	longest := w.burst * w.interval
	if rnd.IntN(2) == 0 {
		longest = 1 + rnd.Int64N(longest/8)
	}
	for range 4 + rnd.IntN(13) {
		w.nodes = append(w.nodes, w.newNode(longest))
	}
	w.life = w.nodes[0].life
	w.delay = []int64{0, w.interval, w.life / 8, w.life}[rnd.IntN(4)]
	w.timeout = 1 + 3*w.delay + rnd.Int64N(w.life+1)
	w.loss = []float64{0, 0.02, 0.2}[rnd.IntN(3)]
	if rnd.IntN(2) == 0 {
		w.server.TAT = w.now + rnd.Int64N(w.burst*w.interval)
	}
}

func (w *network) newNode(longest int64) netNode {
	n := netNode{clock: w.rnd.Int64N(1e15) - w.now}
	n.lease = newLease(w.burst, w.burst*w.interval, time.Duration(longest), w.now+n.clock)
	return n
}

// send puts a message on its way, unless it is lost.
func (w *network) send(m message) {
	if w.rnd.Float64() < w.loss {
		return
	}
	m.at = w.now + w.exp(w.delay)
	w.pending = append(w.pending, m)
	if w.mutant == returnTwice && m.kind == toServer && m.question.need == 0 {
		m.at += w.exp(w.delay)
		m.question.want, m.number = 0, -1
		w.pending = append(w.pending, m)
	}
}

// run advances the time to until, and delivers the messages that are due.
func (w *network) run(until int64) {
	for {
		first := -1
		for i := range w.pending {
			if w.pending[i].at <= until && (first < 0 || w.pending[i].at < w.pending[first].at) {
				first = i
			}
		}
		if first < 0 {
			w.now = max(w.now, until)
			return
		}
		m := w.pending[first]
		last := len(w.pending) - 1
		w.pending[first] = w.pending[last]
		w.pending = w.pending[:last]
		w.now = max(w.now, m.at)
		w.deliver(&m)
	}
}

func (w *network) deliver(m *message) {
	if m.kind == toServer {
		m.answer = w.server.Step(w.now, 0, m.question.args(w.interval, w.burst*w.interval))
		m.kind = toNode
		w.send(*m)
		return
	}
	n := &w.nodes[m.node]
	if n.number != m.number {
		return // the node died, or does not wait any more
	}
	elapsed := w.now + n.clock
	n.number = 0
	if m.kind == timesOut {
		n.waiting = nil
		return
	}
	late := elapsed-n.question.sent >= w.life
	if w.mutant == lifeFromReply {
		n.question.sent, late = elapsed, false
	}
	for _, c := range n.receive(&n.question, &m.answer, elapsed) {
		if !c.served {
			continue
		}
		at := w.now
		if late && c.Now == m.answer.Now { // the server decided, as without a lease
			at = c.Now
		}
		w.use(at, c.cost)
	}
	if len(n.waiting) > 0 {
		w.ask(m.node)
	}
}

func (w *network) use(at, tokens int64) {
	w.used = append(w.used, usage{at, tokens})
	w.spent += tokens
}

func (w *network) ask(i int) {
	n := &w.nodes[i]
	n.question = n.ask(w.now + n.clock)
	n.number = 1 + w.rnd.IntN(1<<30)
	m := message{node: i, number: n.number, question: n.question}
	w.send(m)
	m.kind, m.at = timesOut, w.now+w.timeout
	w.pending = append(w.pending, m)
}

// spend is a caller: it takes from the lease, or waits for a grant.
func (w *network) spend(i int, cost int64) bool {
	n := &w.nodes[i]
	elapsed := w.now + n.clock
	if n.take(elapsed, cost) {
		w.use(w.now, cost)
		if n.number == 0 && n.low(elapsed) {
			w.ask(i)
		}
		return true
	}
	n.waiting = append(n.waiting, &waiter{cost: cost})
	if n.number == 0 {
		w.ask(i)
	}
	return false
}

// hoard asks for as much as the script gives.
func (w *network) hoard(i int) {
	n := &w.nodes[i]
	elapsed := w.now + n.clock
	if n.number == 0 && n.left(elapsed) < n.most && n.low(elapsed) {
		n.want, n.used, n.asked = n.most, n.most, elapsed-n.life
		w.ask(i)
	}
}

// stop gives back a node's leases, unless the node dies. If the node goes on,
// only leases that have ended go back. Otherwise a new node replaces it.
func (w *network) stop(i int, dies, goesOn bool) {
	n := &w.nodes[i]
	q := question{back: n.end(w.now+n.clock, !goesOn)}
	if !dies && q.back != [2]grant{} {
		w.send(message{number: -1, question: q})
	}
	if !goesOn {
		longest := n.life
		*n = w.newNode(longest)
	}
}

// act is one random action of a node.
func (w *network) act(spending bool) {
	i := w.rnd.IntN(len(w.nodes))
	switch k := w.rnd.IntN(100); {
	case k < 2:
		w.stop(i, true, false)
	case k < 6:
		w.stop(i, false, false)
	case k < 12:
		w.stop(i, false, true)
	case spending && k < 30: // all it has
		for n := 0; n < 40 && w.spend(i, max(1, w.nodes[i].left(w.now+w.nodes[i].clock))); n++ {
		}
	case spending || k < 30:
		w.spend(i, 1+w.rnd.Int64N(1+w.burst/[]int64{1, 8, 64}[w.rnd.IntN(3)])*w.rnd.Int64N(2))
	default:
		w.hoard(i)
	}
}

// history runs one history. It returns the highest level of the used tokens, and
// the level that the law allows, in nanoseconds.
func (w *network) history(seed uint64, m mutant) (level, most int64) {
	w.reset(seed, m)
	if w.rnd.IntN(4) == 0 {
		w.idleHoards()
	}
	for range 1 + w.rnd.IntN(3) {
		begin := w.now
		for range 8 + w.rnd.IntN(12) { // they hoard
			w.run(w.now + w.exp(w.life/16))
			w.act(false)
		}
		if w.rnd.IntN(2) == 0 { // until just before the leases end
			w.run(max(w.now, begin+w.life-1))
		}
		for i := range w.nodes { // then they spend
			if left := w.nodes[i].left(w.now + w.nodes[i].clock); left > 0 && w.rnd.IntN(4) > 0 {
				w.spend(i, left)
			}
		}
		for range 10 + w.rnd.IntN(20) {
			w.run(w.now + w.exp(w.life/64))
			w.act(true)
		}
	}
	w.run(w.now + 2*w.timeout)
	return w.level(), w.burst*w.interval + w.life
}

// idleHoards lets all nodes hoard from a full bucket, and wait while the tokens
// come back by time. Then there are two cases. Either all nodes spend the hoards
// that still live, and one node spends the rest. Or that node spends first, the
// hoards go back, and it spends again.
func (w *network) idleHoards() {
	w.server.TAT = 0
	for range 1 + w.rnd.IntN(2) {
		for i := range w.nodes {
			w.hoard(i)
		}
		w.run(w.now + w.exp(2*w.delay))
	}
	w.run(w.now + w.rnd.Int64N(1+w.life*[]int64{1, 4}[w.rnd.IntN(2)]))
	goBack := w.rnd.IntN(2) == 0
	if w.rnd.IntN(2) == 0 {
		w.delay /= 64 // the network is faster now
	}
	spend := func() {
		for range 24 {
			w.spend(0, 1+w.burst/8)
			w.run(w.now + w.exp(w.delay/4))
		}
	}
	if goBack {
		spend()
	}
	for i := range w.nodes {
		if goBack {
			w.stop(i, false, true)
		} else if left := w.nodes[i].left(w.now + w.nodes[i].clock); left > 0 {
			w.spend(i, left)
		}
	}
	w.run(w.now + w.exp(w.delay))
	spend()
}

// level returns the highest level of a bucket that the used tokens fill, and
// that empties at the rate of the limit. The level never exceeds most if and only
// if no stretch Δ has more than most/T + Δ/T used tokens.
func (w *network) level() (highest int64) {
	slices.SortFunc(w.used, func(a, b usage) int { return cmp.Compare(a.at, b.at) })
	level, last := int64(0), int64(0)
	for _, u := range w.used {
		level = max(0, level-(u.at-last)) + u.tokens*w.interval
		last = u.at
		highest = max(highest, level)
	}
	return highest
}

// violations runs histories and returns how many break the law, the first of
// them, and how near the others come.
func violations(histories uint64, m mutant) (broken int64, first uint64, nearest float64, spent int64) {
	var next atomic.Uint64
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			w := new(network)
			for seed := next.Add(1); seed <= histories; seed = next.Add(1) {
				level, most := w.history(seed, m)
				mu.Lock()
				spent += w.spent
				if level > most {
					if broken++; first == 0 || seed < first {
						first = seed
					}
				} else {
					nearest = max(nearest, float64(level)/float64(most))
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return broken, first, nearest, spent
}

// TestLeaseLaw: nodes with leases use at most burst + (Δ + H)/T tokens in any
// stretch Δ, even if messages are late or lost and nodes die. With each mutant,
// some histories break that law.
func TestLeaseLaw(t *testing.T) {
	t.Parallel()
	histories := uint64(20_000)
	if testlength.Long {
		histories = 1_000_000
		if testing.Short() {
			histories = 200_000
		}
	}
	begin := time.Now()
	broken, first, nearest, spent := violations(histories, noMutant)
	t.Logf("%d histories, %d tokens used, %d violations, the nearest at %.4f of the law, in %v", histories, spent, broken,
		nearest, time.Since(begin).Round(time.Millisecond))
	require.Zero(t, broken, "the first is %d", first)
	require.Greater(t, nearest, 0.99)
	for m, name := range map[mutant]string{plainRefund: "plain refund", lifeFromReply: "life from the reply",
		returnTwice: "returns come twice"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken, first, _, _ := violations(5_000, m)
			t.Logf("%d of 5000 histories break the law, the first is %d", broken, first)
			require.Positive(t, broken, fmt.Sprint("mutant ", m))
		})
	}
}
