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
not change. The label "LABEL line" is not a limit. It is the queue, or waiting line, of the limit
LABEL: under it "run --wait" keeps the last turn of each id.

--json prints one object, with the labels by number.`,
		Example: `  stint names
  stint names --db quota.db --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := f.db.look()
			if err != nil {
				return err
			}
			if err := in.Close(); err != nil {
				return err
			}
			names, rows := in.labels, [][]string{}
			for _, name := range slices.Sorted(maps.Keys(names)) {
				row := []string{fmt.Sprint(name), display.Printable(names[name])}
				if limit, ok := lineOf(names, names[name]); ok {
					row = append(row, "the queue of run --wait for "+display.Printable(names[limit]))
				}
				rows = append(rows, row)
			}
			return f.out.print(cmd, names, display.Columns(rows))
		},
	}
	f.db.register(cmd, dbUsage)
	f.out.registerJSON(cmd)
	return cmd
}
