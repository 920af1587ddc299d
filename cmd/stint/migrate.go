package main

import (
	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/maintain"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "migrate",
		Short:   "Import buckets from another program",
		Example: `  stint migrate redis --db quota.db 6=NewOrdersPerAccount < keys-and-values`,
		Args:    noArgs,
		RunE:    needCommand,
	}
	cmd.AddCommand(newMigrateRedis())
	return cmd
}

func newMigrateRedis() *cobra.Command {
	f, dryRun := &dbFlags{}, false
	cmd := &cobra.Command{
		Use:   "redis NUMBER=LABEL...",
		Short: "Import buckets from the Redis of a Boulder server",
		Long: `Import buckets from the Redis in which Boulder, the server of Let's Encrypt, keeps rate limits.

The keys and values are read from standard input. A key is a limit's number and an id, such as
6:12345678. Its value is the TAT, the time at which the bucket is full, in Unix nanoseconds. A key and
its value are in one line, or each in a line of its own. A key with an empty value has expired.

The arguments give the numbers labels. Numbers that the file already has need none. As with import,
the whole input is read first and then saved in one step. If the file already has the bucket, the
later TAT stays.`,
		Example: `  redis-cli --scan --pattern '[0-9]*:*' > keys
  xargs redis-cli mget < keys > values
  paste keys values > keys-and-values
  stint migrate redis --db quota.db 6=NewOrdersPerAccount 1=NewRegistrationsPerIPAddress < keys-and-values`,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := parseNames(args)
			if err != nil {
				return err
			}
			in := maintain.Import{File: &f.File, DryRun: dryRun, Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout()}
			return in.Redis(cmd.Context(), names)
		},
	}
	f.register(cmd, dbUsage)
	registerDryRun(cmd, &dryRun)
	return cmd
}
