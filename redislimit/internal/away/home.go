package away

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Config are the settings of a Node.
type Config struct {
	Server  Server
	Learn   func() error                  // asks what the server is
	Nodes   int                           // number of machines; 0 if no limit has a share
	Shares  func(name stint.Name) bool    // the limit has a share while the server is away
	Decides bool                          // some limits are decided without the server
	Level   stint.Durability              // of limits that name none
	Local   string                        // path of the file; "": memory
	Options stint.Options                 // of the local Limiter
	Timeout time.Duration                 // of a call
	Now     func() time.Time              // nil: the time of day
	Elapsed func() int64                  // since some instant, unlike Now never set back or ahead
	Prefix  string                        // of the keys
	Name    func(stint.Key) string        // the key of a bucket at the server
	Label   func(stint.Key) string        // a bucket, as errors have it
	Limit   func(stint.Key) stint.Limit   // the limit in force
	Loaded  func() *script.Since          // when the limits in force were loaded
	Begin   func(f func()) bool           // starts a goroutine, unless closed
	Closing chan struct{}                 // closed when the probes must end
	Tell    func(err error, at time.Time) // an outage began because of err, or ended: nil
	Note    func(error)                   // what is wrong now
}

// Server is what this package uses of a script.Server.
type Server interface {
	Time() time.Time
	IsCluster() bool
	Shards() (*[16384]string, error)
	Probe(key string) error
	Charge(trips []*script.Trip, patience time.Duration)
}

// Node decides for this machine while the server is away. Its home has two
// buckets for each key. The seen bucket is the server's bucket as this machine
// last saw it. The own bucket starts from the seen one, and this machine spends
// from it while it decides by itself. The debt is the time by which the own TAT is
// later than the seen one. The server does not know it yet. Until this machine
// decides by itself, the own bucket is full, and takes no space.
//
// A share has the burst ÷ n and n times the interval. If n divides the burst,
// its tolerance is that of the limit, and a TAT means the same fraction of
// both.
type Node struct {
	Config
	Local *stint.Limiter   // the home; nil if no limit has a share
	level stint.Durability // of all buckets; 0: as their limits say

	// mu is read-locked by decisions and replies. It is locked when the server goes
	// away or comes back, and while debts move.
	mu      sync.RWMutex
	adopted map[stint.Name]bool  // whose debts are for this number of machines; guarded by mu
	fewest  map[stint.Name]int64 // machines for which debts were made, if fewer than now; guarded by mu

	allNodes int64 // machines for which the debts of Names without a record were made; 0: as many as now

	cutMu sync.Mutex // one seen bucket at a time is cut down

	holdsMu   sync.Mutex
	holds     map[stint.Key]int64 // ends, by the server's time, of holds in Local
	holdOrder sync.Mutex          // one hold at a time

	Whole  *Outage                        // of a single server, and of a cluster until its shards are known
	shards atomic.Pointer[[16384]*Outage] // of a cluster, by slot; nil until they are known

	under atomic.Int32 // outages under way
	gone  atomic.Int64 // nanoseconds of those that have ended

	Aways   atomic.Int64 // outages
	Shared  atomic.Int64 // decisions of this machine
	Charged atomic.Int64 // debts that ended
}

// ownBit is set in the Name of an own bucket. The seen bucket's Name is the
// same without it.
const ownBit stint.Name = 0x8000

// OwnKey returns the key of a bucket's own bucket.
func OwnKey(key stint.Key) stint.Key { return stint.Key{Name: key.Name | ownBit, ID: key.ID} }

// Open returns a Node for limits with the names.
func Open(c Config, names stint.Names) (*Node, error) {
	n := &Node{Config: c, holds: make(map[stint.Key]int64), adopted: make(map[stint.Name]bool),
		fewest: make(map[stint.Name]int64)}
	n.Whole = &Outage{node: n}
	if c.Nodes == 0 {
		return n, nil
	}
	own, err := n.names(names)
	if err != nil {
		return nil, err
	}
	limits, err := stint.NewLimits(own)
	if err != nil {
		return nil, fmt.Errorf("redislimit: names while the server is away: %w", err)
	}
	local := c.Options
	local.Now, local.Durability = c.Now, stint.Flushed
	local.CommitTimeout = cmp.Or(local.CommitTimeout, c.Timeout)
	if c.Local == "" {
		n.level = stint.Memory
		n.Local, err = stint.New(newDebtStore(cmp.Or(local.MaxResident, 1<<20)), limits, &local)
	} else {
		n.Local, err = stint.Open(c.Local, limits, &local)
	}
	if err != nil {
		return nil, fmt.Errorf("redislimit: Options.Local: %w", err)
	}
	if err := n.adoptEarlier(own, names); err != nil {
		n.Local.Close()
		return nil, fmt.Errorf("redislimit: Options.Local: %w", err)
	}
	for held := range n.Local.Held() {
		n.holds[held.Key] = -1 // its end by the server's time is not known
	}
	return n, nil
}

// names returns the Names of the home.
func (n *Node) names(names stint.Names) (stint.Names, error) {
	own := stint.Names{nodesName: nodesSpec(stint.Shared)}
	for name, spec := range names {
		if !n.Shares(name) {
			continue
		}
		if name >= ownBit {
			return nil, fmt.Errorf("redislimit: limit %s is number %d, want a number under %d for AwayShare", spec.Label, name,
				ownBit)
		}
		var id stint.IDFormat
		if spec.ID == stint.Shared {
			id = stint.Shared
		}
		own[name] = stint.NameSpec{Label: spec.Label, ID: id, Limit: stint.Unlimited}
		own[name|ownBit] = stint.NameSpec{Label: spec.Label + ".away", ID: id, Limit: stint.Unlimited}
	}
	return own, nil
}

// Declare adds names that new limits have, adopts the debts on them, and calls
// inForce, which puts these limits in force. After an error it has not called
// inForce. If a Name is new to this process, decisions wait, so that its debts are
// charged with the new limits. SettleEarlier then charges them.
func (n *Node) Declare(names stint.Names, inForce func()) error {
	n.mu.RLock()
	fresh := n.fresh(names)
	n.mu.RUnlock()
	if len(fresh) == 0 {
		inForce()
		return nil
	}
	own, err := n.names(names)
	if err != nil {
		return err
	}
	if err := n.Local.Declare(own); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.adopt(n.fresh(names)); err != nil {
		return fmt.Errorf("redislimit: Options.Local: %w", err)
	}
	inForce()
	return nil
}

// Close saves the buckets.
func (n *Node) Close() error {
	if n.Local == nil {
		return nil
	}
	return n.Local.Close()
}

// wide returns the request that raises or reads a bucket. Its limit only bounds
// how far the TAT may be ahead.
func (n *Node) wide(key stint.Key, tolerance int64) stint.Request {
	return stint.Request{Key: key, Limit: stint.Limit{Burst: 1, Count: 1, Period: time.Duration(tolerance),
		Durability: cmp.Or(n.level, stint.Flushed)}}
}

// durable returns a limit with the durability that its own bucket has.
func (n *Node) durable(limit stint.Limit) stint.Limit {
	if limit.Count > 0 {
		limit.Durability = cmp.Or(n.level, limit.Durability, n.Level)
	}
	return limit
}

// now returns the present by the clock of Local.
func (n *Node) now() int64 { return script.Instant(n.Local.Now()) }

// TAT returns the TAT of a bucket of the home.
func (n *Node) TAT(key stint.Key) (int64, error) {
	full, err := n.Local.Raise(n.wide(key, script.MaxTolerance), time.Time{})
	return script.Instant(full), err
}

// cutTAT returns the TAT of a seen bucket. If it is ahead by more than most, it was
// seen under other limits, and cutTAT cuts it down to that, as the server does.
func (n *Node) cutTAT(key stint.Key, most int64) (int64, error) {
	seen, err := n.TAT(key)
	if err != nil || seen <= n.now()+most {
		return seen, err
	}
	n.cutMu.Lock()
	defer n.cutMu.Unlock()
	seen, err = n.TAT(key)
	if to := n.now() + most; err == nil && seen > to {
		return to, n.setTAT(key, seen, to)
	}
	return seen, err
}

// debt is what this machine has spent on a key and the server does not know
// yet: the TATs of the own and the seen bucket.
type debt struct{ own, seen int64 }

// at returns the part of the debt that time has not brought back, in
// nanoseconds of the own bucket.
func (d debt) at(now int64) int64 { return max(0, d.own-max(now, d.seen)) }

// debt returns what this machine owes on a key.
func (n *Node) debt(key stint.Key) (d debt, err error) {
	if d.own, err = n.TAT(OwnKey(key)); err == nil && d.own > n.now() {
		d.seen, err = n.TAT(key)
	}
	return d, err
}

// setDebt brings an own bucket from a TAT, in one step, to what the debt and the
// seen TAT make of it. Without a debt it is full. A hold stays.
func (n *Node) setDebt(own stint.Key, from, seen, owes int64) error {
	to := n.now()
	if owes > 0 {
		to = max(to, seen) + owes
	}
	return n.setTAT(own, from, to)
}

// setTAT brings a bucket of the home from a TAT to another one, in one step. A hold
// stays.
func (n *Node) setTAT(key stint.Key, from, to int64) error {
	req := n.wide(key, script.MaxTolerance)
	if to >= from {
		_, err := n.Local.Raise(req, time.Unix(0, to))
		return err
	}
	req.Limit.Burst, req.Limit.Count = script.MaxTolerance, script.MaxTolerance // a token is a nanosecond
	req.Cost, req.Spent = from-to, stint.JustSpent
	_, err := n.Local.Refund(req)
	return err
}

// Shorten brings own buckets that wait for longer than empty ones of the limits in
// force to the state of empty ones. If debts were made for fewer machines, an empty
// bucket is the larger share of that time. If the file cannot be read, buckets stay
// as they are.
func (n *Node) Shorten() {
	for b, err := range n.ownBuckets() {
		key := stint.Key{Name: b.Key.Name &^ ownBit, ID: b.Key.ID}
		empty := n.empty(key)
		if err != nil || empty == 0 || int64(b.ResetAfter) <= empty {
			continue
		}
		n.mu.Lock()
		most := n.longest(key)
		if d, err := n.debt(key); err == nil && d.own > n.now()+most {
			owes := min(d.at(n.now()), most)
			seen := n.now() + min(most-owes, empty)
			if d.seen > seen {
				n.setTAT(key, d.seen, seen)
			}
			n.setDebt(b.Key, d.own, seen, owes)
		}
		n.mu.Unlock()
	}
}

// empty returns the time in which an empty bucket of a key, and of this machine's
// share of it, refills.
func (n *Node) empty(key stint.Key) int64 {
	limit := n.Limit(key)
	return int64(max(limit.Tolerance(), limit.DividedBy(int64(n.Nodes)).Tolerance()))
}

// longest returns how long the debt on a key is at most, unless requests had larger
// limits of their own. The caller holds mu.
func (n *Node) longest(key stint.Key) int64 {
	return scaled(n.empty(key), int64(n.Nodes), cmp.Or(n.fewest[key.Name], int64(n.Nodes)))
}

// ownBuckets yields the own buckets of adopted Names.
func (n *Node) ownBuckets() iter.Seq2[stint.Bucket, error] {
	return func(yield func(stint.Bucket, error) bool) {
		n.mu.RLock()
		names := slices.Collect(maps.Keys(n.adopted))
		n.mu.RUnlock()
		for _, name := range names {
			for b, err := range n.Local.Buckets(name | ownBit) {
				if !yield(b, err) {
					return
				}
			}
		}
	}
}
