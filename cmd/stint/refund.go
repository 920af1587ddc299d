package main

import "github.com/spf13/cobra"

func newRefund() *cobra.Command {
	return newDecision(&decideFlags{open: (*dbFlags).openToGive, act: refund, done: "refunded"},
		&cobra.Command{
			Use:     "refund ID",
			Short:   "Give tokens back to ID's bucket",
			Long:    `Give tokens back to ID's bucket, which holds no more than its burst, and say what is in it then.`,
			Example: `  stint refund --limit 3/1m alice`,
		})
}
