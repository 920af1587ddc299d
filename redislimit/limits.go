package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// labeled returns a key as errors have it, with the limits in force now.
func (l *Limiter) labeled(key stint.Key) string { return l.inForce.Load().labeled(key) }

type limitsInForce struct {
	*stint.Limits
	since script.Since // when they were loaded
}

// limitOf returns the limit of a key, or why the key is not accepted.
func (n *limitsInForce) limitOf(key stint.Key) (stint.Limit, error) {
	return n.Check(&stint.Request{Key: key}, false)
}

// labeled returns a key as errors have it: "Logins:bob".
func (n *limitsInForce) labeled(key stint.Key) string {
	switch spec, _ := n.Spec(key.Name); {
	case spec.Label == "":
		return key.String()
	case key.ID == "":
		return spec.Label
	default:
		return spec.Label + ":" + key.ID
	}
}

// Limits returns the limits in force.
func (l *Limiter) Limits() *stint.Limits { return l.inForce.Load().Limits }

// SetLimits puts other limits in force on this machine. A bucket that was made
// before waits no longer than an empty bucket of the new limit. Its time is
// shortened only once, when this machine first uses it. If machines have
// different limits, they do not shorten it in turns, which would refill it. A bucket
// keeps its time also if the override of its id changes: unlike a stint.Limiter, this
// one does not convert what was used, because each machine would convert it once more.
//
// The limits of Options.Away stay as they are.
func (l *Limiter) SetLimits(limits *stint.Limits) error {
	if limits == nil {
		return errors.New("redislimit: limits are nil")
	}
	if l.closed.Load() {
		return stint.ErrClosed
	}
	n := &limitsInForce{Limits: limits}
	for name, spec := range limits.Names() {
		err := l.supports(spec.Limit)
		for o := range limits.Overrides(name) {
			err = cmp.Or(err, l.supports(o.Limit))
		}
		if err != nil {
			return fmt.Errorf("%w: limit %s", err, spec.Label)
		}
	}
	l.setMu.Lock()
	defer l.setMu.Unlock()
	l.inForce.Store(n)
	l.leases.SetLimits(&n.since, n.limitOf)
	// Not before they are in force: until then buckets are made under the limits
	// before. If it fails, the first decision asks again.
	ctx, cancel := context.WithTimeout(context.Background(), l.opts.Timeout)
	defer cancel()
	l.server.Load(ctx, &n.since)
	return nil
}

// supports returns nil if the server can decide on the limit, and decisions can be
// as durable as it asks.
func (l *Limiter) supports(limit stint.Limit) error {
	if limit.FollowsCalendar() {
		return fmt.Errorf("redislimit: the server has no calendar, so it cannot keep %v: %w", limit, errors.ErrUnsupported)
	}
	if l.durability(limit) == stint.Synced {
		return l.server.CanSync()
	}
	return nil
}

func (l *Limiter) durability(limit stint.Limit) stint.Durability {
	return cmp.Or(limit.Durability, l.opts.Durability)
}
