package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

type decideFlags struct {
	db     dbFlags
	limits limitFlags
	out    console.Output
	cost   int64

	open func(f *source.File, label string) (*source.Target, error)
	act  source.Action // nil to reset

	force bool  // spend what is there if it is not enough
	leave int64 // tokens that must remain

	pid  int       // of the program that answered; 0 if the file did
	now  time.Time // of the file or the program
	done string    // first word of the output, unless "denied"
}

func spend(l source.Decider, r stint.Request) (stint.Decision, error) { return l.SpendAll(r) }
func refund(l source.Decider, r stint.Request) (stint.Decision, error) {
	if r.Spent.IsZero() {
		r.Spent = l.Now()
	}
	return l.Refund(r)
}

// reset fills buckets. When it returns, they are full on disk, too.
func reset(l source.Decider, keys ...stint.Key) error {
	if err := l.Reset(keys...); err != nil {
		return err
	}
	return l.Flush()
}

func check(l source.Decider, r stint.Request) (stint.Decision, error) {
	r.Mode = stint.CheckOnly
	return l.SpendAll(r)
}

// spendUpTo takes what is there, which may be nothing: only a hold or a block denies.
func spendUpTo(l source.Decider, r stint.Request) (stint.Decision, error) {
	r.Mode = stint.UpTo
	d, err := l.SpendAll(r)
	if err == nil && !d.Allowed {
		r.Cost = 0
		return check(l, r)
	}
	return d, err
}

func newAllow() *cobra.Command {
	return newDecision(&decideFlags{open: source.Writing.Target, act: spend, done: "allowed"},
		&cobra.Command{
			Use:   "allow ID",
			Short: "Spend tokens of ID's bucket if they are there",
			Long: `Spend tokens of ID's bucket if they are there. The exit status is 0 if they were spent, and 1 if not.
What was spent is on disk.

With --limits, the limit is the one with the label of --name, or its override for exactly this id.

--json prints one object, as check, spend and refund do: allowed, name, id, cost, remaining, limit
(burst, count, and the period as in "1m0s"; null without a limit), retry_after_ns (0 if allowed),
reset_after_ns (until the bucket is full), and pid if a program answered.

If a program has the file open and shares it (package hostlimit), the program answers, and with
--verbose a message on stderr says which process that is. The same holds for check, spend, refund,
reset, hold, run, show, list, names, stat, export and backup. The limit still comes from the flags.
--name must be a label that the program declares.

Put -- before an ID that begins with -.`,
			Example: `  stint allow --limit 3/1m alice && echo hello
  stint allow --limit 100/24h --burst 10 --cost 5 --db quota.db alice
  stint allow --limits defaults.yml --overrides overrides.yml --name NewOrdersPerAccount 12345678`,
		})
}

func newCheck() *cobra.Command {
	return newDecision(&decideFlags{open: lookAt, act: check, done: "allowed"},
		&cobra.Command{
			Use:   "check ID",
			Short: "Say what allow would, and spend nothing",
			Long: `Say what allow would answer, and spend nothing. If the answer is "allowed", the command shows what
would be left after the spend. --cost 0 shows what is left now.`,
			Example: `  stint check --limit 3/1m alice
  stint check --limit 3/1m --cost 0 --json alice`,
		})
}

// lookAt returns the target of a check, which leaves the file as it is. If nothing
// was ever spent, it is nothing.
func lookAt(f *source.File, label string) (*source.Target, error) {
	to, err := source.Reading.Target(f, label)
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(source.NoSuchLabel)) {
		return source.Nothing(label), nil
	}
	return to, err
}

func newSpend() *cobra.Command {
	f := &decideFlags{open: source.Writing.Target, act: spend, done: "spent"}
	cmd := newDecision(f, &cobra.Command{
		Use:   "spend ID",
		Short: "Spend tokens of ID's bucket, or with --force all that are there",
		Long: `Spend tokens of ID's bucket if they are there, as allow does. --force is for something that was done
anyway: if there are too few tokens, it spends those that there are. The bucket is then empty, but
owes nothing: it refills at the rate of its limit. --force spends nothing from a bucket that is held
or has a queue. --leave is for a job that must not take the last tokens: it denies if fewer would
remain, and with --force it spends what is above them.`,
		Example: `  stint spend --limit 3/1m alice
  stint spend --limit 100/1h --leave 20 mails
  stint spend --limit 100/1d --cost 150 --force alice`,
	})
	cmd.Flags().BoolVar(&f.force, "force", false, "spend all tokens if there are too few")
	cmd.Flags().Int64Var(&f.leave, "leave", 0, "how many tokens must remain in the bucket")
	return cmd
}

func newRefund() *cobra.Command {
	return newDecision(&decideFlags{open: source.Changing.Target, act: refund, done: "refunded"},
		&cobra.Command{
			Use:     "refund ID",
			Short:   "Return tokens to ID's bucket",
			Long:    `Return tokens to ID's bucket, up to its burst, and print what is left in it.`,
			Example: `  stint refund --limit 3/1m alice`,
		})
}

// newDecision completes a command that decides on one bucket.
func newDecision(f *decideFlags, cmd *cobra.Command) *cobra.Command {
	f.db.register(cmd, dbUsage)
	registerOutput(cmd, &f.out)
	f.limits.register(cmd, f.act != nil)
	if f.act != nil {
		cmd.Flags().Int64Var(&f.cost, "cost", 1, "how many tokens")
	}
	cmd.Args = oneID
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := f.decide(args[0])
		if err != nil {
			return err
		}
		if err := f.print(cmd, args[0], d); err != nil {
			return err
		}
		if !d.Allowed {
			return console.ErrDenied
		}
		return nil
	}
	return cmd
}

// decide acts on the bucket of id. When it returns, the file is closed and
// durable.
func (f *decideFlags) decide(id string) (d stint.Decision, err error) {
	label := f.limits.name
	if f.act != nil {
		label = "" // spend and its kin need an id
	}
	if err := checkID(id, label); err != nil {
		return stint.Decision{}, err
	}
	if f.cost < 0 {
		return stint.Decision{}, misuse(f.limits.cmd, "--cost %d: must be 0 or more", f.cost)
	}
	limit, limited, err := f.limits.resolve(id) // may fail, so it comes before a file is made
	if err != nil {
		return stint.Decision{}, err
	}
	if !limited {
		limit = stint.Unlimited
	}
	act := f.act
	if f.force {
		act = spendUpTo
	}
	if f.leave != 0 {
		spend := act
		act = func(l source.Decider, r stint.Request) (stint.Decision, error) {
			r.Leave = f.leave
			return spend(l, r)
		}
	}
	if act != nil {
		f.db.First = func() error { // a wrong cost fails before a file is made, too
			_, err := source.Nothing(f.limits.label()).Decide(act, limit, id, f.cost)
			return err
		}
	}
	to, err := f.open(&f.db.File, f.limits.label())
	if errors.As(err, new(source.NoSuchLabel)) && f.limits.file != "" { // the limit exists, but nothing of it was spent yet
		to, err = source.Nothing(f.limits.label()), nil
	}
	if err != nil {
		return stint.Decision{}, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	f.pid, f.now = to.PID, to.Now
	if act == nil {
		err := to.Do(stint.Unlimited, id, func(l source.Decider, key stint.Key) error { return reset(l, key) })
		return stint.Decision{Allowed: true, Remaining: cmp.Or(limit.Burst, math.MaxInt64), Limit: limit}, err
	}
	return to.Decide(act, limit, id, f.cost)
}

// decisionJSON is what --json prints of a decision. Without a limit, limit is
// null and remaining is 2⁶³−1.
type decisionJSON struct {
	Allowed bool   `json:"allowed"`
	Name    string `json:"name"`
	display.JSONID
	Cost       int64              `json:"cost"`
	Taken      int64              `json:"taken"` // fewer than the cost with spend --force, and 0 with check and refund
	Remaining  int64              `json:"remaining"`
	Limit      *display.JSONLimit `json:"limit"`
	RetryAfter time.Duration      `json:"retry_after_ns"`
	ResetAfter time.Duration      `json:"reset_after_ns"`
	PID        int                `json:"pid,omitempty"`
}

func (f *decideFlags) print(cmd *cobra.Command, id string, d stint.Decision) error {
	var asJSON any = decisionJSON{d.Allowed, f.limits.label(), display.NewJSONID(id), f.cost, d.Taken, d.Remaining,
		display.NewJSONLimit(d.Limit), d.RetryAfter, d.ResetAfter, f.pid}
	if f.act == nil {
		one := resetOneJSON{Name: f.limits.label(), JSONID: display.NewJSONID(id), Reset: true, PID: f.pid}
		if d.Limit != stint.Unlimited {
			one.Remaining, one.Limit = d.Limit.Burst, display.NewJSONLimit(d.Limit)
		}
		asJSON = one
	}
	done, state := f.done, "no limit"
	if !d.Allowed {
		done = "denied"
	}
	if d.Limit.Burst > 0 {
		state = stateOf(d, f.now)
	} else if d.Limit == stint.Blocked {
		state = "blocked"
	} else if f.act == nil {
		state = "full"
	}
	return f.out.Print(cmd.OutOrStdout(), asJSON, fmt.Sprintf("%s  %s  %s\n", done, display.Printable(id), state))
}

// stateOf returns a decision in words: "0 of 3 left, retry in 19.8s".
func stateOf(d stint.Decision, now time.Time) string {
	s := fmt.Sprintf("%d of %d left", d.Remaining, d.Limit.Burst)
	switch {
	case d.Limit.FollowsCalendar() && d.ResetAfter > 0 && d.RetryAfter <= d.ResetAfter:
		s += ", resets " + display.Reset(d.Limit, now)
	case !d.Allowed:
		s += ", retry in " + display.Duration(d.RetryAfter)
	case d.ResetAfter > 0:
		s += ", full in " + display.Duration(d.ResetAfter)
	}
	return s
}
