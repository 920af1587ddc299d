package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/stint-go/stint"
)

type runFlags struct {
	db      dbFlags
	limits  limitFlags
	cost    int64
	wait    bool
	timeout time.Duration
	refund  bool
}

func newRun() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use: "run [flags] ID -- COMMAND [ARGS...]", // flags behind the -- are the command's own

		DisableFlagsInUseLine: true,

		Short: "Run a command if ID's bucket has the tokens for it",
		Long: `Run a command if ID's bucket has the tokens for it: they are spent, on disk, before it starts, and the file is not locked
while it runs. Else nothing is run, and the exit status is 75, which mail systems and schedulers take for "try later".

With --wait it waits in line instead, behind those who came before, until its turn comes: then the tokens are spent, and the
command is run. With --timeout it waits no longer than that, neither in line nor for the file: then it ends with 75, and at once
where its turn would come later. Where the limit of a limits file has a queue, it also ends so where the line is full: as many
tokens are waited for.
Interrupted while it waits, it has spent nothing. Other commands do not wait for the line: what they spend, it waits for.
The file keeps the last turn of each id at a label of its own, "LABEL line"; list and show tell of it.

The command's exit status is that of stint, 128+N where signal N ended it, 127 where it was not found and 126 where it
could not be started, either at no cost. Signals are passed on to it, but for the INT and QUIT that a terminal sends to both: to end it
from elsewhere while it runs in one, send TERM. Under nohup, both ignore HUP.`,
		Example: `  stint run --limit 10/1h backup -- rsync -a /srv/ backup:/srv/
  stint run --limit 1/1m --wait --timeout 10m api -- curl -fsS https://api.example/report
  stint run --limit 3/1d --refund-on-failure mail -- sendmail alice@example.com < letter`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash < 0:
				return misuse(cmd, "the COMMAND goes after a --")
			case dash != 1:
				return misuse(cmd, "one ID is needed before the --, not %d: quote it if it has spaces", dash)
			case len(args) == 1:
				return misuse(cmd, "no COMMAND given after the --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args[0], args[1:])
		},
	}
	f.db.register(cmd, dbUsage)
	f.db.lockTimeout = time.Minute // of twenty that cron starts at once, the last waits for nineteen
	cmd.Flags().Lookup("lock-timeout").DefValue = f.db.lockTimeout.String()
	f.limits.register(cmd, true)
	cmd.Flags().Int64Var(&f.cost, "cost", 1, "how many tokens")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait in line for the tokens")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "with --wait: no longer than this (default: as long as it takes)")
	cmd.Flags().BoolVar(&f.refund, "refund-on-failure", false, "give the tokens back if the command fails")
	return cmd
}

// ended is an exit status that is not of the others, and what there is to say of it; nothing where the command that was
// run has said it.
type ended struct {
	status int
	text   string
}

func (e *ended) Error() string { return e.text }

func (f *runFlags) run(cmd *cobra.Command, id string, command []string) error {
	if given := cmd.Flags().Changed; given("timeout") && !f.wait {
		return misuse(cmd, "--timeout goes with --wait")
	} else if given("timeout") && f.timeout <= 0 {
		return misuse(cmd, "--timeout %v: must be more than 0", f.timeout)
	}
	id, err := stint.AnyID.Canonical(id)
	if err != nil {
		return err
	}
	limit, limited, err := f.limits.resolve(id)
	if err != nil {
		return err
	}
	if !limited {
		return fmt.Errorf("%s has a limit %q for overrides only, and none for %s", f.limits.file, f.limits.name, printable(id))
	}
	if limit == stint.Blocked {
		return fmt.Errorf("%w: %s", stint.ErrBlocked, printable(id))
	}
	if f.cost > limit.Burst {
		return fmt.Errorf("%w: %d of %d", stint.ErrCostOverBurst, f.cost, limit.Burst)
	}
	path, err := exec.LookPath(command[0]) // before anything is spent on it
	if err != nil {
		return unstartable(command[0], err)
	}

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, heeded(passedOn)...)
	defer signal.Stop(signals)
	line := &line{f: f, id: id, limit: limit}
	if err := line.stand(cmd.Context(), signals); err != nil {
		return err
	}

	child := exec.Command(path, command[1:]...)
	child.Args[0] = command[0]
	child.Stdin, child.Stdout, child.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := child.Start(); err != nil {
		return errors.Join(unstartable(command[0], err), line.refund())
	}
	finished := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				if !fromTerminal(child.Stdin, s) {
					_ = child.Process.Signal(s) // an error is that it has just ended
				}
			case <-finished:
				return
			}
		}
	}()
	err = child.Wait()
	close(finished)
	if err == nil {
		return nil
	}
	if child.ProcessState == nil || child.ProcessState.Success() {
		return failed(err) // its output could not be copied
	}
	if f.refund {
		if err := line.refund(); err != nil {
			report(cmd.ErrOrStderr(), fmt.Errorf("the refund failed: %w", err))
		}
	}
	return &ended{status: exitStatus(child.ProcessState)}
}

// fromTerminal says whether a signal has reached the command by itself: a terminal sends it to all in the foreground.
func fromTerminal(stdin io.Reader, s os.Signal) bool {
	file, ok := stdin.(*os.File)
	return ok && (s == os.Interrupt || s == syscall.SIGQUIT) && term.IsTerminal(int(file.Fd()))
}

// exitStatus returns what a shell makes of the end of a process.
func exitStatus(state *os.ProcessState) int {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return state.ExitCode()
}

func unstartable(command string, err error) error {
	var execError *exec.Error
	if errors.As(err, &execError) {
		err = execError.Err
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &ended{statusNotFound, fmt.Sprintf("%s: command not found: nothing was spent", printable(command))}
	}
	return &ended{statusNotStarted, fmt.Sprintf("%s: %v: nothing was spent", printable(command), err)}
}

// line is one who wants tokens, and may have to wait for them. Who waits has a turn, an instant, and spends when it comes. The
// last turn that was given is in the file, as the TAT of the id at a label of its own: TATs of the limit itself are held to
// its tolerance, and the tokens of one who is killed while it waits are not lost.
type line struct {
	f     *runFlags
	id    string
	limit stint.Limit
	turn  int64 // Unix nanoseconds; 0 where it has none
}

// mostInLine bounds what a last turn far ahead, as after the clock was set back, can cost those who come.
const mostInLine = 1000

// stand returns when the tokens are spent.
func (l *line) stand(ctx context.Context, signals <-chan os.Signal) error {
	deadline := time.Now().Add(cmp.Or(l.f.timeout, math.MaxInt64))
	for {
		delay, err := l.step(signals, deadline)
		if err != nil {
			return err
		}
		timer := time.NewTimer(delay)
		interrupted := false
		select {
		case <-signals:
			interrupted = true
		case <-ctx.Done():
			interrupted = true
		case <-timer.C:
			interrupted = len(signals) > 0
		}
		timer.Stop()
		switch {
		case interrupted && delay == 0:
			return errors.Join(errNotRun, l.refund())
		case interrupted:
			return errors.Join(errNotRun, l.leave())
		case delay == 0:
			return nil
		}
	}
}

var errNotRun = fmt.Errorf("%w: the command was not run, and nothing is spent", errInterrupted)

// step spends the tokens, or takes a turn. It returns how long that is ahead: 0 where the tokens are spent.
func (l *line) step(signals <-chan os.Signal, deadline time.Time) (delay time.Duration, err error) {
	db, outOfTime := l.f.db, false
	if left := max(1, time.Until(deadline)); left < db.lockTimeout { // one whose turn comes with the deadline does not wait, and may spend
		db.lockTimeout, outOfTime = left, true
	}
	var store *stint.BoltStore
	opened := make(chan error, 1)
	go func() {
		var err error
		store, err = db.open()
		opened <- err
	}()
	select {
	case err = <-opened:
	case <-signals: // the lock, if it is had by now, ends with this process
		err = errNotRun
	}
	if outOfTime && errors.Is(err, stint.ErrLocked) {
		return 0, &ended{statusTryLater, fmt.Sprintf("%v: retry, or wait longer with --timeout", err)}
	}
	if err != nil {
		return 0, err
	}
	delay, err = l.spend(store, time.Now(), deadline)
	return delay, errors.Join(err, failed(store.Close()))
}

// spend is step, of the open file.
func (l *line) spend(store *stint.BoltStore, now, deadline time.Time) (delay time.Duration, err error) {
	last, err := l.last(store, now)
	if err != nil {
		return 0, err
	}
	if l.turn != 0 || last <= now.UnixNano() {
		d, err := l.decide(store, (*stint.Limiter).Spend)
		if err != nil || d.Allowed {
			return 0, err
		}
		delay = d.RetryAfter // of one whose turn has come: somebody who was not in line was quicker
	}
	first := l.turn == 0
	if first {
		delay = max(delay, time.Duration(last+l.needs()-now.UnixNano()))
	}
	full := first && l.limit.Queue > 0 && int64((delay-1)/l.limit.Interval()) >= l.limit.Queue
	if l.f.wait && full {
		place := delay - time.Duration(l.limit.Queue)*l.limit.Interval() // which it has before its turn
		return 0, &ended{statusTryLater, fmt.Sprintf("%s is denied by %s: the line is full, with %s waiting at most: retry in %s",
			printable(l.id), l.limit, plural(int(l.limit.Queue), "token"), duration(place))}
	}
	if !l.f.wait || delay > deadline.Sub(now) {
		todo := ", or wait in line with --wait"
		if l.f.wait {
			todo = ", or wait longer with --timeout"
		} else if full {
			todo = ""
		}
		return 0, &ended{statusTryLater, fmt.Sprintf("%s is denied by %s: retry in %s%s", printable(l.id), l.limit, duration(delay), todo)}
	}
	if first {
		l.turn = now.Add(delay).UnixNano()
		err = l.setLast(store, l.turn)
	}
	return delay, err
}

// needs returns the time in which the tokens come back, nanoseconds.
func (l *line) needs() int64 { return l.f.cost * int64(l.limit.Interval()) }

// label is that of the last turns.
func (l *line) label() string { return l.f.limits.label() + lineSuffix }

const lineSuffix = " line"

// lineOf returns the limit whose last turns are at a label of a file; none where the label is one like others.
func lineOf(store *stint.BoltStore, label string) (limit stint.Name, ok bool) {
	if label, ok = strings.CutSuffix(label, lineSuffix); ok {
		limit, ok = numberOf(store, label)
	}
	return limit, ok
}

// last returns the last turn that was given; 0 if none was.
func (l *line) last(store *stint.BoltStore, now time.Time) (int64, error) {
	name, ok := numberOf(store, l.label())
	if !ok {
		return 0, nil
	}
	last, err := store.Load(name.Key(l.id))
	interval := int64(l.limit.Interval())
	most := min(mostInLine, (math.MaxInt64-now.UnixNano()-l.needs())/interval) // so that the turn after it is an int64 too
	return min(last, now.UnixNano()+most*interval), failed(err)
}

func (l *line) setLast(store *stint.BoltStore, turn int64) error {
	name, err := numberFor(store, l.label())
	if err != nil {
		return failed(err)
	}
	return failed(store.Save([]stint.Change{{Key: name.Key(l.id), TAT: turn}}))
}

// leave gives up the turn. Those behind keep theirs.
func (l *line) leave() error {
	return l.again(func(store *stint.BoltStore) error {
		last, err := l.last(store, time.Now())
		if err == nil && last == l.turn {
			err = l.setLast(store, last-l.needs())
		}
		return err
	})
}

// refund gives the tokens back.
func (l *line) refund() error {
	return l.again(func(store *stint.BoltStore) error {
		_, err := l.decide(store, (*stint.Limiter).Refund)
		return err
	})
}

func (l *line) again(do func(*stint.BoltStore) error) error {
	store, err := l.f.db.openExisting()
	if err != nil {
		return err
	}
	return errors.Join(do(store), failed(store.Close()))
}

// keepOpen is a store that outlives its Limiter.
type keepOpen struct{ stint.Store }

func (keepOpen) Close() error { return nil }

// decide does one thing to the bucket. When it returns, that is on disk.
func (l *line) decide(store *stint.BoltStore, act action) (stint.Decision, error) {
	name, err := numberFor(store, l.f.limits.label())
	if err != nil {
		return stint.Decision{}, failed(err)
	}
	f := &decideFlags{limits: l.f.limits}
	limiter, err := f.limiter(keepOpen{store}, name, l.limit, true)
	if err != nil {
		return stint.Decision{}, failed(err)
	}
	d, err := act(limiter, name.Key(l.id), l.f.cost)
	if err != nil && !isUsage(err) {
		err = failed(err)
	}
	return d, errors.Join(err, failed(limiter.Close()))
}
