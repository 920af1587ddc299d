package away

import (
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Of returns the outage of the server that has a bucket.
func (w *Watch) Of(key stint.Key) *Outage {
	if w.shards.Load() == nil {
		return w.Whole
	}
	return w.OfSlot(script.Slot(w.Key(key)))
}

// OfSlot returns the outage of the server that has a slot.
func (w *Watch) OfSlot(slot uint16) *Outage {
	if of := w.shards.Load(); of != nil {
		if o := of[slot]; o != nil {
			return o
		}
	}
	return w.Whole
}

// All returns the outages of all servers.
func (w *Watch) All() []*Outage {
	all := []*Outage{w.Whole}
	if of := w.shards.Load(); of != nil {
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

// LoadShards asks a cluster which slots each shard has, and returns whether they
// are known. While a shard is away it changes nothing, because a replica that
// takes over belongs to the same shard.
func (w *Watch) LoadShards() bool {
	if !w.Decides || !w.Server.IsCluster() {
		return false
	}
	known := w.shards.Load() != nil
	if known && w.Under() {
		return true
	}
	ids, err := w.Server.Shards()
	if err != nil {
		return known
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if known && w.Under() { // a shard went away while the slots were read
		return true
	}
	of, all := new([16384]*Outage), make(map[string]*Outage)
	for _, o := range w.All() {
		all[o.primary] = o
	}
	for slot, id := range ids {
		if id == "" {
			continue
		}
		if all[id] == nil {
			all[id] = &Outage{watch: w, primary: id}
		}
		of[slot] = all[id]
	}
	w.shards.Store(of)
	w.Whole.end()
	return true
}

// probeKeyOf returns a key in a slot of the outage's server. It is no bucket's
// key. As long as the shards of a cluster are not known, it is in any slot.
func (w *Watch) probeKeyOf(o *Outage) string {
	if o == w.Whole && w.Server.IsCluster() {
		return w.Prefix + ":{" + strconv.Itoa(rand.IntN(1<<16)) + "}:probe"
	}
	key := w.Prefix + ":probe"
	for i := 0; w.OfSlot(script.Slot(key)) != o && i < 1<<18; i++ { // a shard may have a single slot
		key = w.Prefix + ":{" + strconv.Itoa(i) + "}:probe"
	}
	return key
}
