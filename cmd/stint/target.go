package main

import (
	"errors"
	"fmt"
	"maps"

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
	name  stint.Name
}

// nothing is a target without buckets.
func nothing() *target { return &target{store: stint.NewMemStore(), name: 1} }

// pid returns the process that answers, or 0 if the file does.
func (t *target) pid() int {
	if t.owner == nil {
		return 0
	}
	return t.owner.OwnerPID()
}

// Close closes the target. Do not call it after decide or do, which close the
// target too.
func (t *target) Close() error {
	if t.owner != nil {
		return t.owner.Close()
	}
	return t.store.Close()
}

// openToSpend opens the file, and finds the number that it has for the label of a
// limit. If it has none, the label gets one.
func (f *dbFlags) openToSpend(label string) (*target, error) {
	return reach(f, label, (*dbFlags).open, func(store dbfile.Store) (*target, error) {
		name, err := store.Number(label)
		if err != nil {
			return nil, failed(errors.Join(err, store.Close()))
		}
		return &target{cmd: f.cmd, store: store, name: name}, nil
	})
}

// openToGive is openToSpend for commands that give tokens back. A label that
// the file does not have is an error: nothing was ever spent there.
func (f *dbFlags) openToGive(label string) (*target, error) {
	return reach(f, label, (*dbFlags).openExisting, func(store dbfile.Store) (*target, error) {
		if name, ok := numberOf(store.Labels(), label); ok {
			return &target{cmd: f.cmd, store: store, name: name}, nil
		}
		return nil, errors.Join(noSuchLabel(label), failed(store.Close()))
	})
}

// reach opens the target of a label. If no program has the file, found makes
// the target from the open file.
func reach(f *dbFlags, label string, open func(*dbFlags) (dbfile.Store, error),
	found func(dbfile.Store) (*target, error)) (*target, error) {
	store, owner, err := openOrAsk(f, open)
	switch {
	case err != nil:
		return nil, err
	case owner == nil:
		return found(store)
	}
	return targetAt(owner, label)
}

// targetAt returns the target of a label that a program declares.
func targetAt(owner *hostlimit.Limiter, label string) (*target, error) {
	labels := labelsOf(owner)
	if name, ok := numberOf(labels, label); ok {
		return &target{owner: owner, name: name}, nil
	}
	pid := owner.OwnerPID()
	return nil, errors.Join(notDeclared{label, pid, labels}, failed(owner.Close()))
}

// notDeclared is the error of a label that a running program does not have.
type notDeclared struct {
	label  string
	pid    int
	labels map[stint.Name]string
}

func (e notDeclared) Error() string {
	return fmt.Sprintf("process %d, which has the file open, has no limit %q: it has %s; name one with --name",
		e.pid, e.label, labels(maps.Values(e.labels)))
}

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
