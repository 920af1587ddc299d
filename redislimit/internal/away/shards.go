package away

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Of returns the outage of the server that has a bucket.
func (n *Node) Of(key stint.Key) *Outage {
	if n.shards.Load() == nil {
		return n.Whole
	}
	return n.OfSlot(script.Slot(n.Name(key)))
}

// OfSlot returns the outage of the server that has a slot.
func (n *Node) OfSlot(slot uint16) *Outage {
	if of := n.shards.Load(); of != nil {
		if o := of[slot]; o != nil {
			return o
		}
	}
	return n.Whole
}

// Outages returns all of them.
func (n *Node) Outages() []*Outage {
	all := []*Outage{n.Whole}
	if of := n.shards.Load(); of != nil {
		var last *Outage
		for _, o := range of {
			if o != last && o != nil && !slices.Contains(all, o) { // mostly a shard has a range of slots
				all = append(all, o)
			}
			last = o
		}
	}
	return all
}

var errUncharged = errors.New("redislimit: its shards are being charged")

// LoadShards asks a cluster which slots each shard has, and returns whether they
// are known. While a shard is away it changes nothing, because a replica that
// takes over belongs to the same shard. If the whole cluster is away, each shard
// is away by itself until it has been charged.
func (n *Node) LoadShards() bool {
	if !n.Decides || !n.Server.IsCluster() {
		return false
	}
	known := n.shards.Load() != nil
	if known && n.Under() {
		return true
	}
	ids, err := n.Server.Shards()
	if err != nil {
		return known
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if known && n.Under() { // a shard went away while the slots were read
		return true
	}
	owes := n.Whole.owes.Load()
	of, all := new([16384]*Outage), make(map[string]*Outage)
	for _, o := range n.Outages() {
		all[o.primary] = o
	}
	for slot, id := range ids {
		if id == "" {
			continue
		}
		o := all[id]
		if o == nil {
			o = &Outage{node: n, primary: id}
			all[id] = o
			if owes {
				o.mayOwe()
			}
			if owes && n.Whole.away.Load() {
				o.mark()
			}
		}
		of[slot] = o
	}
	n.shards.Store(of)
	n.Whole.end()
	for _, o := range n.Outages() {
		if o.away.Load() { // it was marked here
			n.Config.Begin(func() { o.probe(errUncharged) })
		}
	}
	return true
}

// probeKeyOf returns a key in a slot of the outage's server. It is no bucket's
// key. As long as the shards of a cluster are not known, it is in any slot.
func (n *Node) probeKeyOf(o *Outage) string {
	if o == n.Whole && n.Server.IsCluster() {
		return n.Prefix + ":{" + strconv.Itoa(rand.IntN(1<<16)) + "}:probe"
	}
	key := n.Prefix + ":probe"
	for i := 0; n.OfSlot(script.Slot(key)) != o && i < 1<<18; i++ { // a shard may have a single slot
		key = n.Prefix + ":{" + strconv.Itoa(i) + "}:probe"
	}
	return key
}
