package main

import "github.com/spf13/cobra"

func newAllow() *cobra.Command {
	return newDecision(&decideFlags{open: (*dbFlags).openToSpend, act: spend, done: "allowed"},
		&cobra.Command{
			Use:   "allow ID",
			Short: "Spend tokens of ID's bucket if they are there",
			Long: `Spend tokens of ID's bucket if they are there. The exit status is 0 if they were spent, and 1 if not.
What was spent is on disk.

--json prints one object, as check, refund and reset do: allowed, name, id, cost, remaining, limit
(burst, count, and the period as in "1m0s"; null without a limit), retry_after_ns (0 if allowed),
reset_after_ns (until the bucket is full), and pid if a program answered. With --limits, the limit is
that of the --name, or an override of exactly this id.

If a program has the file open and shares it (package hostlimit), the program answers, and a line on
stderr says which process that is. So it is with check, spend, refund, reset, hold, show, list, names,
stat, export and backup, and with run, without the line. The limit is still that of the flags, and
--name is a label of the program.

Put -- before an ID that begins with -.`,
			Example: `  stint allow --limit 3/1m alice && echo hello
  stint allow --limit 100/24h --burst 10 --cost 5 --db quota.db alice
  stint allow --limits defaults.yml --overrides overrides.yml --name NewOrdersPerAccount 12345678`,
		})
}
