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

// maxID is how many bytes an id has at most, as in a file.
const maxID = 512

// limitOf returns the limit of a key, or why the key is not accepted.
func (n *limitsInForce) limitOf(key stint.Key) (stint.Limit, error) {
	if limit, ok := n.For(key); ok {
		return limit, nil
	}
	spec, declared := n.Spec(key.Name)
	switch {
	case !declared:
		return stint.Limit{}, fmt.Errorf("%w %d", stint.ErrUnknownName, key.Name)
	case len(key.ID) > maxID:
		return stint.Limit{}, fmt.Errorf("%w: %d bytes, want at most %d (%s)", stint.ErrInvalidID, len(key.ID), maxID,
			spec.Label)
	case (key.ID == "") != (spec.ID == stint.Shared):
		return stint.Limit{}, fmt.Errorf("%w: %q (%s)", stint.ErrInvalidID, key.ID, spec.Label)
	}
	return stint.Unlimited, nil
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
// different limits, they do not shorten it in turns, which would refill it.
//
// If the file at Options.Local has debts of a limit that is new to this process,
// SetLimits waits until the server is charged, unless it is away.
func (l *Limiter) SetLimits(limits *stint.Limits) error {
	if limits == nil {
		return errors.New("redislimit: limits are nil")
	}
	if l.closed.Load() {
		return stint.ErrClosed
	}
	n, names := &limitsInForce{Limits: limits}, limits.Names()
	for name, spec := range names {
		if spec.Parent != stint.Unknown {
			return fmt.Errorf("redislimit: limit %s: shares of a total (NameSpec.Parent) do not exist on a shared server: %w",
				spec.Label, errors.ErrUnsupported)
		}
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
	if l.node == nil {
		l.inForce.Store(n)
	} else if err := l.node.Declare(names, func() { l.inForce.Store(n) }); err != nil {
		return err
	}
	l.leases.SetLimits(&n.since, n.limitOf)
	if l.node != nil {
		l.shorten()
		l.node.SettleEarlier()
	}
	// Not before they are in force: until then buckets are made under the limits
	// before. If it fails, the first decision asks again.
	ctx, cancel := context.WithTimeout(context.Background(), l.opts.Timeout)
	defer cancel()
	l.server.Load(ctx, &n.since)
	return nil
}

// shorten lets no bucket of this machine wait for longer than an empty one of the
// limits in force. Plain buckets keep their TATs.
func (l *Limiter) shorten() {
	if !l.opts.PlainKeys {
		l.node.Shorten()
	}
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
