package away

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// The pauses between probes.
const (
	firstProbe = 100 * time.Millisecond
	lastProbe  = time.Second
)

// Outage says whether a server is away, and is the Gate of the calls to it. A
// cluster has one for each of its shards.
type Outage struct {
	node    *Node
	primary string // id of the shard's primary when the slots were read
	away    atomic.Bool
	since   atomic.Int64          // server's time when away began
	began   atomic.Int64          // elapsed time then
	doubted atomic.Pointer[error] // of a call that had no answer in time, if none has had one since; or nil
	probing sync.Mutex            // held by the probe

	settling sync.Mutex  // held while debts are charged
	owes     atomic.Bool // there may be debts

	// What follows is guarded by Node.mu. Decisions, which only read-lock that, add to
	// recent under recentMu.
	recentMu sync.Mutex
	recent   map[stint.Key]struct{} // own buckets that decisions have moved since the last pass over them
	unread   bool                   // there may be debts of an earlier process, which are not in recent
	charging context.Context        // decisions wait until it ends; nil while no last debts are charged
}

// maxRecent is the most own buckets that an outage remembers between two passes
// over the debts. If there are more, the next pass reads all debts.
const maxRecent = 1 << 16

// spent notes decisions on own buckets. The caller holds Node.mu for reading.
func (o *Outage) spent(reqs []stint.Request) {
	o.owes.Store(true)
	o.recentMu.Lock()
	defer o.recentMu.Unlock()
	for i := range reqs {
		if o.recent == nil {
			o.recent = make(map[stint.Key]struct{})
		}
		if len(o.recent) <= maxRecent {
			o.recent[reqs[i].Key] = struct{}{}
		}
	}
}

// Away reports whether no call may be made now.
func (o *Outage) Away() bool { return o.away.Load() }

// Ended notices that the server is away. That is so if it cannot be reached,
// replied that it cannot decide, or broke a connection. If it gave no answer in
// time, it may be slow, or this machine may be, so a probe asks again. If all
// limits of a cluster are closed while it is away, every call asks, because a
// replica may have taken its place.
func (o *Outage) Ended(err error) {
	if o.node.Server.IsCluster() && !o.node.Decides {
		return
	}
	var replied script.ServerError
	isReply := errors.As(err, &replied)
	switch {
	case strings.HasPrefix(string(replied), "TRYAGAIN"): // a slot moves
	case errors.Is(err, script.ErrAway):
		o.Begin(err)
	case errors.Is(err, script.ErrNoAnswer) && errors.Is(err, context.DeadlineExceeded):
		cause := err // escapes only here
		if o.doubted.CompareAndSwap(nil, &cause) {
			o.node.Config.Begin(func() { o.dispel(&cause) })
		}
	case errors.Is(err, script.ErrNoAnswer) && !isReply:
		o.Begin(err)
	default:
		if o.doubted.Load() != nil {
			o.doubted.Store(nil)
		}
	}
}

// dispel probes the server. It is away if neither the probe nor a call since the
// doubt began has an answer.
func (o *Outage) dispel(doubt *error) {
	_, err := o.answers()
	if script.IsAway(err) && o.doubted.Load() == doubt {
		o.Begin(*doubt)
	}
	o.doubted.CompareAndSwap(doubt, nil)
}

// Begin begins the time away, unless it has begun.
func (o *Outage) Begin(err error) {
	n := o.node
	if o.away.Load() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !o.away.Load() {
		o.mark()
		n.Config.Begin(func() { o.probe(err) })
	}
}

// mark makes the server count as away. The caller holds Node.mu, and then starts
// the probe.
func (o *Outage) mark() {
	o.since.Store(script.Instant(o.node.Server.Time()))
	o.began.Store(o.node.Elapsed())
	o.away.Store(true)
	o.node.under.Add(1)
	o.node.Aways.Add(1)
}

// end lets calls wait for the server again. The caller holds Node.mu.
func (o *Outage) end() {
	if o.away.Load() {
		o.node.gone.Add(o.node.Elapsed() - o.began.Load())
		o.node.under.Add(-1)
		o.away.Store(false)
	}
}

// probe asks the server until it can decide. Then it charges the debts of this
// machine, and ends the time away.
func (o *Outage) probe(cause error) {
	n := o.node
	o.probing.Lock() // the events of the last time away come first
	defer o.probing.Unlock()
	n.Tell(cause, time.Unix(0, o.since.Load()))
	for pause := time.Duration(0); ; pause = min(max(firstProbe, 2*pause), lastProbe) {
		select {
		case <-n.Closing:
			return
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		err := o.back()
		if n.Note(err); err == nil {
			n.Tell(nil, n.Server.Time())
			return
		}
	}
}

// back ends the time away if the server can decide again.
func (o *Outage) back() error {
	n := o.node
	if shards, err := o.answers(); shards || err != nil {
		return err
	}
	if err := o.settle(n.patience(), o.end); err != nil {
		return err
	}
	if n.under.Load() == 0 {
		n.LoadShards()
	}
	return nil
}

// answers returns why the server cannot decide, or nil. If it turns out to be a
// cluster, of which some shards may be away, answers learns its shards and returns
// true.
func (o *Outage) answers() (shards bool, err error) {
	n := o.node
	if o == n.Whole && n.shards.Load() == nil {
		if err := n.Learn(); script.IsAway(err) {
			return false, err
		}
		if n.LoadShards() {
			return true, nil
		}
	}
	return false, n.Server.Probe(n.probeKeyOf(o))
}

// patience is how long a charge may take, which no caller waits for. A charge
// whose answer comes too late is made again.
func (n *Node) patience() time.Duration { return max(n.Timeout, min(10*n.Timeout, 5*time.Second)) }

// Under reports whether any outage is under way.
func (n *Node) Under() bool { return n.under.Load() > 0 }

// TimeAway returns when the server went away, or the first of the shards that are away,
// and 0 if none is. It also returns the time of all outages, until now.
func (n *Node) TimeAway() (since int64, total time.Duration) {
	now := n.Elapsed()
	total = time.Duration(n.gone.Load())
	for _, o := range n.Outages() {
		if !o.away.Load() {
			continue
		}
		total += time.Duration(max(0, now-o.began.Load()))
		if at := o.since.Load(); since == 0 || at < since {
			since = at
		}
	}
	return since, total
}
