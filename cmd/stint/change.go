package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltstore"
)

func newSpend() *cobra.Command {
	f := &decideFlags{open: (*dbFlags).openToSpend, act: (*stint.Limiter).Spend, done: "spent", state: "no limit"}
	cmd := newDecision(f, &cobra.Command{
		Use:   "spend ID",
		Short: "Spend tokens of ID's bucket, with --force even those that are not there",
		Long: `Spend tokens of ID's bucket if they are there, as allow does. With --force, something was done all the same: as many as there
are are spent, and what the next token has come to already is lost. A bucket owes no more than that: it is empty then, and full
again when the limit would fill it.`,
		Example: `  stint spend --limit 3/1m alice
  stint spend --limit 100/1d --cost 150 --force alice`,
	})
	cmd.Flags().BoolVar(&f.force, "force", false, "spend what is there, where it is not enough")
	return cmd
}

// forced spends without asking: the TAT goes no further than that of an empty bucket, to which the next load would clamp it.
func (f *decideFlags) forced(store stint.Store, key stint.Key, limit stint.Limit, limited bool) (stint.Decision, error) {
	d := stint.Decision{Allowed: true, Key: key, Limit: limit, Remaining: math.MaxInt64}
	if f.cost < 0 {
		return d, errors.Join(fmt.Errorf("%w %d", stint.ErrNegativeCost, f.cost), store.Close())
	}
	if limit == stint.Blocked {
		d.Allowed, d.Remaining = false, 0
	}
	if !limited || limit == stint.Blocked {
		return d, failed(store.Close())
	}
	tat, err := store.Load(key)
	if err != nil {
		return d, failed(errors.Join(err, store.Close()))
	}
	now := time.Now().UnixNano()
	ahead := min(max(0, tat-now), int64(limit.Tolerance()))
	if cost := min(f.cost, limit.Burst); cost > 0 {
		ahead = min(ahead+cost*int64(limit.Interval()), int64(limit.Tolerance()))
		err = store.Save([]stint.Change{{Key: key, TAT: now + ahead}})
	}
	d.ResetAfter = time.Duration(ahead)
	d.Remaining = int64((limit.Tolerance() - d.ResetAfter) / limit.Interval())
	return d, failed(errors.Join(err, store.Close()))
}

// resetFlags are those of reset for many buckets.
type resetFlags struct {
	prefix      string
	all, dryRun bool
}

func newReset() *cobra.Command {
	f := &decideFlags{open: (*dbFlags).openToGive, done: "reset", state: "full"}
	many := &resetFlags{}
	cmd := newDecision(f, &cobra.Command{
		Use:   "reset [ID]",
		Short: "Make ID's bucket full again, or those of a limit",
		Long: `Make ID's bucket full again, and end a hold on it. That needs no limit, only the limit's --name where it has one.

With --prefix, all buckets of the limit whose id begins so; with --all, all of the limit. First it says how many there are, and
with --dry-run no more than that. All of them are reset in one step, or none.`,
		Example: `  stint reset alice
  stint reset --name NewOrdersPerAccount 12345678
  stint reset --name LoginsPerRange --prefix 2001:db8: --dry-run
  stint reset --name NewOrdersPerAccount --all`,
	})
	cmd.Flags().StringVar(&many.prefix, "prefix", "", "reset the buckets whose id begins with this `TEXT`")
	cmd.Flags().BoolVar(&many.all, "all", false, "reset all buckets of the limit")
	cmd.Flags().BoolVar(&many.dryRun, "dry-run", false, "say how many there are, and reset none")
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
			return misuse(cmd, "one of --prefix TEXT and --all is needed")
		case cmd.Flags().Changed("prefix") && many.prefix == "":
			return misuse(cmd, "an empty --prefix: --all says that all are meant")
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

// resetJSON is what reset prints of many buckets.
type resetJSON struct {
	Name    string `json:"name"`
	Buckets int    `json:"buckets"`
	Holds   int    `json:"holds"`
	Reset   bool   `json:"reset"`
}

func (m *resetFlags) reset(cmd *cobra.Command, f *decideFlags) error {
	_, numbers, err := f.limits.load(counter()) // as for one ID, the flags have to say which limit is meant
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
	for _, of := range []stint.Name{name, stint.Unknown} { // its buckets, and the holds
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

type setNamesFlags struct{ db dbFlags }

func newSetNames() *cobra.Command {
	f := &setNamesFlags{}
	cmd := &cobra.Command{
		Use:   "set-names NUMBER=LABEL...",
		Short: "Give the limits of a file the labels that the program has for them now",
		Long: `Give the limits of a file the labels that the program has for them now, if the program cannot open the file because they differ.

The buckets of a number stay, and get the new label. Numbers are permanent: a label that the file has for another number is an error, and
then nothing changes. If the program gave a limit another number, give the limit its old number in the program again.`,
		Example: `  stint limits set-names --db quota.db 6=OrdersPerAccount   # 6 was NewOrdersPerAccount`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse(cmd, "no NUMBER=LABEL given")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.set(cmd, args) },
	}
	f.db.register(cmd, dbUsage)
	return cmd
}

// parseNames reads NUMBER=LABEL arguments.
func parseNames(args []string) (map[stint.Name]string, error) {
	names, labels := map[stint.Name]string{}, map[string]bool{}
	for _, arg := range args {
		number, label, _ := strings.Cut(arg, "=")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || label == "" {
			return nil, fmt.Errorf("%q: want NUMBER=LABEL, with a number from 1 to 65535: 6=NewOrdersPerAccount", arg)
		}
		if _, twice := names[stint.Name(n)]; twice {
			return nil, fmt.Errorf("number %d is given twice", n)
		}
		if labels[label] {
			return nil, fmt.Errorf("label %q is given twice: the buckets of one number would become those of the other", label)
		}
		labels[label] = true
		names[stint.Name(n)] = label
	}
	return names, nil
}

func (f *setNamesFlags) set(cmd *cobra.Command, args []string) error {
	names, err := parseNames(args)
	if err != nil {
		return err
	}
	before, err := f.db.names(cmd)
	if err != nil {
		return err
	}
	if err := withLines(names, before); err != nil {
		return err
	}
	store, err := f.db.openExisting()
	if err != nil {
		return err
	}
	labels := map[uint16]string{}
	for name, label := range names {
		labels[uint16(name)] = label
	}
	if err := boltstore.Of(store).Relabel(labels); errors.Is(err, stint.ErrNameMismatch) {
		return errors.Join(err, failed(store.Close()))
	} else if err = errors.Join(err, store.Close()); err != nil {
		return failed(err)
	}
	return failed(printNames(cmd.OutOrStdout(), before, names))
}

// withLines adds the lines of the limits that are renamed: they keep their numbers. A new label must not be like that of a line.
func withLines(names, before map[stint.Name]string) error {
	had := map[string]stint.Name{}
	for name, label := range before {
		had[label] = name
	}
	given := slices.Collect(maps.Values(names))
	for name, label := range maps.Clone(names) {
		if had[label] != 0 {
			continue
		}
		if strings.HasSuffix(label, lineSuffix) {
			return fmt.Errorf("label %q: one that ends so is where run --wait keeps its turns, and is renamed with its limit: take another", label)
		}
		old := before[name]
		line := had[old+lineSuffix]
		if old != "" && line != 0 && names[line] == "" && had[label+lineSuffix] == 0 && !slices.Contains(given, old) {
			names[line] = label + lineSuffix
		}
	}
	return nil
}

// names returns the labels that the file has.
func (f *dbFlags) names(cmd *cobra.Command) (map[stint.Name]string, error) {
	store, err := f.openToRead(cmd)
	if err != nil {
		return nil, err
	}
	return namesOf(store.BoltStore), failed(store.Close())
}

// printNames says what became of each number.
func printNames(w io.Writer, before, names map[stint.Name]string) error {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		what := "as it was"
		if old, had := before[name]; !had {
			what = "new"
		} else if old != names[name] {
			what = "renamed from " + printable(old)
		}
		if _, err := fmt.Fprintf(w, "%d  %s  %s\n", name, printable(names[name]), what); err != nil {
			return err
		}
	}
	return nil
}
