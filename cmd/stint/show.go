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

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
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
its source, what is left, when the bucket is full, and whether it is held. --name shows that limit only. With --limits, the limit is the one of the label, or
its override for exactly this id. The file does not change.

--json prints one object for each limit. It has the fields of list, source (the origin of the limit)
and retry_after_ns (until one token can be spent).`,
		Example: `  stint show alice --limit 3/1m
  stint show 12345678 --limits defaults.yml --overrides overrides.yml
  stint show 12345678 --limits defaults.yml --name NewOrdersPerAccount`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			shown, err := f.show(args[0])
			if err != nil {
				return err
			}
			return console.Failed(f.print(cmd.OutOrStdout(), args[0], shown))
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.register(cmd, false)
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

// shown is a bucket as show prints it.
type shown struct {
	source.Bucket
	source     string        // of its limit
	retryAfter time.Duration // until there is a token
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
	in, err := f.db.View(source.Reading)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	f.pid = in.PID
	found, err = f.find(in, id)
	if _, declared := numbers[f.limits.name]; errors.As(err, new(source.NoSuchLabel)) && f.limits.file != "" && declared {
		err = nil // the limit exists, but nothing of it was spent yet
	}
	if err != nil {
		return nil, err
	}
	for label, name := range numbers { // limits without a bucket in the file
		limited := limits.For(name.Key(id)) != stint.Unlimited
		asked := label == f.limits.name || f.limits.name == "" && f.limits.limit != ""
		if limited && asked && !slices.ContainsFunc(found, func(b *shown) bool { return b.Label == label }) {
			found = append(found, &shown{Bucket: source.Bucket{Label: label, ID: id}})
		}
	}
	for _, b := range found {
		name, ok := numbers[b.Label]
		if limit := limits.For(name.Key(id)); ok && limit != stint.Unlimited { // otherwise the running program's, or none
			b.Measure(limit, in.Now)
			if b.source, err = f.limits.source(b.Label, id); err != nil {
				return nil, err
			}
		}
		if b.Limit.Burst > 0 || b.Limit == stint.Blocked {
			b.retryAfter = b.Until(1)
		}
	}
	slices.SortFunc(found, func(a, b *shown) int { return cmp.Compare(a.Label, b.Label) })
	return found, nil
}

// find returns the buckets of an id that are not full or are held. With --name, it returns the bucket of a running program even if it is
// full.
func (f *showFlags) find(in *source.Source, id string) (found []*shown, err error) {
	names, err := in.Named(f.limits.name)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := in.Bucket(name, id)
		if err != nil {
			return nil, err
		}
		if b == nil || b.Idle() && (in.Owner == nil || f.limits.name == "") {
			continue
		}
		one := &shown{Bucket: *b}
		if in.Owner != nil {
			one.source = fmt.Sprintf("from process %d", in.PID)
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
			}{newBucketJSON(&b.Bucket), b.source, max(b.retryAfter, b.HeldFor)}
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
		fmt.Fprintf(&text, "%s  %s\n%s", display.Printable(b.Label), display.Printable(id), b.words(f.opened))
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
	if b.Limit.Burst > 0 {
		line("limit", "%v, %s", b.Limit, display.Visible(b.source))
		line("tokens", "%d of %d left", b.Remaining, b.Limit.Burst)
		if b.retryAfter > 0 {
			line("next", "in %s; requests are denied until then", display.Duration(b.retryAfter))
		}
	} else if b.Limit == stint.Blocked {
		line("limit", "%v, %s", b.Limit, display.Visible(b.source))
	} else {
		line("limit", "not known: give it with --limit, or --limits and --overrides")
	}
	if b.Limit.FollowsCalendar() {
		line("resets", "%s", display.Reset(b.Limit, b.Now))
	} else if b.FullIn > 0 {
		line("full", "in %s, at %s", display.Duration(b.FullIn), opened.Add(b.FullIn).Format(clockFormat))
	} else {
		line("full", "now")
	}
	if b.HeldFor > 0 {
		line("hold", "every request is denied for %s, until %s; stint hold --end ends it",
			display.Duration(b.HeldFor), opened.Add(b.HeldFor).Format(clockFormat))
	}
	return s.String()
}
