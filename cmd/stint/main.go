// Command stint keeps rate limits in a file, for scripts and for people.
// Processes that run one after another ask it whether they may do something
// again.
//
// Each command is in a file that is named after it, but allow, check, spend and
// refund are in decision.go. The exit status is the answer: see errors.go. Read
// the shared files in this order, and then the commands in any order: errors,
// args, signals, file, store, clock, progress, output, source, bucket, target,
// limitflags, decision, line, shares. Logs and charts are in packages of
// their own: internal/replay, internal/simulate. The server is in serve_listen,
// serve_limits, serve_throttle, serve_commands, serve_conn and serve, and its
// protocol in internal/resp.
package main

import (
	"context"
	"io"
	"os"
	_ "time/tzdata" // for machines without a database of time zones: Windows, and containers from scratch

	"github.com/spf13/cobra"
)

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
		Short: "Durable rate limits in one file",
		Long: `Durable rate limits in one file: look at them, change them, run commands within a limit, choose a
limit, and maintain the file. An error is one line on stderr. If you can do something about it, the line
says what. The output has no colors.

` + exitStatusTable(),
		Example: `  stint allow --limit 3/1m alice    # may alice do it again? 3 a minute at most
  stint list                        # who has spent what?
  stint replay --limit 20/1m --by ip access.log`,
		Version:       thisBuild().String(),
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
	root.AddCommand(newRun(), newServe(), newSimulate(), newVersion(), newMan())
	root.AddCommand(newAllow(), newCheck(), newRefund(), newReset(), newHold(), newList(), newLimits(), newReplay(nil))
	root.AddCommand(newShow(), newStat(), newNames(), newSpend())
	root.AddCommand(newVerify(), newCompact(), newBackup(), newExport(), newImport(), newMigrate())
	complete(root)
	adoptHelp(root)
	adoptCompletion(root)
	return root
}
