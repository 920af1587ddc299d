package lease

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/model"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// fleet is many machines with leases of one bucket, in virtual time. Their demand
// is uneven: a tenth of them has nine tenths of it. After half of the time another
// tenth has it.
type fleet struct {
	rnd    *rand.Rand
	now    int64
	server model.Lease
	nodes  []lease
	asked  []question // under way, of each node
	busy   []bool
	events fleetEvents

	interval, burst, trip int64
	moved                 int64 // the instant at which the load moves
	trips, used, demand   int64
	served                int64 // instant from which on the moved load has its tokens
	wanted, got           int64 // of the loaded machines, after the move
	recent, granted       int64 // of the loaded machines, in this window
	fair                  int64 // percentage of their demand that they get if all get the same
	window                int64
}

type fleetEvent struct {
	at     int64
	node   int
	answer *script.LeaseAnswer // nil: a request arrives
}

type fleetEvents []fleetEvent

func (e fleetEvents) Len() int           { return len(e) }
func (e fleetEvents) Less(i, j int) bool { return e[i].at < e[j].at }
func (e fleetEvents) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *fleetEvents) Push(x any)        { *e = append(*e, x.(fleetEvent)) }
func (e *fleetEvents) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// loaded reports whether a machine has much of the demand now.
func (f *fleet) loaded(node int) bool {
	tenth := max(1, len(f.nodes)/10)
	if f.now >= f.moved {
		return node >= len(f.nodes)-tenth
	}
	return node < tenth
}

// next schedules a machine's next request. All machines together ask for share
// times the rate of the limit.
func (f *fleet) next(node int, share float64) {
	tenth := max(1, len(f.nodes)/10)
	rest := max(1, len(f.nodes)-tenth)
	mean := float64(f.interval) / share
	if f.loaded(node) {
		mean *= float64(tenth) / 0.9
	} else {
		mean *= float64(rest) / 0.1
	}
	heap.Push(&f.events, fleetEvent{at: f.now + 1 + int64(f.rnd.ExpFloat64()*mean), node: node})
}

func (f *fleet) ask(node int) {
	b := &f.nodes[node]
	q := b.ask(f.now)
	f.asked[node], f.busy[node] = q, true
	f.trips++
	a := f.server.Step(f.now+f.trip/2, 0, q.args(f.interval, f.burst*f.interval))
	heap.Push(&f.events, fleetEvent{at: f.now + f.trip, node: node, answer: &a})
}

func (f *fleet) count(node int, ok bool) {
	if ok {
		f.used++
	}
	if f.now < f.moved || !f.loaded(node) {
		return
	}
	f.wanted++
	if ok {
		f.got++
	}
	if f.served != 0 {
		return
	}
	f.recent++
	if ok {
		f.granted++
	}
	if f.now-f.window > int64(time.Second)/2 {
		if f.granted*100 >= f.recent*f.fair*95/100 {
			f.served = f.now
		}
		f.recent, f.granted, f.window = 0, 0, f.now
	}
}

// run lets the machines ask for share of the limit, for some time.
func (f *fleet) run(share float64, d time.Duration) {
	begin := f.now
	f.moved = begin + int64(d)/2
	f.window = f.moved
	for i := range f.nodes {
		f.next(i, share)
	}
	for {
		e := heap.Pop(&f.events).(fleetEvent)
		if e.at > begin+int64(d) {
			return
		}
		f.now = e.at
		b := &f.nodes[e.node]
		if e.answer != nil {
			f.busy[e.node] = false
			for _, w := range b.receive(&f.asked[e.node], e.answer, f.now) {
				f.count(e.node, w.served)
			}
			if len(b.waiting) > 0 {
				f.ask(e.node)
			}
			continue
		}
		f.demand++
		f.next(e.node, share)
		b.demanded(f.now)
		switch {
		case b.take(f.now, 1):
			f.count(e.node, true)
			if !f.busy[e.node] && b.low(f.now) {
				f.ask(e.node)
			}
		case b.demands < minDemands && !f.busy[e.node] || int64(len(b.waiting)) >= b.most: // an exact decision
			f.trips++
			base, end := max(f.server.TAT, f.now), f.now+f.burst*f.interval
			if base+f.interval <= end {
				f.server.TAT = base + f.interval
			}
			f.count(e.node, base+f.interval <= end)
		default:
			b.waiting = append(b.waiting, &waiter{cost: 1})
			if !f.busy[e.node] {
				f.ask(e.node)
			}
		}
	}
}

// withheld returns the tokens on leases.
func (f *fleet) withheld() (n int64) {
	for i := range f.nodes {
		n += f.nodes[i].left(f.now)
	}
	return n
}

// page returns docs/redis.md.
func page(t *testing.T) string {
	text, err := os.ReadFile("../../../docs/redis.md")
	require.NoError(t, err)
	return string(text)
}

// thousands returns a number under a million with a comma.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// TestScale prints the table of docs/redis.md, and at full length holds its
// rows: machines with leases of one limit of a million a minute, 1 ms away. The
// bucket is empty at first.
func TestScale(t *testing.T) {
	t.Parallel()
	sizes := []int{10, 100}
	d := 5 * time.Second
	if testlength.Long {
		sizes = append(sizes, 1000, 10_000)
		d = 60 * time.Second
	}
	for _, share := range []float64{0.9, 3} {
		for _, n := range sizes {
			for _, longest := range []time.Duration{time.Minute, time.Second} {
				f := &fleet{rnd: rand.New(rand.NewPCG(uint64(n), 1)), now: 1e18, interval: int64(time.Minute) / 1_000_000,
					burst: 1_000_000, trip: int64(time.Millisecond), nodes: make([]lease, n), asked: make([]question, n),
					busy: make([]bool, n)}
				for i := range f.nodes {
					f.nodes[i] = newLease(f.burst, f.burst*f.interval, longest, f.now)
				}
				f.fair = int64(100 * min(1, 1/share))
				f.server.TAT = f.now + f.burst*f.interval // it is empty
				f.run(share, d)
				could := min(float64(f.demand), d.Seconds()*1e6/60)
				moved := "at once"
				if wait := time.Duration(f.served - f.moved); f.served == 0 {
					moved = "in part"
				} else if wait > 600*time.Millisecond {
					moved = fmt.Sprintf("%.1f s", wait.Seconds())
				}
				withheld := float64(f.withheld()) / float64(f.burst)
				t.Logf("demand %.1f | %6d machines | MaxLease %3v | %6.0f trips/s, %5.1f decisions a trip | %5.1f %% used | "+
					"%4.1f %% withheld | moved load has its tokens %s, %3.0f %% of its part", share, n, longest, float64(f.trips)/d.Seconds(),
					float64(f.demand)/float64(f.trips), 100*float64(f.used)/could, 100*withheld, moved,
					100*float64(f.got)/float64(f.wanted)/min(1, 1/share))
				if testlength.Long && (share < 1 || longest == time.Minute) {
					lease := "1 min"
					if longest == time.Second {
						lease = "1 s"
					}
					require.Contains(t, page(t), fmt.Sprintf("| %.1f | %s | %s | %s | %.1f | %.1f %% | %.1f %% | %s | %.0f %% |", share,
						thousands(n), lease, thousands(int(float64(f.trips)/d.Seconds()+0.5)), float64(f.demand)/float64(f.trips),
						100*float64(f.used)/could, 100*withheld, moved, 100*float64(f.got)/float64(f.wanted)/min(1, 1/share)))
				}
				require.LessOrEqual(t, f.used, f.burst+int64(d)/f.interval+f.nodes[0].life/f.interval)
				require.Greater(t, float64(f.used), 0.5*could)
			}
		}
	}
}
