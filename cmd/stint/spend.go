package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
)

func newSpend() *cobra.Command {
	f := &decideFlags{open: (*dbFlags).openToSpend, act: spend, done: "spent"}
	cmd := newDecision(f, &cobra.Command{
		Use:   "spend ID",
		Short: "Spend tokens of ID's bucket, or with --force all that are there",
		Long: `Spend tokens of ID's bucket if they are there, as allow does. --force is for something that was done
anyway: if there are too few tokens, it spends those that there are. The bucket is then empty, but
owes nothing: it refills at the rate of its limit. If a program has the file open, --force spends
nothing from a bucket that is held or has a queue.`,
		Example: `  stint spend --limit 3/1m alice
  stint spend --limit 100/1d --cost 150 --force alice`,
	})
	cmd.Flags().BoolVar(&f.force, "force", false, "spend all tokens if there are too few")
	return cmd
}

// spendUpTo spends as many tokens as there are, up to the cost.
func spendUpTo(l decider, r stint.Request) (stint.Decision, error) {
	r.Mode = stint.UpTo
	return l.SpendAll(r)
}

// forced spends without a decision. It moves the TAT no further than an empty
// bucket's, because the next load would clamp it.
func (f *decideFlags) forced(store stint.Store, key stint.Key, limit stint.Limit, limited bool) (
	stint.Decision, error) {
	d := stint.Decision{Allowed: true, Key: key, Limit: limit, Remaining: math.MaxInt64}
	if f.cost < 0 {
		return d, errors.Join(fmt.Errorf("%w %d", stint.ErrNegativeCost, f.cost), store.Close())
	}
	if limit.IsBlocked() {
		d.Allowed, d.Remaining = false, 0
	}
	if !limited || limit.IsBlocked() {
		return d, failed(store.Close())
	}
	tat, err := store.Load(key)
	if err != nil {
		return d, failed(errors.Join(err, store.Close()))
	}
	now := time.Now().UnixNano()
	if file, ok := store.(dbfile.Store); ok {
		at, err := timeOf(f.db.cmd, file)
		if err != nil {
			return d, errors.Join(err, store.Close())
		}
		now = at.UnixNano()
	}
	f.now = time.Unix(0, now)
	if limit.FollowsCalendar() {
		at := f.now
		_, end := limit.PeriodAt(at)
		used := min(max(0, tat-end.UnixNano())+min(f.cost, limit.Burst), limit.Burst)
		tat = end.UnixNano() + used
		if f.cost > 0 {
			err = store.Save([]stint.Change{{Key: key, TAT: tat}})
		}
		d.Remaining, d.ResetAfter = limit.State(time.Unix(0, tat), at)
		return d, failed(errors.Join(err, store.Close()))
	}
	ahead := min(max(0, tat-now), int64(limit.Tolerance()))
	if cost := min(f.cost, limit.Burst); cost > 0 {
		ahead = min(ahead+cost*int64(limit.Interval()), int64(limit.Tolerance()))
		err = store.Save([]stint.Change{{Key: key, TAT: now + ahead}})
	}
	d.ResetAfter = time.Duration(ahead)
	d.Remaining = int64((limit.Tolerance() - d.ResetAfter) / limit.Interval())
	return d, failed(errors.Join(err, store.Close()))
}
