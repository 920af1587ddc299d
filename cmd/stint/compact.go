package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/maintain"
)

func newCompact() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "compact [FILE]",
		Short: "Rewrite a file without its free pages",
		Long: `Rewrite a file without its free pages, and with all buckets in the tree instead of the journal. The
new file replaces the old one in one step. A bucket takes more space in the tree than in the journal,
so a file whose buckets are in the journal may not get smaller, for example after a crash. Then it
stays as it is, and the output begins with "left" instead of "compacted". If a new file turns out not
to be smaller, the output begins with "rewritten".

A program that has the file open compacts it by itself, if the file is larger than 64 MiB (8 MiB on a
32-bit system) and more than half of it is free. In a file of an older version, compact also adds the
sums that verify needs.`,
		Example: `  stint compact quota.db`,
		Args:    atMostOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.named(cmd, args); err != nil {
				return err
			}
			return maintain.Compact(cmd.Context(), &f.File, cmd.OutOrStdout())
		},
	}
	f.register(cmd, dbUsage)
	return cmd
}
