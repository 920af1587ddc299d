package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/maintain"
)

func newExport() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the buckets of a file as JSON lines",
		Long: `Write the buckets of a file that are not full, and the holds, as JSON lines. import reads them into
another file, even if its format is of another version. The exported file does not change.

The first line is {"stint":1,"names":{"6":"Orders"}}. Each other line is a bucket,
{"name":"Orders","id":"alice","tat":N}, or a hold, {"name":"Orders","id":"alice","hold":N}. N is the
instant at which the bucket is full or the hold ends, in Unix nanoseconds. An id that is not UTF-8 is
in base64, and "base64":true says so.`,
		Example: `  stint export --db quota.db > quota.jsonl
  stint export | gzip > quota.jsonl.gz`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return maintain.Export(cmd.Context(), &f.File, cmd.OutOrStdout())
		},
	}
	f.register(cmd, dbUsage)
	return cmd
}
