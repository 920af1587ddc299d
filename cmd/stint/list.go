package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

type listFlags struct {
	db     dbFlags
	limits limitFlags
	out    outputFlags
}

func newList() *cobra.Command {
	f := &listFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the buckets that are not full",
		Long: `Show the buckets that are not full, or held: the label of the limit, the id, and when the bucket is full again. With a
limit given, also what is left in it: --limit is that of the label --name, or else of "` + defaultLabel + `".

A file that is not there is an error, not an empty list.`,
		Example: `  stint list
  stint list --limit 3/1m
  stint list --limits defaults.yml --name NewOrdersPerAccount --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.out.misused(cmd); err != nil {
				return err
			}
			buckets, err := f.list(time.Now())
			if err != nil {
				return err
			}
			return failed(f.out.list(cmd.OutOrStdout(), buckets))
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.register(cmd, false)
	f.out.register(cmd)
	return cmd
}

// bucket is a bucket as list shows it.
type bucket struct {
	label, id string
	limit     stint.Limit // zero where none was given
	remaining int64       // by that limit
	fullIn    time.Duration
	heldFor   time.Duration // 0 where it is not held
}

// list returns the buckets in the file that are held or not full, by label and id. It goes by the file's TATs, without a
// Limiter: that would tidy the file up.
func (f *listFlags) list(now time.Time) ([]*bucket, error) {
	limits, numbers, err := f.limits.load(counter())
	if err != nil {
		return nil, err
	}
	store, err := f.db.openExisting()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failed(fmt.Errorf("%w; name another file with --db, or spend something first", err))
	}
	if err != nil {
		return nil, err
	}
	buckets, err := f.read(store, now)
	if err := errors.Join(err, store.Close()); err != nil {
		return nil, failed(err)
	}
	if f.limits.name != "" {
		if _, ok := numberOf(store, f.limits.name); !ok {
			return nil, fmt.Errorf("the file has no limit %q: see list without --name", f.limits.name)
		}
	}
	for _, b := range buckets {
		if name, ok := numbers[b.label]; ok {
			if limit, ok := limits.For(name.Key(b.id)); ok {
				b.measure(limit)
			}
		}
	}
	slices.SortFunc(buckets, func(a, b *bucket) int {
		return cmp.Or(cmp.Compare(a.label, b.label), cmp.Compare(a.id, b.id))
	})
	return buckets, nil
}

func (f *listFlags) read(store *stint.BoltStore, now time.Time) ([]*bucket, error) {
	var buckets []*bucket
	held := map[stint.Key]time.Duration{}
	for hold, err := range store.All(stint.Unknown) {
		if err != nil {
			return nil, err
		}
		key, err := stint.ParseKey(hold.Key.ID)
		if err != nil {
			return nil, err
		}
		if d := until(hold.TAT, now); d > 0 {
			held[key] = d
		}
	}
	for name, label := range store.Names() {
		if f.limits.name != "" && label != f.limits.name {
			continue
		}
		for change, err := range store.All(name) {
			if err != nil {
				return nil, err
			}
			b := &bucket{label: label, id: change.Key.ID, fullIn: until(change.TAT, now), heldFor: held[change.Key]}
			delete(held, change.Key)
			if b.fullIn > 0 || b.heldFor > 0 {
				buckets = append(buckets, b)
			}
		}
		for key, d := range held {
			if key.Name == name { // full, and held
				buckets = append(buckets, &bucket{label: label, id: key.ID, heldFor: d})
			}
		}
	}
	return buckets, nil
}

func until(nanos int64, now time.Time) time.Duration {
	return max(0, time.Unix(0, nanos).Sub(now))
}

// measure sets what is left of a limit. A bucket that is further behind than the limit can bring it is empty: its next
// spend takes it so.
func (b *bucket) measure(limit stint.Limit) {
	b.limit = limit
	b.fullIn = min(b.fullIn, limit.Tolerance())
	b.remaining = int64((limit.Tolerance() - b.fullIn) / limit.Interval())
}

// bucketJSON is what --json prints of a bucket, one in a line. Without a limit given, remaining and limit are missing; held_ns is there
// where nobody passes before it is over.
type bucketJSON struct {
	Name       string        `json:"name"`
	ID         string        `json:"id"`
	Remaining  *int64        `json:"remaining,omitempty"`
	Limit      *limitJSON    `json:"limit,omitempty"`
	ResetAfter time.Duration `json:"reset_after_ns"`
	Held       time.Duration `json:"held_ns,omitempty"`
}

func (f *outputFlags) list(w io.Writer, buckets []*bucket) error {
	if f.quiet {
		return nil
	}
	if f.json {
		for _, b := range buckets {
			line := bucketJSON{Name: b.label, ID: b.id, Limit: newLimitJSON(b.limit), ResetAfter: b.fullIn, Held: b.heldFor}
			if line.Limit != nil {
				line.Remaining = &b.remaining
			}
			if err := printJSON(w, line); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range buckets {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", printable(b.label), printable(b.id), b.state())
	}
	return tw.Flush()
}

// state says in words how full the bucket is: "0 of 3 left, full in 58.2s".
func (b *bucket) state() string {
	s := "full"
	if b.fullIn > 0 {
		s = "full in " + duration(b.fullIn)
		if b.limit.Burst > 0 {
			s = fmt.Sprintf("%d of %d left, %s", b.remaining, b.limit.Burst, s)
		}
	}
	if b.heldFor > 0 {
		s += ", held for " + duration(b.heldFor)
	}
	return s
}
