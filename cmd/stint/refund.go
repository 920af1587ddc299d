package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
)

func newRefund() *cobra.Command {
	return newDecision(&decideFlags{open: (*dbFlags).openToGive, act: (*stint.Limiter).Refund, done: "refunded"},
		&cobra.Command{
			Use:     "refund ID",
			Short:   "Return tokens to ID's bucket",
			Long:    `Return tokens to ID's bucket, up to its burst, and print what is left in it.`,
			Example: `  stint refund --limit 3/1m alice`,
		})
}
