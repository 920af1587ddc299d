package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
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
			names, lines := in.labels, map[stint.Name]string{}
			for name, label := range names {
				if limit, ok := lineOf(names, label); ok {
					lines[name] = "\tthe queue of run --wait for " + display.Printable(names[limit])
				}
			}
			if err := in.Close(); err != nil {
				return err
			}
			var b strings.Builder
			tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				fmt.Fprintf(tw, "%d\t%s%s\n", name, display.Printable(names[name]), lines[name])
			}
			_ = tw.Flush() // a Builder does not fail
			return f.out.print(cmd, names, b.String())
		},
	}
	f.db.register(cmd, dbUsage)
	f.out.registerJSON(cmd)
	return cmd
}
