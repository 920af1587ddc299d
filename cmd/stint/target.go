package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/dbfile"
)

// target has the buckets of one limit: those of the file, or of the program that
// has it open.
type target struct {
	cmd   *cobra.Command
	store stint.Store
	owner *hostlimit.Limiter // nil if it is the file
	pid   int                // of the owner
	name  stint.Name
}

// nothing is a target without buckets.
func nothing() *target { return &target{store: stint.NewMemStore(), name: 1} }

// Close closes the target. Do not call it after decide or do, which close the
// target too.
func (t *target) Close() error {
	if t.owner != nil {
		return t.owner.Close()
	}
	return t.store.Close()
}

// target opens the file, or connects to the program that has it, and finds the
// number of a limit's label. If the file has none, a label to write under gets one.
// To others that is an error, because nothing was ever spent there.
func (to access) target(f *dbFlags, label string) (*target, error) {
	in, err := f.reach(to)
	if err != nil {
		return nil, err
	}
	t := &target{f.cmd, in.store, in.owner, in.pid, 0}
	if to == reading {
		t.store = unsaved{in.store}
	}
	if to == writing && in.owner == nil {
		t.name, err = in.declare(label)
	} else {
		t.name, err = in.number(label)
	}
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return t, nil
}

// unsaved is a store that ignores what a Limiter deletes, such as holds that
// are over.
type unsaved struct{ dbfile.Store }

func (unsaved) Save([]stint.Change) error { return nil }

func (unsaved) SaveClock([]byte) error { return nil }

// decide acts on the bucket of an id, and closes the target.
func (t *target) decide(do action, label string, limit stint.Limit, id string, cost int64) (
	d stint.Decision, err error) {
	err = t.do(label, limit, id, func(l decider, _ stint.Key) (err error) {
		d, err = do(l, t.request(limit, id, cost))
		return err
	})
	return d, err
}

// request returns a request for the bucket of an id. If a program answers, the
// request brings the limit of the flags, which replaces the program's own.
func (t *target) request(limit stint.Limit, id string, cost int64) stint.Request {
	r := stint.Request{Key: t.name.Key(id), Cost: cost}
	if t.owner != nil {
		r.Limit = limit
		if !limit.IsUnlimited() && !limit.IsBlocked() {
			r.Limit.Durability = stint.Synced
		}
	}
	return r
}

// do acts on the bucket of an id, and closes the target. When it returns, the
// result is durable. The file gets no label except the one that is used.
func (t *target) do(label string, limit stint.Limit, id string, act func(l decider, key stint.Key) error) error {
	key := t.name.Key(id)
	if t.owner != nil {
		return errors.Join(blame(act(t.owner, key)), failed(t.owner.Close()))
	}
	if !limit.IsUnlimited() && !limit.IsBlocked() {
		limit.Durability = stint.Flushed // Close makes it durable
	}
	spec := stint.NameSpec{Label: label, Limit: limit}
	if id == "" {
		spec.ID = stint.Shared
	}
	limits, err := stint.NewLimits(stint.Names{t.name: spec})
	if err != nil {
		return failed(errors.Join(err, t.store.Close()))
	}
	limiter, err := stint.New(t.store, limits, &stint.Options{OnEvent: warnOfClock(t.cmd)})
	if err != nil {
		return failed(errors.Join(err, t.store.Close()))
	}
	return errors.Join(blame(act(limiter, key)), failed(limiter.Close()))
}

// blame returns an error as a failure, unless the arguments caused it.
func blame(err error) error {
	if errors.Is(err, stint.ErrCostOverBurst) || errors.Is(err, stint.ErrNegativeCost) || errors.Is(err, stint.ErrInvalidID) {
		return err
	}
	return failed(err)
}
