package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/display"
)

type showFlags struct {
	db     dbFlags
	limits limitFlags
	json   bool
	pid    int       // of the program that answered; 0 if the file did
	opened time.Time // by the user's clock
}

func newShow() *cobra.Command {
	f := &showFlags{}
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Say why an id was limited, and until when",
		Long: `Say why an id was limited. For each limit that has a bucket of the id, show which limit applies and
its source, what is left, when the bucket is full, whether it is held, and whether "run --wait" has a
queue for it. --name shows that limit only. With --limits, the limit is the one of the label, or
its override for exactly this id. The file does not change. With --share, show what is left of the
limit's floor, of the limit itself (the ceiling) and of the total. The total keeps some tokens back
for the floors: loans do not take them.

--json prints one object for each limit. It has the fields of list, source (the origin of the limit)
and retry_after_ns (until one token can be spent). With --share it also has share, with own and total
(remaining, burst) and kept.`,
		Example: `  stint show alice --limit 3/1m
  stint show 12345678 --limits defaults.yml --overrides overrides.yml
  stint show 12345678 --limits defaults.yml --name NewOrdersPerAccount
  stint show acme --limits defaults.yml --overrides overrides.yml --share Tenant:Total:TenantFloor`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			shown, err := f.show(args[0])
			if err != nil {
				return err
			}
			return failed(f.print(cmd.OutOrStdout(), args[0], shown))
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.register(cmd, false)
	f.limits.registerShares(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

// shown is a bucket as show prints it.
type shown struct {
	bucket
	source     string        // of its limit
	retryAfter time.Duration // until there is a token
	share      *shareOf      // nil if it has no Parent
}

func (f *showFlags) show(id string) (found []*shown, err error) {
	if err := checkID(id, f.limits.name); err != nil {
		return nil, err
	}
	limits, numbers, err := f.limits.load(counter())
	if err != nil {
		return nil, err
	}
	f.opened = time.Now()
	in, err := f.db.view(reading)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	f.pid = in.pid
	found, err = f.find(in, id)
	if _, declared := numbers[f.limits.name]; errors.As(err, new(noSuchLabel)) && f.limits.file != "" && declared {
		err = nil // the limit exists, but nothing of it was spent yet
	}
	if err != nil {
		return nil, err
	}
	for label, name := range numbers { // limits without a bucket in the file
		_, limited := limits.For(name.Key(id))
		asked := label == f.limits.name || f.limits.name == "" && f.limits.limit != ""
		if limited && asked && !slices.ContainsFunc(found, func(b *shown) bool { return b.label == label }) {
			found = append(found, &shown{bucket: bucket{label: label, id: id}})
		}
	}
	if err := addShares(found, in, limits, numbers, id); err != nil {
		return nil, err
	}
	for _, b := range found {
		name, ok := numbers[b.label]
		if limit, limited := limits.For(name.Key(id)); ok && limited { // otherwise the running program's, or none
			b.measure(limit, in.now)
			if b.source, err = f.limits.source(b.label, id); err != nil {
				return nil, err
			}
		}
		if b.limit.Burst > 0 || b.limit.IsBlocked() {
			b.retryAfter = b.until(1)
			if b.share != nil {
				b.retryAfter = max(b.retryAfter, b.share.wait)
			}
		}
	}
	slices.SortFunc(found, func(a, b *shown) int { return cmp.Compare(a.label, b.label) })
	return found, nil
}

// find returns the buckets of an id that are not full, are held, or have a
// queue. With --name, it returns the bucket of a running program even if it is
// full.
func (f *showFlags) find(in *source, id string) (found []*shown, err error) {
	names, err := in.named(f.limits.name)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := in.bucket(name, id)
		if err != nil {
			return nil, err
		}
		if b == nil || b.idle() && (in.owner == nil || f.limits.name == "") {
			continue
		}
		one := &shown{bucket: *b}
		if in.owner != nil {
			one.source = fmt.Sprintf("from process %d", in.pid)
		}
		found = append(found, one)
	}
	return found, nil
}

func (f *showFlags) print(w io.Writer, id string, found []*shown) error {
	if f.json {
		for _, b := range found {
			line := struct {
				bucketJSON
				Source     string        `json:"source,omitempty"`
				RetryAfter time.Duration `json:"retry_after_ns"`
				Share      *shareOf      `json:"share,omitempty"`
			}{b.json(), b.source, max(b.retryAfter, b.heldFor), b.share}
			if err := display.WriteJSON(w, line); err != nil {
				return err
			}
		}
		return nil
	}
	var text strings.Builder
	if len(found) == 0 {
		of, by := "", ""
		if f.limits.name != "" {
			of = " of " + display.Printable(f.limits.name)
		}
		if f.pid != 0 {
			by = fmt.Sprintf(", by the limits that process %d has", f.pid)
		}
		fmt.Fprintf(&text, "%s  full: all of its tokens%s are back%s\n", display.Printable(id), of, by)
	}
	for _, b := range found {
		fmt.Fprintf(&text, "%s  %s\n%s", display.Printable(b.label), display.Printable(id), b.words(f.opened))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// words returns a bucket in words, one line for each fact, and instants by the
// clock that said when it was opened.
func (b *shown) words(opened time.Time) string {
	var s strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&s, "  %-6s  "+format+"\n", append([]any{what}, args...)...)
	}
	if b.limit.Burst > 0 {
		line("limit", "%v, %s", b.limit, display.Visible(b.source))
		line("tokens", "%d of %d left", b.remaining, b.limit.Burst)
		if b.share != nil {
			line("share", "%s", b.share.words(&b.bucket))
		}
		if b.retryAfter > 0 {
			line("next", "in %s; requests are denied until then", display.Duration(b.retryAfter))
		}
	} else if b.limit.IsBlocked() {
		line("limit", "%v, %s", b.limit, display.Visible(b.source))
	} else {
		line("limit", "not known: give it with --limit, or --limits and --overrides")
	}
	if b.limit.FollowsCalendar() {
		line("resets", "%s", display.Reset(b.limit, b.now))
	} else if b.fullIn > 0 {
		line("full", "in %s, at %s", display.Duration(b.fullIn), opened.Add(b.fullIn).Format(clockFormat))
	} else {
		line("full", "now")
	}
	if b.heldFor > 0 {
		line("hold", "every request is denied for %s, until %s; stint hold --end ends it",
			display.Duration(b.heldFor), opened.Add(b.heldFor).Format(clockFormat))
	}
	if b.lineFor > 0 {
		line("queue", "the last turn of run --wait is in %s; stint reset --name %q ID removes the queue",
			display.Duration(b.lineFor), b.label+lineSuffix)
	}
	return s.String()
}
