package redislimit

import (
	"strconv"
	"sync"
	"sync/atomic"
)

// outage says whether a server is away. A cluster has one for each of its
// shards.
type outage struct {
	away     atomic.Bool
	since    atomic.Int64 // server's time when away began
	timeouts atomic.Int32 // in a row
	spends   atomic.Int64 // decisions that may have moved own buckets
	settled  atomic.Int64 // value of spends when no debt was left
	probing  sync.Mutex   // held by the probe
}

// shards are the outages of a cluster, by the id of each shard's primary. Until
// the shards are known, all slots have the outage of the Limiter.
type shards struct {
	of  atomic.Pointer[[16384]*outage] // by slot
	mu  sync.Mutex                     // guards all
	all map[string]*outage
}

// outageOf returns the outage of the server that has a key.
func (l *Limiter) outageOf(name string) *outage {
	if of := l.shards.of.Load(); of != nil && l.cluster.Load() {
		if o := of[slotOf(name)]; o != nil {
			return o
		}
	}
	return &l.outage
}

// outages returns all of them.
func (l *Limiter) outages() []*outage {
	all := []*outage{&l.outage}
	l.shards.mu.Lock()
	defer l.shards.mu.Unlock()
	for _, o := range l.shards.all {
		all = append(all, o)
	}
	return all
}

// loadShards asks a cluster which slots each shard has. While a shard is away
// it changes nothing, because a replica that takes over belongs to the same
// shard.
func (l *Limiter) loadShards() {
	if !l.cluster.Load() || l.awayNow.Load() > 0 || !l.opts.decidesAway() {
		return
	}
	ctx, cancel := l.context()
	defer cancel()
	reply, err := l.client.Do(ctx, "CLUSTER", "SLOTS")
	ranges, ok := reply.([]any)
	if err != nil || !ok || len(ranges) == 0 {
		return
	}
	l.shards.mu.Lock()
	defer l.shards.mu.Unlock()
	of, all := new([16384]*outage), make(map[string]*outage)
	for _, v := range ranges {
		part, _ := v.([]any)
		if len(part) < 3 {
			return
		}
		from, ok1 := part[0].(int64)
		to, ok2 := part[1].(int64)
		primary, ok3 := part[2].([]any)
		if !ok1 || !ok2 || !ok3 || len(primary) < 2 || from < 0 || to >= int64(len(of)) {
			return
		}
		id, _ := primary[len(primary)-1].(string)
		if len(primary) > 2 {
			id, _ = primary[2].(string)
		}
		o := l.shards.all[id]
		if o == nil {
			o = all[id]
		}
		if o == nil {
			o = new(outage)
		}
		all[id] = o
		for slot := from; slot <= to; slot++ {
			of[slot] = o
		}
	}
	l.shards.all = all
	l.shards.of.Store(of)
}

// probeKeyOf returns a key in a slot of the outage's server. It is no bucket's
// key.
func (l *Limiter) probeKeyOf(o *outage) string {
	key := l.opts.Prefix + ":probe"
	for i := 0; l.outageOf(key) != o && i < 1<<18; i++ { // a shard may have a single slot
		key = l.opts.Prefix + ":{" + strconv.Itoa(i) + "}:probe"
	}
	return key
}
