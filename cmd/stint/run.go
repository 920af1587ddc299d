package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
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
		Use: "run [flags] ID -- COMMAND [ARGS...]", // flags after the -- belong to the command

		DisableFlagsInUseLine: true,

		Short: "Run a command if ID's bucket has the tokens for it",
		Long: `Run a command if ID's bucket has the tokens for it. They are spent, on disk, before it starts. The
file is not locked while the command runs. If the tokens are not there, nothing runs, and the exit
status is 75, which mail systems and schedulers take for "try later".

With --wait the command sleeps until the tokens are back and asks again, until it gets them. Then it
runs. If several commands wait, each asks a little later than the tokens are back, by a random time,
and the first to ask is the first to run: the order in which they came is not kept. --timeout bounds
the whole wait, for the tokens and for the file. If it runs out, the exit status is 75. The exit status
is 75 at once if the tokens come back after the timeout. If the wait is interrupted, nothing is spent.

If a program has the file open and shares it (see "stint help allow"), the program decides. With --wait
the command waits in the program's queue, first come, first served. If the limit bounds the queue, and
the queue is full, the exit status is 75. If the program closes the file, the wait goes on.

The exit status is the command's, or 128+N if signal N ended it. It is 127 if the command was not
found and 126 if it could not be started; neither costs a token. Signals are passed on to the
command, except the INT and QUIT that a terminal sends to both. To end a command from elsewhere while
it runs in a terminal, send TERM. Under nohup, stint and the command ignore HUP.`,
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
	f.db.LockTimeout = time.Minute // cron may start twenty at once
	cmd.Flags().Lookup("lock-timeout").DefValue = f.db.LockTimeout.String()
	f.limits.register(cmd, true)
	cmd.Flags().Int64Var(&f.cost, "cost", 1, "how many tokens")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait for the tokens")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0,
		"with --wait: the longest wait (default: no bound)")
	cmd.Flags().BoolVar(&f.refund, "refund-on-failure", false, "if the command fails, return the tokens that time has not brought back")
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, id string, command []string) error {
	if cmd.Flags().Changed("timeout") && f.timeout <= 0 {
		return misuse(cmd, "--timeout %v: must be more than 0", f.timeout)
	}
	if err := checkID(id, ""); err != nil {
		return err
	}
	if f.cost < 0 {
		return misuse(cmd, "--cost %d: must be 0 or more", f.cost)
	}
	limit, limited, err := f.limits.resolve(id)
	if err != nil {
		return err
	}
	if !limited {
		return fmt.Errorf("%s does not limit %s by %q: run needs a limit",
			f.limits.file, display.Printable(id), f.limits.name)
	}
	if limit == stint.Blocked {
		return fmt.Errorf("%w: %s", stint.ErrBlocked, display.Printable(id))
	}
	if _, err := source.Nothing(f.limits.label()).Decide(check, limit, id, f.cost); err != nil {
		return err // a wrong cost
	}
	path, err := exec.LookPath(command[0]) // before the tokens are spent
	if err != nil {
		return unstartable(command[0], err)
	}

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, console.Heeded(passedOn)...)
	defer signal.Stop(signals)
	waiting := &waiter{f: f, id: id, limit: limit}
	ctx, stop := signal.NotifyContext(cmd.Context(), console.Heeded(passedOn)...)
	err = waiting.wait(ctx)
	stop()
	if err != nil {
		return err
	}

	child := exec.Command(path, command[1:]...)
	child.Args[0] = command[0]
	child.Stdin, child.Stdout, child.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := child.Start(); err != nil {
		return errors.Join(unstartable(command[0], err), waiting.refund())
	}
	go func() {
		for s := range signals {
			if !fromTerminal(child.Stdin, s) {
				_ = child.Process.Signal(s) // it fails if the command has just ended
			}
		}
	}()
	err = child.Wait()
	signal.Stop(signals)
	close(signals)
	if err == nil {
		return nil
	}
	if child.ProcessState == nil || child.ProcessState.Success() {
		return console.Failed(err) // its output could not be copied
	}
	if f.refund {
		if err := waiting.refund(); err != nil {
			console.Report(cmd.ErrOrStderr(), fmt.Errorf("the refund failed: %w", err))
		}
	}
	return &console.Ended{Status: exitStatus(child.ProcessState)}
}

// fromTerminal reports whether the command already has the signal, because a
// terminal sends it to all processes in the foreground.
func fromTerminal(stdin io.Reader, s os.Signal) bool {
	file, ok := stdin.(*os.File)
	return ok && (s == os.Interrupt || s == syscall.SIGQUIT) && term.IsTerminal(int(file.Fd()))
}

// exitStatus returns the status that a shell would report for a process.
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
		return console.End(console.StatusNotFound, fmt.Sprintf("%s: command not found: no token was spent", display.Printable(command)))
	}
	return console.End(console.StatusNotStarted, fmt.Sprintf("%s: %v: no token was spent", display.Printable(command), err))
}
