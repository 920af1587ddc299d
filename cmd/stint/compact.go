package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func newCompact() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "compact [FILE]",
		Short: "Rewrite a file without its free pages",
		Long: `Rewrite a file without its free pages, and with all buckets in their place instead of the journal: it takes
the place of the old one in one step when it is complete. A program that has the file open does that by
itself, once more than half of more than 64 MiB is free. It also gives the file sums, where an older version
wrote it without: verify needs them.`,
		Example: `  stint compact quota.db`,
		Args:    atMostOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.named(cmd, args); err != nil {
				return err
			}
			return f.compact(cmd)
		},
	}
	f.register(cmd, dbUsage)
	return cmd
}

func (f *dbFlags) compact(cmd *cobra.Command) error {
	ctx, stop := untilInterrupted(cmd)
	defer stop()
	store, err := f.openExisting()
	if err != nil {
		return err
	}
	bar := newProgress(cmd.ErrOrStderr(), "compacting", -1, false)
	before := store.Stats().Bytes
	done := make(chan error, 1)
	go func() { done <- store.Compact() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		bar.close()
		_ = store.Close() // ends Compact between two steps
		<-done
		return errInterrupted
	}
	bar.close()
	after := store.Stats().Bytes
	if err := errors.Join(err, store.Close()); err != nil {
		return failed(err)
	}
	path, _, _ := f.file()
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "compacted  %s  %s, was %s\n", visible(path), size(after), size(before))
	return failed(err)
}
