package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

func newReset() *cobra.Command {
	f := &decideFlags{open: source.Changing.Target, done: "reset"}
	many := &resetFlags{}
	cmd := newDecision(f, &cobra.Command{
		Use:   "reset [ID]",
		Short: "Make ID's bucket full, or all buckets of a limit",
		Long: `Make ID's bucket full, and end a hold on it. Give the label of the limit with --name, unless it is
"default". The limit itself is not needed.

--prefix TEXT resets the buckets of the limit whose ids begin with TEXT, and --all resets every bucket
of the limit. The command first prints how many there are. With --dry-run it stops then. In a file,
all of them are reset in one step, or none. A running program resets them one after another.

--json prints one object: name, id and reset, and also remaining and limit if --limit or --limits is
given. With --prefix or --all it prints name, buckets, holds and reset.`,
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
			return misuse(cmd, "give an ID, or --prefix or --all, not both")
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
		return many.reset(cmd, f)
	}
	return cmd
}

type resetFlags struct {
	prefix      string
	all, dryRun bool
}

// resetOneJSON is what --json prints of one bucket. A reset needs no limit, and
// prints none unless the flags give one.
type resetOneJSON struct {
	Name string `json:"name"`
	display.JSONID
	Remaining int64              `json:"remaining,omitempty"`
	Limit     *display.JSONLimit `json:"limit,omitempty"`
	Reset     bool               `json:"reset"`
	PID       int                `json:"pid,omitempty"`
}

type resetJSON struct {
	Name    string `json:"name"`
	Buckets int    `json:"buckets"`
	Holds   int    `json:"holds"`
	Reset   bool   `json:"reset"`
	PID     int    `json:"pid,omitempty"`
}

func (m *resetFlags) reset(cmd *cobra.Command, f *decideFlags) error {
	_, numbers, err := f.limits.load(counter()) // the flags must name the limit, as for one ID
	if err != nil {
		return err
	}
	if _, err := f.limits.among(numbers); err != nil {
		return err
	}
	to, err := f.open(&f.db.File, f.limits.label())
	if err != nil {
		return err
	}
	ctx, stop := console.UntilInterrupted(cmd.Context()) // not before: a signal ends the wait for the file
	defer stop()
	found := &foundBuckets{resetJSON: resetJSON{Name: f.limits.label(), Reset: !m.dryRun, PID: to.PID}}
	if err := found.find(ctx, to, m.prefix); err != nil {
		return errors.Join(err, to.Close())
	}
	what := display.Plural(found.Buckets, "bucket") + " and " + display.Plural(found.Holds, "hold") + " of " + display.Printable(found.Name)
	say := func(format string) error {
		if f.out.JSON || f.out.Quiet {
			return nil
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", what)
		return err
	}
	if m.dryRun {
		err = say("would reset  %s")
	} else if err = say("resetting  %s"); err == nil && found.Buckets+found.Holds > 0 {
		if err = console.Interruption(ctx); err != nil {
			return errors.Join(err, to.Close())
		}
		err = found.reset(to)
	}
	if err = errors.Join(err, to.Close()); err == nil && !m.dryRun {
		err = say("reset  %s")
	}
	if err == nil && f.out.JSON {
		err = display.WriteJSON(cmd.OutOrStdout(), found.resetJSON)
	}
	return console.Failed(err)
}

type foundBuckets struct {
	resetJSON
	changes []stint.Change // in the file
	keys    []stint.Key    // in the program that has it open
}

// find finds the buckets and holds of a limit whose ids begin with prefix.
func (f *foundBuckets) find(ctx context.Context, in *source.Target, prefix string) error {
	for b, err := range in.Buckets(in.Name) {
		if err := errors.Join(console.Interruption(ctx), err); err != nil {
			return err
		}
		if !strings.HasPrefix(b.ID, prefix) {
			continue
		}
		key := in.Name.Key(b.ID)
		f.keys = append(f.keys, key)
		if b.FullIn > 0 {
			f.Buckets++
			f.changes = append(f.changes, stint.Change{Key: key})
		}
		if b.HeldFor > 0 {
			f.Holds++
			f.changes = append(f.changes, stint.Change{Key: stint.Unknown.Key(key.String())})
		}
	}
	return nil
}

func (f *foundBuckets) reset(in *source.Target) error {
	if in.Owner != nil {
		return reset(in.Owner, f.keys...)
	}
	return in.Store.Save(f.changes)
}
