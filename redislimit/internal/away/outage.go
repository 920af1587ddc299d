package away

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	watch   *Watch
	primary string // id of the shard's primary when the slots were read
	away    atomic.Bool
	since   atomic.Int64          // server's time when away began
	began   atomic.Int64          // elapsed time then
	doubted atomic.Pointer[error] // of a call that had no answer in time, if none has had one since; or nil
	probing sync.Mutex            // held by the probe
}

// Away reports whether no call may be made now.
func (o *Outage) Away() bool { return o.away.Load() }

// Ended notices that the server is away. That is so if it cannot be reached,
// replied that it cannot decide, or broke a connection. If it gave no answer in
// time, it may be slow, or this machine may be, so a probe asks again. If nothing
// decides for a cluster that is away, every call asks, because a replica may have
// taken over.
func (o *Outage) Ended(err error) {
	if o.watch.Server.IsCluster() && !o.watch.Decides {
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
			o.watch.Config.Begin(func() { o.dispel(&cause) })
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
	w := o.watch
	if o.away.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.away.Load() {
		return
	}
	o.since.Store(script.Instant(w.Server.Time()))
	o.began.Store(w.Elapsed())
	w.Outages.Add(1)
	w.under.Add(1)
	o.away.Store(true)
	w.Config.Begin(func() { o.probe(err) })
}

// end lets calls wait for the server again. The caller holds Watch.mu.
func (o *Outage) end() {
	if o.away.Load() {
		o.watch.gone.Add(o.watch.Elapsed() - o.began.Load())
		o.away.Store(false)
		o.watch.under.Add(-1)
		close(o.watch.back)
		o.watch.back = make(chan struct{})
	}
}

// probe asks the server until it can decide, and then ends the time away.
func (o *Outage) probe(cause error) {
	w := o.watch
	o.probing.Lock() // the events of the last time away come first
	defer o.probing.Unlock()
	w.Tell(cause, time.Unix(0, o.since.Load()))
	for pause := time.Duration(0); ; pause = min(max(firstProbe, 2*pause), lastProbe) {
		select {
		case <-w.Closing:
			return
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		err := o.back()
		if w.Note(err); err == nil {
			w.Tell(nil, w.Server.Time())
			return
		}
	}
}

// back ends the time away if the server can decide again.
func (o *Outage) back() error {
	w := o.watch
	if shards, err := o.answers(); shards || err != nil {
		return err
	}
	w.mu.Lock()
	o.end()
	w.mu.Unlock()
	if !w.Under() {
		w.LoadShards()
	}
	return nil
}

// answers returns why the server cannot decide, or nil. If it turns out to be a
// cluster, of which some shards may be away, answers learns its shards and returns
// true.
func (o *Outage) answers() (shards bool, err error) {
	w := o.watch
	if o == w.Whole && w.shards.Load() == nil {
		if err := w.Learn(); script.IsAway(err) {
			return false, err
		}
		if w.LoadShards() {
			return true, nil
		}
	}
	return false, w.Server.Probe(w.probeKeyOf(o))
}
