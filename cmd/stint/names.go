package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/display"
)

func newNames() *cobra.Command {
	f := &statFlags{}
	cmd := &cobra.Command{
		Use:   "names",
		Short: "Show the labels of the limits in a file, by number",
		Long: `Show the labels of the limits in a file, by number. "limits set-names" changes labels. The file does
not change.

--json prints one object, with the labels by number.`,
		Example: `  stint names
  stint names --db quota.db --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := f.db.Look(cmd.Context())
			if err != nil {
				return err
			}
			if err := in.Close(); err != nil {
				return err
			}
			names, rows := in.Labels, [][]string{}
			for _, name := range slices.Sorted(maps.Keys(names)) {
				rows = append(rows, []string{fmt.Sprint(name), display.Printable(names[name])})
			}
			return f.out.Print(cmd.OutOrStdout(), names, display.Columns(rows))
		},
	}
	f.db.register(cmd, dbUsage)
	registerJSON(cmd, &f.out)
	return cmd
}
