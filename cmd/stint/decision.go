package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

type decideFlags struct {
	db     dbFlags
	limits limitFlags
	out    outputFlags
	cost   int64

	open func(f *dbFlags, label string) (stint.Store, stint.Name, error)
	act  action // nil to reset

	force bool // spend all tokens if there are too few

	done string // first word of the output, unless "denied"
}

// action is what a command does to one bucket.
type action func(l *stint.Limiter, key stint.Key, cost int64) (stint.Decision, error)

func newDecision(f *decideFlags, cmd *cobra.Command) *cobra.Command {
	f.db.register(cmd, dbUsage)
	f.out.register(cmd)
	f.limits.register(cmd, f.act != nil)
	if f.act != nil {
		cmd.Flags().Int64Var(&f.cost, "cost", 1, "how many tokens")
	}
	cmd.Args = oneID
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.out.misused(cmd); err != nil {
			return err
		}
		d, err := f.decide(args[0])
		if err != nil {
			return err
		}
		if err := f.out.decision(cmd.OutOrStdout(), f, args[0], d); err != nil {
			return failed(err)
		}
		if !d.Allowed {
			return errDenied
		}
		return nil
	}
	return cmd
}

// decide acts on the bucket of id. Before it returns, it closes the file, and
// the result is durable.
func (f *decideFlags) decide(id string) (stint.Decision, error) {
	// A stint.Shared limit has one bucket, without an id. It needs a label.
	if id != "" || f.act != nil || f.limits.name == "" {
		if _, err := stint.AnyID.Canonical(id); err != nil {
			return stint.Decision{}, err
		}
	}
	limit, limited, err := f.limits.resolve(id) // may fail, so do it before making a file
	if err != nil {
		return stint.Decision{}, err
	}
	store, name, err := f.open(&f.db, f.limits.label())
	if errors.As(err, new(noSuchLabel)) && f.limits.file != "" { // the limit exists, but no token was spent yet
		store, name, err = stint.NewMemStore(), 1, nil
	}
	if err != nil {
		return stint.Decision{}, err
	}
	if f.act == nil {
		err := errors.Join(reset(store, name.Key(id)), store.Close())
		return stint.Decision{Allowed: true, Remaining: cmp.Or(limit.Burst, math.MaxInt64), Limit: limit}, failed(err)
	}
	if f.force {
		return f.forced(store, name.Key(id), limit, limited)
	}
	if !limited {
		limit = stint.Unlimited
	}
	return act(f.act, store, name.Key(id), limit, f.limits.label(), f.cost)
}

// act carries out an action on a bucket, and closes the store. When it returns,
// the result is durable. The file gets no label except the one that is used.
func act(do action, store stint.Store, key stint.Key, limit stint.Limit, label string, cost int64) (
	stint.Decision, error) {
	if limit != stint.Unlimited && limit != stint.Blocked {
		limit.Durability = stint.Flushed // Close makes it durable
	}
	limits, err := stint.NewLimits(stint.Names{key.Name: {Label: label, Limit: limit}}, nil, nil)
	if err != nil {
		return stint.Decision{}, failed(errors.Join(err, store.Close()))
	}
	limiter, err := stint.New(store, limits, nil)
	if err != nil {
		return stint.Decision{}, failed(errors.Join(err, store.Close()))
	}
	d, err := do(limiter, key, cost)
	if err != nil && !isUsage(err) {
		err = failed(err)
	}
	return d, errors.Join(err, failed(limiter.Close()))
}

// isUsage reports whether a decision failed because of the arguments.
func isUsage(err error) bool {
	return errors.Is(err, stint.ErrCostOverBurst) || errors.Is(err, stint.ErrNegativeCost) ||
		errors.Is(err, stint.ErrInvalidID)
}

// decisionJSON is what --json prints of a decision. Without a limit, limit is
// null and remaining is 2⁶³−1.
type decisionJSON struct {
	Allowed bool   `json:"allowed"`
	Name    string `json:"name"`
	idJSON
	Cost       int64         `json:"cost"`
	Remaining  int64         `json:"remaining"`
	Limit      *limitJSON    `json:"limit"`
	RetryAfter time.Duration `json:"retry_after_ns"`
	ResetAfter time.Duration `json:"reset_after_ns"`
}

func (f *outputFlags) decision(w io.Writer, asked *decideFlags, id string, d stint.Decision) error {
	switch {
	case f.quiet:
		return nil
	case f.json && asked.act == nil:
		return printJSON(w, newResetOneJSON(asked.limits.label(), id, d.Limit))
	case f.json:
		return printJSON(w, decisionJSON{d.Allowed, asked.limits.label(), newIDJSON(id), asked.cost, d.Remaining,
			newLimitJSON(d.Limit), d.RetryAfter, d.ResetAfter})
	}
	done, state := asked.done, "no limit"
	if !d.Allowed {
		done = "denied"
	}
	if d.Limit.Burst > 0 {
		state = stateOf(d)
	} else if d.Limit == stint.Blocked {
		state = "blocked"
	} else if asked.act == nil {
		state = "full"
	}
	_, err := fmt.Fprintf(w, "%s  %s  %s\n", done, printable(id), state)
	return err
}

// stateOf returns a decision in words: "0 of 3 left, retry in 19.8s".
func stateOf(d stint.Decision) string {
	s := fmt.Sprintf("%d of %d left", d.Remaining, d.Limit.Burst)
	switch {
	case !d.Allowed:
		s += ", retry in " + duration(d.RetryAfter)
	case d.ResetAfter > 0:
		s += ", full in " + duration(d.ResetAfter)
	}
	return s
}
