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

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

type listFlags struct {
	db     dbFlags
	limits limitFlags
	out    console.Output
	csv    bool
	top    int
	by     string
}

func newList() *cobra.Command {
	f := &listFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the buckets that are not full",
		Long: `Show the buckets that are not full or are held: the label of the limit, the id, and when the bucket is
full. If a bucket's limit is given, also show what is left. --limit
gives the limit of one label: the one in --name, or "default". With --limits, a bucket's limit is the one
of its label, or the override for exactly its id.

The list is sorted by label, then by id. --top N shows only N buckets of all limits: those that will
be full last, or whose hold ends last. --top N --by fill shows the N buckets with the smallest
part of their burst left, so their limits must be given.

If there are no buckets, a message on stderr says so. The file does not change. A missing file is an
error, not an empty list. If a program has the file open, the list has the buckets of the program's
limits as they are now, and shows what is left by these limits, unless the flags give others.

--json prints an object in a line for each bucket: name, id, remaining, limit (burst, count, period)
and reset_after_ns. A held bucket also has held_ns. In all output of --json, an id that is not UTF-8 is
in base64, and "base64":true says so.

--csv has the columns name, id, remaining, burst, count, period, reset_after_ns and held_ns.
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
			if len(buckets) == 0 && !f.out.Quiet {
				fmt.Fprintln(cmd.ErrOrStderr(), "stint: no buckets to show: full ones that are not held are left out")
			}
			if f.csv {
				return console.Failed(listCSV(cmd.OutOrStdout(), buckets))
			}
			return console.Failed(printBuckets(cmd.OutOrStdout(), &f.out, buckets))
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.register(cmd, false)
	registerOutput(cmd, &f.out)
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

// list returns the buckets that are not full or are held, in the order in which
// they are shown. A program knows the limits, too.
func (f *listFlags) list() (buckets []*source.Bucket, err error) {
	limits, numbers, err := f.limits.load(counter())
	if err != nil {
		return nil, err
	}
	in, err := f.db.View(source.Reading)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	names, err := in.Named(f.limits.name)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		for b, err := range in.Buckets(name) {
			if err != nil {
				return nil, err
			}
			if name, ok := numbers[b.Label]; ok {
				if limit := limits.For(name.Key(b.ID)); limit != stint.Unlimited {
					b.Measure(limit, in.Now)
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
func (f *listFlags) order(buckets []*source.Bucket) []*source.Bucket {
	slices.SortFunc(buckets, func(a, b *source.Bucket) int {
		byName := cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(a.ID, b.ID))
		switch {
		case f.top == 0:
			return byName
		case f.by == "fill":
			return cmp.Or(cmp.Compare(b.Fill(), a.Fill()), cmp.Compare(b.FullIn, a.FullIn), byName)
		}
		return cmp.Or(cmp.Compare(max(b.FullIn, b.HeldFor), max(a.FullIn, a.HeldFor)), byName)
	})
	if f.top > 0 {
		return buckets[:min(f.top, len(buckets))]
	}
	return buckets
}

func printBuckets(w io.Writer, out *console.Output, buckets []*source.Bucket) error {
	if out.Quiet {
		return nil
	}
	if out.JSON {
		for _, b := range buckets {
			if err := display.WriteJSON(w, newBucketJSON(b)); err != nil {
				return err
			}
		}
		return nil
	}
	var rows [][]string
	for _, b := range buckets {
		rows = append(rows, []string{display.Printable(b.Label), display.Printable(b.ID), stateOfBucket(b)})
	}
	_, err := io.WriteString(w, console.Folded(w, display.Columns(rows)))
	return err
}

func listCSV(w io.Writer, buckets []*source.Bucket) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"name", "id", "remaining", "burst", "count", "period", "reset_after_ns", "held_ns"})
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	for _, b := range buckets {
		limit := []string{"", "", "", ""}
		if l := b.Limit; l.Burst > 0 {
			limit = []string{number(b.Remaining), number(l.Burst), number(l.Count), l.Period.String()}
		}
		known := func(d time.Duration) string {
			if d > 0 {
				return number(int64(d))
			}
			return ""
		}
		_ = c.Write(slices.Concat([]string{b.Label, b.ID}, limit,
			[]string{number(int64(b.FullIn)), known(b.HeldFor)}))
	}
	c.Flush()
	return c.Error()
}

// bucketJSON is what --json prints of a bucket, one in a line.
type bucketJSON struct {
	Name string `json:"name"`
	display.JSONID
	Remaining  *int64             `json:"remaining,omitempty"`
	Limit      *display.JSONLimit `json:"limit,omitempty"`
	ResetAfter time.Duration      `json:"reset_after_ns"`
	Held       time.Duration      `json:"held_ns,omitempty"`
}

func newBucketJSON(b *source.Bucket) bucketJSON {
	line := bucketJSON{Name: b.Label, JSONID: display.NewJSONID(b.ID), Limit: display.NewJSONLimit(b.Limit),
		ResetAfter: b.FullIn, Held: b.HeldFor}
	if line.Limit != nil {
		line.Remaining = &b.Remaining
	}
	return line
}

// stateOfBucket returns the level of the bucket in words: "0 of 3 left, full in 58.2s".
func stateOfBucket(b *source.Bucket) string {
	s := "full"
	if b.FullIn > 0 {
		s = "full in " + display.Duration(b.FullIn)
		if b.Limit.FollowsCalendar() {
			s = "resets " + display.Reset(b.Limit, b.Now)
		}
		if b.Limit.Burst > 0 {
			s = fmt.Sprintf("%d of %d left, %s", b.Remaining, b.Limit.Burst, s)
		}
	}
	if b.Limit == stint.Blocked {
		s = "blocked, " + s
	}
	if b.HeldFor > 0 {
		s += ", held for " + display.Duration(b.HeldFor)
	}
	return s
}
