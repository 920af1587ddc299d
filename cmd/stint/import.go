package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/maintain"
)

func newImport() *cobra.Command {
	f, dryRun := &dbFlags{}, false
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Put the buckets of an export into a file",
		Long: `Put the buckets of an export into a file. A missing file is made. The export is read from FILE, or
from standard input, to its end. Then all its buckets are saved in one step. If the export has a
mistake, none is saved. More than a few thousand go to a copy of the file, which takes its place. So
there must be space for both, and for a copy of standard input in TMPDIR.

If the file already has the bucket of an id, the fuller one is dropped, so no id gains tokens. Of two
holds, the one that ends later stays. A limit that the file already has keeps its number there. A new
limit keeps the number that it has in the export, unless the file uses that number.`,
		Example: `  stint import --db quota.db quota.jsonl
  gzip -dc quota.jsonl.gz | stint import --db quota.db`,
		Args: atMostOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := maintain.Import{File: &f.File, DryRun: dryRun, Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout()}
			if len(args) > 0 {
				in.Path = args[0]
			}
			return in.Export(cmd.Context())
		},
	}
	f.register(cmd, dbUsage)
	registerDryRun(cmd, &dryRun)
	return cmd
}

func registerDryRun(cmd *cobra.Command, dryRun *bool) {
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "print how much would be imported at most, and write nothing")
}
