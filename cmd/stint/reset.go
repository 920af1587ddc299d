package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

func newReset() *cobra.Command {
	f := &decideFlags{open: (*dbFlags).openToGive, done: "reset"}
	many := &resetFlags{}
	cmd := newDecision(f, &cobra.Command{
		Use:   "reset [ID]",
		Short: "Make ID's bucket full, or all buckets of a limit",
		Long: `Make ID's bucket full, and end a hold on it. That needs no limit, only its --name if it is not "default".

--prefix resets the buckets of the limit whose ids begin with this text. --all resets all buckets of the limit.
The command first prints their number. With --dry-run it stops after that. All of them are reset in one step,
or none.

--json prints one object: name, id and reset, and also remaining and limit if --limit or --limits is given;
of many buckets name, buckets, holds and reset.`,
		Example: `  stint reset alice
  stint reset --name NewOrdersPerAccount 12345678
  stint reset --name LoginsPerRange --prefix 2001:db8: --dry-run
  stint reset --name NewOrdersPerAccount --all`,
	})
	cmd.Flags().StringVar(&many.prefix, "prefix", "", "reset the buckets whose id begins with this `TEXT`")
	cmd.Flags().BoolVar(&many.all, "all", false, "reset all buckets of the limit")
	cmd.Flags().BoolVar(&many.dryRun, "dry-run", false, "print how many buckets there are, and reset none")
	cmd.ValidArgsFunction = completeID
	one := cmd.RunE
	wanted := func(cmd *cobra.Command) bool { return cmd.Flags().Changed("prefix") || many.all || many.dryRun }
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case !wanted(cmd):
			return oneID(cmd, args)
		case len(args) > 0:
			return misuse(cmd, "an ID goes with none of --prefix, --all and --dry-run")
		case many.all == cmd.Flags().Changed("prefix"):
			return misuse(cmd, "give --prefix TEXT or --all, and not both")
		case cmd.Flags().Changed("prefix") && many.prefix == "":
			return misuse(cmd, "--prefix is empty: use --all to reset all buckets")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !wanted(cmd) {
			return one(cmd, args)
		}
		if err := f.out.misused(cmd); err != nil {
			return err
		}
		return many.reset(cmd, f)
	}
	return cmd
}

// resetFlags are the flags to reset many buckets.
type resetFlags struct {
	prefix      string
	all, dryRun bool
}

// resetOneJSON is what --json prints of one bucket. A reset needs no limit, and
// prints none unless the flags give one.
type resetOneJSON struct {
	Name string `json:"name"`
	idJSON
	Remaining int64      `json:"remaining,omitempty"`
	Limit     *limitJSON `json:"limit,omitempty"`
	Reset     bool       `json:"reset"`
}

func newResetOneJSON(label, id string, limit stint.Limit) resetOneJSON {
	one := resetOneJSON{Name: label, idJSON: newIDJSON(id), Reset: true}
	if limit != stint.Unlimited {
		one.Remaining, one.Limit = limit.Burst, newLimitJSON(limit)
	}
	return one
}

// resetJSON is what --json prints of many buckets.
type resetJSON struct {
	Name    string `json:"name"`
	Buckets int    `json:"buckets"`
	Holds   int    `json:"holds"`
	Reset   bool   `json:"reset"`
}

func (m *resetFlags) reset(cmd *cobra.Command, f *decideFlags) error {
	_, numbers, err := f.limits.load(counter()) // as for one ID, they must name the limit
	if err != nil {
		return err
	}
	if _, err := f.limits.among(numbers); err != nil {
		return err
	}
	ctx, stop := untilInterrupted(cmd)
	defer stop()
	store, err := f.db.openExisting()
	if err != nil {
		return err
	}
	name, ok := numberOf(store, f.limits.label())
	if !ok {
		return errors.Join(noSuchLabel(f.limits.label()), store.Close())
	}
	var changes []stint.Change
	found := resetJSON{Name: f.limits.label(), Reset: !m.dryRun}
	for _, of := range []stint.Name{name, stint.Unknown} { // its buckets, then all holds
		for c, err := range store.All(of) {
			if err := errors.Join(interruption(ctx), failed(err)); err != nil {
				return errors.Join(err, failed(store.Close()))
			}
			key := c.Key
			if of == stint.Unknown {
				if key, err = stint.ParseKey(c.Key.ID); err != nil || key.Name != name {
					continue
				}
			}
			if strings.HasPrefix(key.ID, m.prefix) {
				if changes = append(changes, stint.Change{Key: c.Key}); of == name {
					found.Buckets++
				} else {
					found.Holds++
				}
			}
		}
	}
	what := plural(found.Buckets, "bucket") + " and " + plural(found.Holds, "hold") + " of " + printable(found.Name)
	say := func(format string) error {
		if f.out.json || f.out.quiet {
			return nil
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", what)
		return err
	}
	if m.dryRun {
		err = say("would reset  %s")
	} else if err = say("resetting  %s"); err == nil && len(changes) > 0 {
		if err = interruption(ctx); err != nil {
			return errors.Join(err, failed(store.Close()))
		}
		err = store.Save(changes)
	}
	if err = errors.Join(err, store.Close()); err == nil && !m.dryRun {
		err = say("reset  %s")
	}
	if err == nil && f.out.json {
		err = printJSON(cmd.OutOrStdout(), found)
	}
	return failed(err)
}

// reset deletes a bucket and its hold. A Limiter would need a limit to find
// them.
func reset(store stint.Store, key stint.Key) error {
	return store.Save([]stint.Change{{Key: key}, {Key: stint.Unknown.Key(key.String())}})
}
