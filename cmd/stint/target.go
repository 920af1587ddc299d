package main

import (
	"errors"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
)

// target has the buckets of one limit.
type target struct {
	*source
	kept  stint.Store // the buckets of the file, for a Limiter
	name  stint.Name
	label string
}

// nothing is a target without buckets.
func nothing(label string) *target {
	return &target{&source{now: time.Now()}, stint.NewMemStore(), 1, label}
}

// target opens the file, or connects to the program that has it, and finds the
// number of a limit's label. If the file has none, a label to write under gets one.
// To others that is an error, because nothing was ever spent there.
func (to access) target(f *dbFlags, label string) (t *target, err error) {
	in, err := f.view(to)
	if err != nil {
		return nil, err
	}
	t = &target{in, keepOpen{in.store}, 0, label}
	if to == reading {
		t.kept = unsaved{keepOpen{in.store}}
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

// keepOpen is a store that outlives its Limiter.
type keepOpen struct{ dbfile.Store }

func (keepOpen) Close() error { return nil }

// unsaved is a store that ignores what a Limiter deletes, such as holds that
// are over.
type unsaved struct{ keepOpen }

func (unsaved) Save([]stint.Change) error { return nil }

func (unsaved) SaveClock([]byte) error { return nil }

// decide acts on the bucket of an id.
func (t *target) decide(do action, limit stint.Limit, id string, cost int64) (d stint.Decision, err error) {
	err = t.do(limit, id, func(l decider, _ stint.Key) (err error) {
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

// do acts on the bucket of an id. When it returns, the result is durable. The file
// gets no label except the one that is used.
func (t *target) do(limit stint.Limit, id string, act func(l decider, key stint.Key) error) error {
	key := t.name.Key(id)
	if t.owner != nil {
		return blame(act(t.owner, key))
	}
	if !limit.IsUnlimited() && !limit.IsBlocked() {
		limit.Durability = stint.Flushed // Close makes it durable
	}
	spec := stint.NameSpec{Label: t.label, Limit: limit}
	if id == "" {
		spec.ID = stint.Shared
	}
	limits, err := stint.NewLimits(stint.Names{t.name: spec})
	if err != nil {
		return failed(err)
	}
	limiter, err := stint.New(t.kept, limits, nil)
	if err != nil {
		return failed(err)
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
