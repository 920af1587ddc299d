// Command stint keeps rate limits in a file, for scripts and for people: one process after another may ask it whether
// something may be done once more, and the file remembers.
//
// What it answers is also its exit status: see the constants.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

// The exit statuses, of every command.
const (
	statusDone        = 0
	statusDenied      = 1
	statusUsage       = 2
	statusFailed      = 3
	statusTryLater    = 75 // sysexits.h calls it EX_TEMPFAIL
	statusNotStarted  = 126
	statusNotFound    = 127
	statusInterrupted = 130
)

// exitStatuses says what they mean, for help and manual.
var exitStatuses = []struct {
	status  int
	meaning string
}{
	{statusDone, "allowed, or done"},
	{statusDenied, "denied"},
	{statusUsage, "wrong arguments, limits or input: the same again will not do better"},
	{statusFailed, "the store failed, or the answer could not be written"},
	{statusTryLater, "run: denied, try later"},
	{statusNotStarted, "run: the command could not be started"},
	{statusNotFound, "run: the command was not found"},
	{statusInterrupted, "interrupted"},
}

// exitStatusTable returns them as lines, and what else there is to know of them.
func exitStatusTable() string {
	var b strings.Builder
	b.WriteString("Exit status:\n")
	for _, s := range exitStatuses {
		fmt.Fprintf(&b, "  %3d  %s\n", s.status, s.meaning)
	}
	b.WriteString("What run runs has an exit status of its own, which is then that of stint: 128+N where signal N ended it.")
	return b.String()
}

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	report(stderr, err)
	return status(err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "stint",
		Short: "Rate limits that last, in one file",
		Long: `Rate limits that last, in one file: see what was spent, change it, run commands within a limit, plan one, and take care of the
file. An error is one line on stderr, which says what to do. Nothing is colored, with NO_COLOR in the environment or without.

` + exitStatusTable(),
		Example: `  stint allow --limit 3/1m alice    # may alice, who may three times a minute?
  stint list                        # who has spent what?
  stint replay --limit 20/1m --by ip access.log`,
		Version:       thisBuild().String(),
		RunE:          needCommand,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,

		PersistentPreRunE: noneEmpty,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 { // the flag is one of a command that was mistyped
			return noArgs(cmd, args)
		}
		if number := (*strconv.NumError)(nil); errors.As(err, &number) { // without the name of a Go function
			err = errors.New(strings.Replace(err.Error(), number.Error(), "want a number: "+number.Err.Error(), 1))
		}
		return misuse(cmd, "%w", err)
	})
	root.AddCommand(newRun(), newSimulate(), newVersion(), newMan())
	root.AddCommand(newAllow(), newCheck(), newRefund(), newReset(), newList(), newLimits(), newReplay(nil))
	root.AddCommand(newShow(), newStat(), newNames(), newSpend())
	root.AddCommand(newVerify(), newCompact(), newBackup(), newExport(), newImport(), newMigrate())
	complete(root)
	adopt(root)
	return root
}

// adopt makes the commands that cobra adds like the others: with examples, and an error for what they do not know.
func adopt(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Example = "  stint help run\n  stint help limits check"
			cmd.Run, cmd.RunE = nil, func(_ *cobra.Command, args []string) error {
				of, unknown, err := root.Find(args)
				if err != nil || len(unknown) > 0 {
					return misuse(root, "unknown command %q", strings.Join(args, " "))
				}
				of.InitDefaultHelpFlag()
				return failed(of.Help())
			}
		case "completion":
			cmd.Example = "  stint completion bash > /etc/bash_completion.d/stint"
			cmd.Args, cmd.RunE = noArgs, needCommand
			for _, shell := range cmd.Commands() {
				write := shell.RunE
				shell.Args, shell.RunE = noArgs, func(cmd *cobra.Command, args []string) error { return failed(write(cmd, args)) }
				shell.Example = map[string]string{
					"bash":       "  source <(stint completion bash)\n  stint completion bash > /etc/bash_completion.d/stint",
					"zsh":        "  source <(stint completion zsh)\n  stint completion zsh > \"${fpath[1]}/_stint\"",
					"fish":       "  stint completion fish > ~/.config/fish/completions/stint.fish",
					"powershell": "  stint completion powershell | Out-String | Invoke-Expression",
				}[shell.Name()]
			}
		}
	}
}

// needCommand is what a command that only holds others does: were it to show its help and succeed, a script that lost
// an argument would take that for "allowed".
func needCommand(cmd *cobra.Command, _ []string) error {
	return misuse(cmd, "no command given")
}

// misuse returns an error that sends the user to the command's help.
func misuse(cmd *cobra.Command, format string, args ...any) error {
	return fmt.Errorf(format+"; see %s --help", append(args, cmd.CommandPath())...)
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasSubCommands() {
		return misuse(cmd, "unknown argument %q", args[0])
	}
	cmd.SuggestionsMinimumDistance = 2 // cobra's own
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return misuse(cmd, "unknown command %q (did you mean %s?)", args[0], strings.Join(like, " or "))
	}
	return misuse(cmd, "unknown command %q", args[0])
}

// noneEmpty returns an error where a flag was given nothing, as by a variable that is not set: that asks for no default.
func noneEmpty(cmd *cobra.Command, _ []string) error {
	for _, name := range []string{"db", "limit", "limits", "name", "scenario", "snapshot", "svg", "to"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return misuse(cmd, "--%s is empty: give it a value, or leave it out", name)
		}
	}
	return nil
}

// exclusive returns an error where both flags were given.
func exclusive(cmd *cobra.Command, a, b string) error {
	if cmd.Flags().Changed(a) && cmd.Flags().Changed(b) {
		return misuse(cmd, "--%s and --%s exclude each other", a, b)
	}
	return nil
}

// errDenied is a denial that has been printed.
var errDenied = errors.New("denied")

var errInterrupted = errors.New("interrupted")

// failure is an error that is not the user's: of the store, or of stdout.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// failed returns err as a failure; nil as nil.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

func status(err error) int {
	var f failure
	var e *ended
	switch {
	case err == nil:
		return statusDone
	case errors.Is(err, errDenied):
		return statusDenied
	case errors.As(err, &f):
		return statusFailed
	case errors.As(err, &e):
		return e.status
	case errors.Is(err, errInterrupted):
		return statusInterrupted
	}
	return statusUsage
}

// hinted is an error of the library for which there is something else to do than for others of its kind.
type hinted struct {
	error
	hint error
}

func (h hinted) Unwrap() error { return h.error }

func (h hinted) Is(err error) bool { return err == h.hint }

var (
	errAskItsProgram = errors.New("locked, and only to be read")
	errBeyondRepair  = errors.New("corrupt, and not to be repaired")
	errEmpty         = errors.New("corrupt, for there is nothing in it")
)

// hints says, for errors of the library, what to do.
var hints = []struct {
	err  error
	todo string
}{
	{errAskItsProgram, "look at the status page of the program that has it open, read a copy with --snapshot URL, or wait longer with --lock-timeout"},
	{errBeyondRepair, "nothing of it can be read: take a backup, or move it away to begin a new one"},
	{errEmpty, "or name another with --db"}, // the error says to remove it
	{stint.ErrLocked, "another process has it open: try again, or wait longer with --lock-timeout"},
	{stint.ErrCorrupt, "let stint verify --repair save what can be read, move it away to begin a new one, or name another with --db"},
	{stint.ErrFormat, "use the program that wrote it, or name another file with --db"},
	{stint.ErrCostOverBurst, "no wait is long enough: lower --cost, or raise the limit's burst"},
}

// report writes err in one line, and of joined errors, as of a limits file with many mistakes, one line each.
func report(stderr io.Writer, err error) {
	if err == nil || errors.Is(err, errDenied) || err.Error() == "" {
		return
	}
	hint := ""
	for _, h := range hints {
		if errors.Is(err, h.err) {
			hint = "; " + h.todo
			break
		}
	}
	if hint == "" && errors.As(err, new(failure)) && errors.Is(err, fs.ErrPermission) {
		hint = "; see who owns the file and its directory, or name another with --db"
	}
	for line := range strings.Lines(err.Error()) {
		line = strings.ReplaceAll(": "+strings.TrimSpace(line), ": stint: ", ": ")[2:] // each error of the library has it
		fmt.Fprintf(stderr, "stint: %s%s\n", visible(line), hint)                      // what a file or a server has put into it does nothing to the terminal
	}
}
