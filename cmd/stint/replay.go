package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

// keysBy are the ways in which replay takes an id from a line: the bytes of the line, and the id that they stand for.
var keysBy = map[string]keyBy{
	"ip": {
		text: func(l *logLine) []byte { return l.host },
		id: func(host string) string {
			if addr, err := netip.ParseAddr(host); err == nil {
				return addr.Unmap().WithZone("").String()
			}
			return host
		},
	},
}

type keyBy struct {
	text func(l *logLine) []byte
	id   func(text string) string
}

type replayFlags struct {
	db     dbFlags
	limits limitFlags
	by     string
	json   bool
}

// newReplay returns the command; decided, if not nil, is told of every request in turn.
func newReplay(decided func(allowed bool)) *cobra.Command {
	f := &replayFlags{}
	cmd := &cobra.Command{
		Use:   "replay --by ip ACCESS.LOG...",
		Short: "Say what a limit would have done to the requests of an access log",
		Long: `Say what a limit would have done to the requests of an access log, in Common or Combined Log Format, plain or gzipped;
- is standard input. Give the oldest log first: each request is decided at its line's own time, and one that is older
than the newest before it at that. A line that is not of the format is counted as malformed.

With --db the file keeps the buckets, and the replay of the next log goes on where this one stopped. Its times are the
log's: give it no file that other commands use.

--json prints one object: requests, allowed, denied, malformed, ids, top_denied (id, allowed, denied), busiest_minute (start,
requests, denied; null where there was no request).`,
		Example: `  stint replay --limit 20/1m --by ip access.log
  stint replay --limit 20/1m --burst 50 --by ip --json access.log.2.gz access.log.1 access.log
  ssh www cat /var/log/nginx/access.log | stint replay --limit 20/1m --by ip -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse(cmd, "no ACCESS.LOG given, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			r, err := f.replay(ctx, args, cmd.InOrStdin(), cmd.ErrOrStderr(), decided)
			if err != nil {
				return err
			}
			return failed(f.print(cmd.OutOrStdout(), r.summary()))
		},
	}
	f.db.register(cmd, "a `FILE` to keep the buckets in (default: nothing is kept)")
	f.limits.register(cmd, true)
	cmd.Flags().StringVar(&f.by, "by", "ip", "what each bucket is for, a `KEY` of the line: ip, the address or name that it begins with")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

// replay reads the logs.
func (f *replayFlags) replay(ctx context.Context, logs []string, stdin io.Reader, stderr io.Writer, decided func(allowed bool)) (*replay, error) {
	by, ok := keysBy[f.by]
	if !ok {
		return nil, misuse(f.limits.cmd, "--by %q: must be %s", f.by, strings.Join(slices.Sorted(maps.Keys(keysBy)), ", "))
	}
	r := &replay{
		by: by, stderr: stderr, decided: decided,
		byText: map[string]*tally{}, byID: map[string]*tally{}, byMinute: map[int64]*counts{},
	}
	if err := f.open(r); err != nil {
		return nil, err
	}
	var err error
	for _, log := range logs {
		if err = r.read(ctx, log, stdin); err != nil {
			break
		}
	}
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%w after %s", errInterrupted, plural(int(r.total.requests()), "request"))
	}
	r.warnOfOrder()
	return r, errors.Join(err, failed(r.limiter.Close()))
}

// open gives r a Limiter on the store that the flags say.
func (f *replayFlags) open(r *replay) error {
	limits, numbers, err := f.limits.load(counter())
	if err != nil {
		return err
	}
	if r.name, err = f.limits.among(numbers); err != nil {
		return err
	}
	var store stint.Store = stint.NewMemStore()
	if f.db.path != "" {
		file, err := f.db.open()
		if err != nil {
			return err
		}
		if limits, numbers, err = f.limits.load(file.Number); err != nil {
			return failed(errors.Join(err, file.Close()))
		}
		r.name, store = numbers[f.limits.label()], file
	}
	r.limiter, err = stint.New(store, limits, &stint.Options{Now: r.now, MaxResident: 1 << 24})
	if err != nil {
		return failed(errors.Join(err, store.Close()))
	}
	return nil
}

// counts are requests.
type counts struct{ allowed, denied int64 }

func (c *counts) requests() int64 { return c.allowed + c.denied }

func (c *counts) add(allowed bool) {
	if allowed {
		c.allowed++
	} else {
		c.denied++
	}
}

// tally is what became of the requests of one id.
type tally struct {
	key stint.Key
	counts
}

// replay is what was found so far.
type replay struct {
	limiter *stint.Limiter
	name    stint.Name
	by      keyBy
	stderr  io.Writer
	decided func(allowed bool)

	newest atomic.Int64 // Unix seconds; the Limiter looks at it from its own goroutine too
	behind int64        // the most that a line was older than the newest, in seconds

	total     counts
	malformed int64
	byText    map[string]*tally // by the id as lines have it: most lines are looked up without making a string
	byID      map[string]*tally
	byMinute  map[int64]*counts // since 1970
}

func (r *replay) now() time.Time { return time.Unix(r.newest.Load(), 0) }

func (r *replay) read(ctx context.Context, log string, stdin io.Reader) error {
	var in io.Reader
	if log == "-" {
		in = interruptible(ctx, stdin)
	} else {
		file, err := os.Open(log)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	err := eachLine(in, func(number int, text []byte, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var line logLine
		if err == nil {
			line, err = parseLogLine(text)
		}
		var t *tally
		if err == nil {
			t, err = r.tally(&line)
		}
		if err != nil {
			r.skip(log, number, err)
			return nil
		}
		return r.decide(t, line.unix)
	})
	if err != nil && !errors.As(err, new(failure)) {
		err = fmt.Errorf("%s: %w", log, err)
	}
	return err
}

// skip counts a malformed line, and reports the first few.
func (r *replay) skip(log string, number int, err error) {
	const most = 5
	if r.malformed++; r.malformed <= most {
		fmt.Fprintf(r.stderr, "stint: %s:%d: skipped: %v\n", log, number, err)
	}
	if r.malformed == most+1 {
		fmt.Fprintln(r.stderr, "stint: more lines are malformed: only their number is reported")
	}
}

func (r *replay) tally(line *logLine) (*tally, error) {
	text := r.by.text(line)
	if t, ok := r.byText[string(text)]; ok {
		return t, nil
	}
	id, err := stint.AnyID.Canonical(r.by.id(string(text)))
	if err != nil {
		return nil, err
	}
	t, ok := r.byID[id]
	if !ok {
		t = &tally{key: r.name.Key(id)}
		r.byID[id] = t
	}
	r.byText[string(text)] = t
	return t, nil
}

func (r *replay) decide(t *tally, unix int64) error {
	newest := r.newest.Load()
	r.behind = max(r.behind, newest-unix)
	r.newest.Store(max(newest, unix))
	d, err := r.limiter.Spend(t.key, 1)
	if err != nil {
		return failed(err)
	}
	minute, ok := r.byMinute[unix/60]
	if !ok {
		minute = &counts{}
		r.byMinute[unix/60] = minute
	}
	r.total.add(d.Allowed)
	t.add(d.Allowed)
	minute.add(d.Allowed)
	if r.decided != nil {
		r.decided(d.Allowed)
	}
	return nil
}

// warnOfOrder reports what looks like logs given newest first: a server's own lines are seconds out of order.
func (r *replay) warnOfOrder() {
	if r.behind > 3600 {
		fmt.Fprintf(r.stderr, "stint: lines are up to %s older than ones before them: give the oldest log first\n",
			duration(time.Duration(r.behind)*time.Second))
	}
}

// summary is what --json prints of a replay.
type summary struct {
	Requests  int64       `json:"requests"`
	Allowed   int64       `json:"allowed"`
	Denied    int64       `json:"denied"`
	Malformed int64       `json:"malformed"`
	IDs       int         `json:"ids"`
	TopDenied []idSummary `json:"top_denied"`

	BusiestMinute *minuteSummary `json:"busiest_minute"` // null where there was no request
}

type idSummary struct {
	ID      string `json:"id"`
	Allowed int64  `json:"allowed"`
	Denied  int64  `json:"denied"`
}

// minuteSummary is a minute of the log's own time, in UTC.
type minuteSummary struct {
	Start    time.Time `json:"start"`
	Requests int64     `json:"requests"`
	Denied   int64     `json:"denied"`
}

func (r *replay) summary() summary {
	s := summary{
		Requests: r.total.requests(), Allowed: r.total.allowed, Denied: r.total.denied,
		Malformed: r.malformed, IDs: len(r.byID), TopDenied: []idSummary{},
	}
	const top = 10
	for id, t := range r.byID {
		if t.denied > 0 {
			s.TopDenied = append(s.TopDenied, idSummary{id, t.allowed, t.denied})
		}
	}
	slices.SortFunc(s.TopDenied, func(a, b idSummary) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.ID, b.ID))
	})
	s.TopDenied = s.TopDenied[:min(top, len(s.TopDenied))]
	for minute, c := range r.byMinute {
		m := &minuteSummary{time.Unix(60*minute, 0).UTC(), c.requests(), c.denied}
		if b := s.BusiestMinute; b == nil || m.Requests > b.Requests || m.Requests == b.Requests && m.Start.Before(b.Start) {
			s.BusiestMinute = m
		}
	}
	return s
}

func (f *replayFlags) print(w io.Writer, s summary) error {
	if f.json {
		return printJSON(w, s)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "requests   %d\nallowed    %d\ndenied     %d\nmalformed  %d\nids        %d\n", s.Requests, s.Allowed, s.Denied, s.Malformed, s.IDs)
	if m := s.BusiestMinute; m != nil {
		fmt.Fprintf(&b, "\nbusiest minute  %s UTC: %s, %d denied\n", m.Start.Format("2006-01-02 15:04"), plural(int(m.Requests), "request"), m.Denied)
	}
	if len(s.TopDenied) > 0 {
		fmt.Fprintf(&b, "\ndenied most\n")
	}
	for _, id := range s.TopDenied {
		fmt.Fprintf(&b, "%8d of %d  %s\n", id.Denied, id.Allowed+id.Denied, printable(id.ID))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
