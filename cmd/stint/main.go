// Command stint keeps rate limits in a file, for scripts and for people.
// Processes that run one after another ask it whether they may do something
// again.
//
// Each command is in a file that is named after it, but allow, check, spend and
// refund are in decision.go. A command is its flags and a call: internal/console
// is how it talks to the user, internal/source opens the file or reaches the
// program that has it, internal/maintain looks after files, and logs, charts and
// the server are in internal/replay, internal/simulate and internal/serve. The exit status is the
// answer: see console.Status.
package main

import (
	"context"
	"io"
	"os"
	_ "time/tzdata" // for machines without a database of time zones: Windows, and containers from scratch

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/console"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(args)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	console.Report(stderr, err)
	return console.Status(err)
}

// commands makes the commands, except help and completion.
var commands = map[string]func() *cobra.Command{
	"allow": newAllow, "check": newCheck, "refund": newRefund, "spend": newSpend, "reset": newReset, "hold": newHold,
	"run": newRun, "serve": newServe, "limits": newLimits, "simulate": newSimulate, "replay": func() *cobra.Command { return newReplay(nil) },
	"list": newList, "show": newShow, "stat": newStat, "names": newNames, "verify": newVerify, "compact": newCompact,
	"backup": newBackup, "export": newExport, "import": newImport, "migrate": newMigrate, "version": newVersion, "man": newMan,
}

// newRoot returns the command with all others below it. If the arguments begin with the
// name of one, it has only that one, and no help of its own, because making all of that
// takes longer than a decision. man needs it all.
func newRoot(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "stint",
		RunE:          needCommand,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,

		PersistentPreRunE: checkFlags,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 { // the flag belongs to a mistyped command
			return noArgs(cmd, args)
		}
		return misuse(cmd, "%w", badValue(err))
	})
	if len(args) > 0 && commands[args[0]] != nil && args[0] != "man" {
		root.AddCommand(commands[args[0]]())
		root.CompletionOptions.DisableDefaultCmd = true
	} else {
		root.Version = thisBuild().String()
		root.Short = "Durable rate limits in one file"
		root.Long = `Durable rate limits in one file: look at them, change them, run commands within a limit, choose a
limit, and maintain the file. An error is one line on stderr. If you can do something about it, the line
says what. The output has no colors.

` + console.ExitStatusTable()
		root.Example = `  stint allow --limit 3/1m alice    # may alice do it again? 3 a minute at most
  stint list                        # who has spent what?
  stint replay --limit 20/1m --by ip access.log`
		for _, command := range commands {
			root.AddCommand(command())
		}
		adoptCompletion(root)
	}
	complete(root)
	adoptHelp(root)
	return root
}
