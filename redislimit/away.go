package redislimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// The pauses between probes, and how many time-outs in a row mean away.
const (
	firstProbe  = 100 * time.Millisecond
	lastProbe   = time.Second
	maxTimeouts = 3
)

// watch notices that the server is away: it cannot be reached, or several calls
// in a row had no answer in time. From then on no call waits for it, until a
// probe is answered. A cluster is not watched: its other nodes go on.
func (l *Limiter) watch(err error) {
	if l.cluster.Load() {
		return
	}
	switch {
	case errors.Is(err, ErrAway):
	case errors.Is(err, ErrNoAnswer) && errors.Is(err, context.DeadlineExceeded):
		if l.timeouts.Add(1) < maxTimeouts {
			return
		}
	default:
		if l.timeouts.Load() != 0 {
			l.timeouts.Store(0)
		}
		return
	}
	if l.away.CompareAndSwap(false, true) {
		l.begin(l.probe)
	}
}

// probe asks the server for its time until it answers.
func (l *Limiter) probe() {
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-l.closing:
			timer.Stop()
			return
		}
		ctx, cancel := l.context()
		_, err := l.client.Do(ctx, "TIME")
		cancel()
		if err = l.explainProbe(err); err == nil {
			l.timeouts.Store(0)
			l.away.Store(false)
			return
		}
		l.note(err)
	}
}

// explainProbe returns why the server is still away. A server that replies with
// an error is there, unless the error says otherwise. Calls get that error too.
func (l *Limiter) explainProbe(err error) error {
	if err == nil {
		return nil
	}
	if err = l.explain(err); errors.Is(err, ErrAway) || errors.Is(err, ErrNoAnswer) {
		return err
	}
	return nil
}
