package main

import (
	"cmp"
	"errors"
	"math"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

// action is what a command does to one bucket.
type action func(l *stint.Limiter, key stint.Key, cost int64) (stint.Decision, error)

type decideFlags struct {
	db     dbFlags
	limits limitFlags
	out    outputFlags
	cost   int64

	open func(f *dbFlags, label string) (stint.Store, stint.Name, error)
	act  action // nil to reset

	force bool // spend what is there, where it is not enough

	done  string // what the line begins with, where it is not "denied"
	state string // what it says where no limit was given
}

func newAllow() *cobra.Command {
	return newDecision(&decideFlags{open: (*dbFlags).openToSpend, act: (*stint.Limiter).Spend, done: "allowed", state: "no limit"},
		&cobra.Command{
			Use:   "allow ID",
			Short: "Spend tokens of ID's bucket if they are there",
			Long: `Spend tokens of ID's bucket if they are there: exit status 0, and what was spent is on disk; else 1.

--json prints one object, as check, refund and reset do: allowed, name, id, cost, remaining, limit (burst, count, and the
period as in "1m0s"; null where there is none), retry_after_ns (0 if allowed), reset_after_ns (until the bucket is full).
With --limits, the limit is that of the --name, or an override of exactly this id. Put -- before an ID that begins with -.`,
			Example: `  stint allow --limit 3/1m alice && echo hello
  stint allow --limit 100/24h --burst 10 --cost 5 --db quota.db alice
  stint allow --limits defaults.yml --overrides overrides.yml --name NewOrdersPerAccount 12345678`,
		})
}

func newCheck() *cobra.Command {
	return newDecision(&decideFlags{open: (*dbFlags).openToLook, act: (*stint.Limiter).Check, done: "allowed", state: "no limit"},
		&cobra.Command{
			Use:   "check ID",
			Short: "Say what allow would, and spend nothing",
			Long:  `Say what allow would, with the state it would leave, and spend nothing. With --cost 0: the state as it is.`,
			Example: `  stint check --limit 3/1m alice
  stint check --limit 3/1m --cost 0 --json alice`,
		})
}

func newRefund() *cobra.Command {
	return newDecision(&decideFlags{open: (*dbFlags).openToGive, act: (*stint.Limiter).Refund, done: "refunded", state: "no limit"},
		&cobra.Command{
			Use:     "refund ID",
			Short:   "Give tokens back to ID's bucket",
			Long:    `Give tokens back to ID's bucket, which holds no more than its burst, and say what is in it then.`,
			Example: `  stint refund --limit 3/1m alice`,
		})
}

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

// decide acts on the bucket of id. When it returns, the file is closed, and has all of it.
func (f *decideFlags) decide(id string) (stint.Decision, error) {
	if id != "" || f.act != nil || f.limits.name == "" { // reset with a label: the one bucket of a stint.Shared limit
		if _, err := stint.AnyID.Canonical(id); err != nil {
			return stint.Decision{}, err
		}
	}
	limit, limited, err := f.limits.resolve(id) // before a file is made for it
	if err != nil {
		return stint.Decision{}, err
	}
	store, name, err := f.open(&f.db, f.limits.label())
	if errors.As(err, new(noSuchLabel)) && f.limits.file != "" { // that has it, and nothing of it was spent yet
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
	limiter, err := f.limiter(store, name, limit, limited)
	if err != nil {
		return stint.Decision{}, failed(errors.Join(err, store.Close()))
	}
	d, err := f.act(limiter, name.Key(id), f.cost)
	if err != nil && !isUsage(err) {
		err = failed(err)
	}
	return d, errors.Join(err, failed(limiter.Close()))
}

// limiter returns a Limiter that knows one limit, so that the file gets no label but the one that is used.
func (f *decideFlags) limiter(store stint.Store, name stint.Name, limit stint.Limit, limited bool) (*stint.Limiter, error) {
	if limited && limit != stint.Blocked {
		limit.Durability = stint.Flushed // Close makes it durable, and nothing is said before that
	} else if !limited {
		limit = stint.Unlimited
	}
	limits, err := stint.NewLimits(stint.Names{name: {Label: f.limits.label(), Limit: limit}}, nil, nil)
	if err != nil {
		return nil, err
	}
	return stint.New(store, limits, nil)
}

// reset deletes a bucket and the hold on it. That takes no Limiter, which would want a limit to find them.
func reset(store stint.Store, key stint.Key) error {
	return store.Save([]stint.Change{{Key: key}, {Key: stint.Unknown.Key(key.String())}})
}

// isUsage says whether a decision failed for what was asked, not for the store.
func isUsage(err error) bool {
	return errors.Is(err, stint.ErrCostOverBurst) || errors.Is(err, stint.ErrNegativeCost) || errors.Is(err, stint.ErrInvalidID)
}
