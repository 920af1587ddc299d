package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/chart"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/replay"
	"github.com/stint-go/stint/internal/source"
)

type replayFlags struct {
	db     dbFlags
	limits limitFlags
	and    []string
	try    []string
	lines  replay.Format
	top    int
	out    chartFlags
}

// newReplay returns the command. If decided is not nil, it is called for each
// request, with one decision of all limits, or with one for each --try.
func newReplay(decided func(allowed []bool)) *cobra.Command {
	f := &replayFlags{}
	cmd := &cobra.Command{
		Use:   "replay LOG...",
		Short: "Say what a limit would have done to the requests of a log",
		Long: `Say what a limit would have done to the requests of a log. The log is plain or gzipped, and - is
standard input. Give the oldest log first. Each request is decided at the time of its line. If a
line is older than a line before it, it is decided at the newest time so far.

--limit is the limit. Each --and adds a limit that must admit the request too: either all of them admit it,
or nothing is spent. --try compares several limits side by side. --top is the number of ids that it names.

--lines is the format of the log. Without it, the first lines decide:
` + replay.AboutFormats() + `  REGEXP       a regular expression (RE2) with named groups, one of them (?P<time>...)
--by, --time and --cost name fields: ip, time, user, method, path, status, or what the format has. In json,
logfmt and w3c, what nginx, Caddy, Traefik, Cloudflare and others have in their place is found. They may also
be regular expressions, in slashes. The value is then the first group or, without groups, the whole match. In
syslog, they and --spend-if search only the message. What Kubernetes, Compose, Docker's json-file and
journalctl -o json put around a line is taken off.

A request costs one token, unless --cost or a group (?P<cost>...) gives another cost, from 1. If the group is
optional and a line lacks it, the cost is 1. A request that costs more than the burst is denied. With
--spend-if, only the requests of lines that match spend: failed logins, for example. The others are checked,
so they are denied without a token left: it is what the option Count of a rule does. In syslog, "message
repeated 5 times: [ ... ]" and "last message repeated 5 times" stand for five requests at that time.

An address counts without its port. All spellings of an IPv4 address share one bucket. All IPv6 addresses
in a /64 share one bucket, as with httplimit.ByIP; --ipv6-bits 128 gives each address its own. In a list
such as X-Forwarded-For, the client is the last address that is in no --proxies, as there.

Times of access logs, RFC 3339, syslog, Go, journalctl and others, and Unix time in seconds to nanoseconds are
recognized. --time-format is the Go layout of others. A time without a zone is in UTC. A time without a year
gets the year in which it is nearest to the time before it. --year is that of the first line: without it, the
latest year that puts the line at most a day in the future, and stderr says so.

A line without an id counts as "other", and a line that cannot be read as "malformed". If there is no request,
the exit status is 2, and stderr names the fields of the lines. If a log ends too early, or cannot be read to
its end, the figures are of the other lines, and the exit status is 2. Memory grows with the ids, not the lines.

With --db, FILE keeps the buckets, and the replay of the next log goes on from them. The times in
the file are those of the log, so give it a file that no other command uses.

--json prints one object: requests, allowed, denied, malformed, ids, top_denied (id, allowed, denied) and
busiest_minute (start, requests, denied; null without requests). Unless they are zero: checked, other, repeated
(lines, requests), tokens (asked, allowed), over_burst and no_year (lines, first, last). With --and it has
denied_by. With --try it has tried, an array of limit, allowed, denied, ids_denied, top_denied and
tokens_allowed. Then allowed, denied and top_denied are only there, and not in tokens or busiest_minute.`,
		Example: `  stint replay --limit 20/1m --by ip access.log
  stint replay --try 10/1m,20/1m,'60/1m burst 20' access.log.2.gz access.log.1 access.log
  stint replay --limit 20/1m --and 300/1h --by '/"GET (\/[^\/ ]*)/' --json access.log
  stint replay --limit 1000/1m --lines json --time ts --by request.remote_ip --cost tokens caddy.log
  stint replay --limit 5/1h --lines syslog --by '/Failed password for .* from ([^ ]+)/' auth.log
  stint replay --limit 5/15m --spend-if '/" 401 /' --svg failures.svg access.log
  stint replay --limit 5/1h --lines '^(?P<time>\S+) (?P<ip>\S+) failed(?: (?P<cost>[0-9]+) times)?' jail.log
  ssh www cat /var/log/nginx/access.log | stint replay --limit 20/1m -`,
		Args: atLeastOne("LOG given: name a file, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := console.UntilInterrupted(cmd.Context())
			defer stop()
			r, unread, err := f.replay(ctx, args, cmd.InOrStdin(), cmd.ErrOrStderr(), decided)
			if err != nil {
				return err
			}
			s := r.Summary(f.top)
			if unread != nil && s.Requests+s.Other+s.Malformed == 0 { // there was no line
				return unread
			}
			svg := func() []byte { return r.SVG(fmt.Sprintf("%s, by %s", strings.Join(args, ", "), f.lines.By)) }
			if err := f.out.print(cmd, svg, s, s.Text); err != nil {
				return err
			}
			if err := r.Nothing(); err != nil {
				return errors.Join(unread, misuse(cmd, "%w", err))
			}
			return unread
		},
	}
	f.db.register(cmd, "a `FILE` to keep the buckets in (default: nothing is kept)")
	f.limits.register(cmd, true)
	flags := cmd.Flags()
	flags.StringArrayVar(&f.and, "and", nil,
		"a further `LIMIT` that must admit each request: COUNT/PERIOD, or with --limits a label; may be repeated")
	flags.StringSliceVar(&f.try, "try", nil,
		"`LIMITS` to compare, as COUNT/PERIOD or 'COUNT/PERIOD burst N', with commas between them")
	flags.StringVar(&f.lines.Lines, "lines", "",
		"the `FORMAT` of the log, or a regular expression with named groups (default: recognized)")
	flags.StringVar(&f.lines.By, "by", "ip", "source of the id: a `FIELD` of the line, or /REGEXP/")
	flags.StringVar(&f.lines.Cost, "cost", "",
		"source of a request's cost in tokens: a `FIELD` of the line, or /REGEXP/ (default: one token)")
	flags.StringVar(&f.lines.SpendIf, "spend-if", "",
		"a `/REGEXP/`: a line that matches spends, and every other is only checked (default: all spend)")
	flags.IntVar(&f.lines.IPv6Bits, "ipv6-bits", 64, "how many leading `BITS` of an IPv6 address name a client")
	flags.Func("proxies", "a `NETWORK` of proxies: the client of a list of addresses is in none; may be repeated", func(text string) error {
		network, err := netip.ParsePrefix(text)
		f.lines.Proxies = append(f.lines.Proxies, network)
		return err
	})
	flags.IntVar(&f.top, "top", 0, "name the `N` ids that were denied most (default 10, and 3 beside each --try)")
	flags.StringVar(&f.lines.Time, "time", replay.DefaultTime, "source of the time: a `FIELD` of the line, or /REGEXP/")
	flags.StringVar(&f.lines.TimeFormat, "time-format", "", "the Go `LAYOUT` of the times (default: recognized)")
	flags.IntVar(&f.lines.Year, "year", 0,
		"the `YEAR` of the first line, if times have no year (default: the latest that is at most a day in the future)")
	f.out.register(cmd)
	for flag, values := range map[string][]string{
		"by":    {"host", "ip", "method", "path", "program", "status", "user"},
		"lines": replay.FormatNames(),
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

// replay reads the logs. unread says which of them could not be read to their
// ends.
func (f *replayFlags) replay(ctx context.Context, logs []string, stdin io.Reader, stderr io.Writer,
	decided func(allowed []bool)) (r *replay.Replay, unread, err error) {
	switch {
	case f.lines.IPv6Bits < 1 || f.lines.IPv6Bits > 128:
		return nil, nil, misuse(f.limits.cmd, "--ipv6-bits %d: must be from 1 to 128", f.lines.IPv6Bits)
	case f.top < 1 && f.limits.cmd.Flags().Changed("top"):
		return nil, nil, misuse(f.limits.cmd, "--top %d: must be 1 or more", f.top)
	}
	if err := f.out.misused(f.limits.cmd); err != nil {
		return nil, nil, err
	}
	if f.out.svg != "" && len(f.try) > chart.MostCurves {
		return nil, nil, misuse(f.limits.cmd, "--svg with %d limits: a chart can show at most %d", len(f.try), chart.MostCurves)
	}
	if err := f.lines.Validate(); err != nil {
		return nil, nil, err
	}
	for _, log := range logs { // before the first spend
		var wrong *os.PathError
		if _, err := os.Stat(log); log != "-" && errors.As(err, &wrong) {
			wrong.Op = "open"
			return nil, nil, wrong
		}
	}
	progress := console.NewProgress(stderr, "replay", console.SizeOf(logs), true)
	c := replay.Config{Format: f.lines, Decided: decided, Each: f.try != nil, Chart: f.out.svg != "", Warn: func(warning string) {
		progress.Clear()
		fmt.Fprintf(stderr, "stint: %s\n", warning)
	}}
	r, err = f.open(&c)
	if err != nil {
		return nil, nil, err
	}
	for _, log := range logs {
		err = read(ctx, r, log, stdin, progress)
		if errors.Is(err, context.Canceled) || errors.As(err, new(replay.StoreError)) || errors.As(err, new(replay.FlagError)) {
			break
		}
		if err != nil {
			unread, err = errors.Join(unread, fmt.Errorf("%w; the figures are of the lines before it", err)), nil
		}
	}
	progress.Close()
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w after %s", console.ErrInterrupted, display.Plural(int(r.Requests()), "request"))
	}
	if err = errors.Join(err, r.Close()); errors.As(err, new(replay.StoreError)) {
		err = console.Failed(err)
	}
	return r, unread, err
}

func read(ctx context.Context, r *replay.Replay, log string, stdin io.Reader, progress *console.Progress) error {
	in := stdin
	if log != "-" {
		file, err := os.Open(log)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	return r.Read(ctx, log, io.TeeReader(in, progress))
}

// open begins a replay with the limits and the store of the flags.
func (f *replayFlags) open(c *replay.Config) (_ *replay.Replay, err error) {
	if c.Limits, err = f.load(c, counter()); err != nil {
		return nil, err
	}
	c.Store = stint.NewMemStore()
	if f.db.Path != "" {
		file, err := f.db.Open(source.Writing)
		if err != nil {
			return nil, err
		}
		c.Limits, err = f.load(c, file.Number)
		if err != nil {
			return nil, console.Failed(errors.Join(err, file.Close()))
		}
		c.Store = file
	}
	r, err := replay.New(*c)
	if err != nil {
		return nil, console.Failed(errors.Join(err, c.Store.Close()))
	}
	return r, nil
}

// load returns the limits of the flags, and makes those that decide part of c.
func (f *replayFlags) load(c *replay.Config, number func(label string) (stint.Name, error)) (*stint.Limits, error) {
	if c.Each {
		f.limits.required = false
	}
	f.limits.also = nil
	deciding := f.and // labels
	if f.limits.file == "" {
		deciding = nil
		for _, s := range slices.Concat(f.try, f.and) {
			limit, err := stint.ParseLimit(strings.TrimSpace(s))
			if err != nil {
				return nil, err
			}
			f.limits.also = append(f.limits.also, stint.NameSpec{Label: limit.String(), Limit: limit})
			deciding = append(deciding, limit.String())
		}
	}
	if !c.Each {
		deciding = append([]string{f.limits.name}, deciding...)
	} else if deciding == nil {
		return nil, misuse(f.limits.cmd, "no limit in --try: COUNT/PERIOD, with commas between them")
	}
	limits, numbers, err := f.limits.load(number)
	if err != nil {
		return nil, err
	}
	c.Deciding = nil
	for _, label := range deciding {
		one := f.limits
		one.name = label
		name, err := one.among(numbers)
		if err != nil {
			return nil, err
		}
		limit := label
		if f.limits.file == "" {
			limit = limits.Names()[name].Limit.String()
		}
		if slices.ContainsFunc(c.Deciding, func(d replay.Deciding) bool { return d.Limit == limit }) {
			return nil, fmt.Errorf("the limit %s is given twice: once is enough", label)
		}
		c.Deciding = append(c.Deciding, replay.Deciding{Name: name, Limit: limit})
	}
	return limits, nil
}
