package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/maintain"
)

func newBackup() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "backup TO",
		Short: "Copy a file, even while a program has it open",
		Long: `Copy a file as it is at one moment to TO, or to standard output if TO is -. TO must
not exist yet. If a program has the file open, the program sends the copy.

The copy is an ordinary file of stint.`,
		Example: `  stint backup --db quota.db quota-monday.db
  stint backup --db quota.db - | ssh backup 'cat > quota.db'`,
		Args: exactlyOne("TO", ": a file, or - for standard output"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return maintain.Backup(cmd.Context(), &f.File, args[0], cmd.OutOrStdout())
		},
	}
	f.register(cmd, dbUsage)
	return cmd
}
