package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/source"
)

// dbFlags name the file of the buckets.
type dbFlags struct{ source.File }

const dbUsage = "the `FILE` of the buckets (default stint.db in the user's state directory)"

func (f *dbFlags) register(cmd *cobra.Command, usage string) {
	f.Stderr = cmd.ErrOrStderr
	cmd.Flags().StringVar(&f.Path, "db", "", usage)
	cmd.Flags().DurationVar(&f.LockTimeout, "lock-timeout", 5*time.Second,
		"wait this long for another process to close the file")
	cmd.Flags().BoolVar(&f.Verbose, "verbose", false, "say on stderr which process has the file open")
	_ = cmd.MarkFlagFilename("db", "db")
}

// named takes the file from the argument, if there is one.
func (f *dbFlags) named(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Flags().Changed("db") {
		return misuse(cmd, "FILE and --db exclude each other")
	}
	if f.Path = args[0]; f.Path == "" {
		return misuse(cmd, "FILE is empty: name a file, or leave the argument out")
	}
	return nil
}
