package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newLimits() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "limits",
		Short:   "Look after files of limits, and the names of limits in a file of buckets",
		Example: "  stint limits check defaults.yml overrides.yml\n  stint limits set-names --db quota.db 6=OrdersPerAccount",
		Args:    noArgs,
		RunE:    needCommand,
	}
	cmd.AddCommand(newLimitsCheck(), newSetNames())
	return cmd
}

func newLimitsCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE [OVERRIDES...]",
		Short: "Say whether files of limits are valid, or all that is wrong in them",
		Long: `Say whether files of limits are valid, or all that is wrong in them, each with its line; then the exit status
is 2.

The limits may have any labels, and ids may be anything: what a program demands of them beyond, it says when
it loads them. An override may stand for a limit that FILE does not have.`,
		Example: `  stint limits check defaults.yml
  stint limits check defaults.yml overrides.yml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return misuse(cmd, "no FILE given")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f := limitFlags{file: args[0], overrides: args[1:], cmd: cmd}
			_, numbers, err := f.load(counter())
			if err != nil {
				return err
			}
			files := visible(strings.Join(args, " "))
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "valid  %s  %s\n", files, plural(len(numbers), "limit"))
			return failed(err)
		},
	}
}
