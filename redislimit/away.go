package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// The pauses between probes, and the time-outs in a row that mean away.
const (
	firstProbe  = 100 * time.Millisecond
	lastProbe   = time.Second
	maxTimeouts = 3
)

// watch notices that the server is away. That is so if it cannot be reached,
// replied that it cannot decide, broke a connection, or gave several calls in a
// row no answer in time. From then on no call waits for it, until probe finds it back.
// watchShard does that for a cluster.
func (l *Limiter) watch(err error) {
	if !l.cluster.Load() {
		l.watchAt(&l.outage, err)
	}
}

// watchShard notices that the shard of a trip is away. If all limits have
// AwayClosed, every call asks, because a replica may have taken its place.
func (l *Limiter) watchShard(t *trip) {
	if l.cluster.Load() && l.opts.decidesAway() {
		l.watchAt(l.outageOf(t.requests[0].name), t.err)
	}
}

func (l *Limiter) watchAt(o *outage, err error) {
	var replied ServerError
	isReply := errors.As(err, &replied)
	switch {
	case strings.HasPrefix(string(replied), "TRYAGAIN"): // a slot moves
		return
	case errors.Is(err, ErrAway):
	case errors.Is(err, ErrNoAnswer) && errors.Is(err, context.DeadlineExceeded):
		if o.timeouts.Add(1) < maxTimeouts {
			return
		}
	case errors.Is(err, ErrNoAnswer) && !isReply:
	default:
		if o.timeouts.Load() != 0 {
			o.timeouts.Store(0)
		}
		return
	}
	l.beginAway(o, err)
}

// beginAway begins the time away, unless it has begun.
func (l *Limiter) beginAway(o *outage, err error) {
	if o.away.Load() {
		return
	}
	if l.home != nil {
		l.home.mu.Lock()
		defer l.home.mu.Unlock()
	}
	now := instant(l.Now())
	if !o.away.Load() {
		o.since.Store(now)
	}
	if o.away.CompareAndSwap(false, true) {
		l.awayNow.Add(1)
		l.stats.aways.Add(1)
		l.begin(func() { l.probe(o, Event{ServerAway, time.Unix(0, now), err}) })
	}
}

// endAway lets calls wait for the server again.
func (l *Limiter) endAway(o *outage) {
	o.timeouts.Store(0)
	if o.away.Load() {
		l.stats.away.Add(max(0, instant(l.Now())-o.since.Load()))
		l.awayNow.Add(-1)
		o.away.Store(false)
	}
}

// probe asks the server until it can decide. Then it charges the debts of this
// machine, and ends the time away.
func (l *Limiter) probe(o *outage, begin Event) {
	o.probing.Lock() // the events of the last time away come first
	defer o.probing.Unlock()
	l.tell(begin)
	key := l.probeKeyOf(o)
	for pause := time.Duration(0); ; pause = min(max(firstProbe, 2*pause), lastProbe) {
		if pause > 0 {
			timer := time.NewTimer(pause/2 + rand.N(pause/2))
			select {
			case <-timer.C:
			case <-l.closing:
			}
			timer.Stop()
		}
		if l.closed.Load() {
			return
		}
		err := l.probeOnce(key)
		if err == nil {
			err = l.settleDebts(o)
		}
		if err == nil {
			l.loadShards()
			l.note(nil)
			l.tell(Event{Kind: ServerBack, Time: l.Now()})
			return
		}
		l.note(err)
	}
}

// probeScript writes a key, as decisions do, because a server that cannot write
// may still answer other commands.
const probeScript = "return redis.call('SET', KEYS[1], '', 'PX', '1')"

// probeOnce returns why the server is still away, or nil if it is back. If the
// server replies with an error that does not begin as one of awayReplies, it is
// back, and calls get the same error.
func (l *Limiter) probeOnce(key string) error {
	ctx, cancel := l.context()
	defer cancel()
	_, err := l.client.Eval(ctx, "EVAL", probeScript, []string{key}, nil)
	if err == nil {
		return nil
	}
	if err = l.explain(err); isAway(err) {
		return err
	}
	return nil
}

// awaySince returns when the server went away, or the first of the shards that
// are away. It returns 0 if none is away.
func (l *Limiter) awaySince() (since int64) {
	for _, o := range l.outages() {
		if at := o.since.Load(); o.away.Load() && (since == 0 || at < since) {
			since = at
		}
	}
	return since
}

// awayHealth returns an error if the server is away. It says since when, and
// how this machine decides.
func (l *Limiter) awayHealth() error {
	since := l.awaySince()
	if since == 0 {
		return nil
	}
	holds := map[Away]bool{}
	for name := range l.Load().names {
		holds[l.opts.away(name)] = true
	}
	var says []string
	if holds[AwayShare] {
		says = append(says, fmt.Sprintf("this machine decides with 1/%d of the limits", l.opts.Nodes))
	}
	if holds[AwayOpen] {
		says = append(says, "requests pass without a limit")
	}
	if holds[AwayClosed] {
		says = append(says, "decisions are errors")
	}
	return fmt.Errorf("%w (since %s): %s", ErrAway, time.Unix(0, since).UTC().Format(time.RFC3339),
		strings.Join(says, ", "))
}
