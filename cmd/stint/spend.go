package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

func newSpend() *cobra.Command {
	f := &decideFlags{open: writing.target, act: spend, done: "spent"}
	cmd := newDecision(f, &cobra.Command{
		Use:   "spend ID",
		Short: "Spend tokens of ID's bucket, or with --force all that are there",
		Long: `Spend tokens of ID's bucket if they are there, as allow does. --force is for something that was done
anyway: if there are too few tokens, it spends those that there are. The bucket is then empty, but
owes nothing: it refills at the rate of its limit. --force spends nothing from a bucket that is held
or has a queue.`,
		Example: `  stint spend --limit 3/1m alice
  stint spend --limit 100/1d --cost 150 --force alice`,
	})
	cmd.Flags().BoolVar(&f.force, "force", false, "spend all tokens if there are too few")
	return cmd
}

func spendUpTo(l decider, r stint.Request) (stint.Decision, error) {
	r.Mode = stint.UpTo
	return l.SpendAll(r)
}
