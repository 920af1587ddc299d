package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/display"
)

type listFlags struct {
	db     dbFlags
	limits limitFlags
	out    outputFlags
	csv    bool
	top    int
	by     string
}

func newList() *cobra.Command {
	f := &listFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the buckets that are not full",
		Long: `Show the buckets that are not full, are held, or have a queue of "run --wait": the label of the limit,
the id, and when the bucket is full. If a bucket's limit is given, also show what is left. --limit
gives the limit of one label: the one in --name, or "default". With --limits, a bucket's limit is the one
of its label, or the override for exactly its id.

The list is sorted by label, then by id. --top N shows only N buckets of all limits: those that will
be full last, or whose hold or queue ends last. --top N --by fill shows the N buckets with the smallest
part of their burst left, so their limits must be given.

If there are no buckets, a message on stderr says so. The file does not change. A missing file is an
error, not an empty list. If a program has the file open, the list has the buckets of the program's
limits as they are now, and shows what is left by these limits, unless the flags give others.

--json prints an object in a line for each bucket: name, id, remaining, limit (burst, count, period)
and reset_after_ns. A held bucket also has held_ns. A bucket with a queue (a waiting line) has line_ns,
the time until the last turn. In all output of --json, an id that is not UTF-8 is in base64, and
"base64":true says so.

--csv has the columns name, id, remaining, burst, count, period, reset_after_ns, held_ns and line_ns.
What is not known is empty.`,
		Example: `  stint list
  stint list --limit 3/1m
  stint list --limits defaults.yml --name NewOrdersPerAccount --json
  stint list --limits defaults.yml --top 10 --by fill`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.misused(cmd); err != nil {
				return err
			}
			buckets, err := f.list()
			if err != nil {
				return err
			}
			if len(buckets) == 0 && !f.out.quiet {
				fmt.Fprintln(cmd.ErrOrStderr(), "stint: no buckets to show: full ones that are not held are left out")
			}
			if f.csv {
				return failed(listCSV(cmd.OutOrStdout(), buckets))
			}
			return failed(f.out.list(cmd.OutOrStdout(), buckets))
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.register(cmd, false)
	f.out.register(cmd)
	cmd.Flags().BoolVar(&f.csv, "csv", false, "print CSV")
	cmd.Flags().IntVar(&f.top, "top", 0, "show only the first `N`")
	cmd.Flags().StringVar(&f.by, "by", "time", "order for --top: by `time` until full, or by fill")
	by := cobra.FixedCompletions([]string{"fill", "time"}, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("by", by)
	return cmd
}

func (f *listFlags) misused(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	switch {
	case given("by") && !given("top"):
		return misuse(cmd, "--by goes with --top")
	case given("top") && f.top < 1:
		return misuse(cmd, "--top %d: must be 1 or more", f.top)
	case f.by != "time" && f.by != "fill":
		return misuse(cmd, "--by %q: must be time or fill", f.by)
	case f.by == "fill" && !given("limit") && !given("limits"):
		return misuse(cmd, "--by fill needs to know the limits: --limit COUNT/PERIOD, or --limits FILE")
	}
	return nil
}

// list returns the buckets that are not full, are held, or have a queue, in the
// order in which they are shown. A program knows the limits, too.
func (f *listFlags) list() (buckets []*bucket, err error) {
	limits, numbers, err := f.limits.load(counter())
	if err != nil {
		return nil, err
	}
	in, err := f.db.view(reading)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	names, err := in.named(f.limits.name)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		for b, err := range in.buckets(name) {
			if err != nil {
				return nil, err
			}
			if name, ok := numbers[b.label]; ok {
				if limit, ok := limits.For(name.Key(b.id)); ok {
					b.measure(limit, in.now)
				}
			}
			if buckets = append(buckets, b); f.top > 0 && len(buckets) >= 2*f.top+1000 {
				buckets = f.order(buckets) // bounds the memory that many buckets take
			}
		}
	}
	return f.order(buckets), nil
}

// order sorts the buckets, and cuts them after the first --top.
func (f *listFlags) order(buckets []*bucket) []*bucket {
	slices.SortFunc(buckets, func(a, b *bucket) int {
		byName := cmp.Or(cmp.Compare(a.label, b.label), cmp.Compare(a.id, b.id))
		switch {
		case f.top == 0:
			return byName
		case f.by == "fill":
			return cmp.Or(cmp.Compare(b.fill(), a.fill()), cmp.Compare(b.fullIn, a.fullIn), byName)
		}
		return cmp.Or(cmp.Compare(max(b.fullIn, b.heldFor, b.lineFor), max(a.fullIn, a.heldFor, a.lineFor)), byName)
	})
	if f.top > 0 {
		return buckets[:min(f.top, len(buckets))]
	}
	return buckets
}

func (f *outputFlags) list(w io.Writer, buckets []*bucket) error {
	if f.quiet {
		return nil
	}
	if f.json {
		for _, b := range buckets {
			if err := display.WriteJSON(w, b.json()); err != nil {
				return err
			}
		}
		return nil
	}
	var rows [][]string
	for _, b := range buckets {
		id, state := b.id, b.state()
		if of, ok := lockedOut(id); ok && b.heldFor > 0 {
			id, state = of, "lock-outs remembered for "+display.Duration(b.heldFor)
		}
		if id != "" || b.id == "" {
			rows = append(rows, []string{display.Printable(b.label), display.Printable(id), state})
		}
	}
	_, err := io.WriteString(w, folded(w, display.Columns(rows)))
	return err
}

func listCSV(w io.Writer, buckets []*bucket) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"name", "id", "remaining", "burst", "count", "period", "reset_after_ns", "held_ns", "line_ns"})
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	for _, b := range buckets {
		limit := []string{"", "", "", ""}
		if l := b.limit; l.Burst > 0 {
			limit = []string{number(b.remaining), number(l.Burst), number(l.Count), l.Period.String()}
		}
		known := func(d time.Duration) string {
			if d > 0 {
				return number(int64(d))
			}
			return ""
		}
		_ = c.Write(slices.Concat([]string{b.label, b.id}, limit,
			[]string{number(int64(b.fullIn)), known(b.heldFor), known(b.lineFor)}))
	}
	c.Flush()
	return c.Error()
}
