package main

import "github.com/spf13/cobra"

func newAllow() *cobra.Command {
	return newDecision(&decideFlags{open: writing.target, act: spend, done: "allowed"},
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
