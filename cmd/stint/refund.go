package main

import "github.com/spf13/cobra"

func newRefund() *cobra.Command {
	return newDecision(&decideFlags{open: changing.target, act: refund, done: "refunded"},
		&cobra.Command{
			Use:     "refund ID",
			Short:   "Return tokens to ID's bucket",
			Long:    `Return tokens to ID's bucket, up to its burst, and print what is left in it.`,
			Example: `  stint refund --limit 3/1m alice`,
		})
}
