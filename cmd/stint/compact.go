package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
)

func newCompact() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "compact [FILE]",
		Short: "Rewrite a file without its free pages",
		Long: `Rewrite a file without its free pages, and with all buckets in the tree instead of the journal. The
new file replaces the old one in one step. A bucket takes more space in the tree than in the journal,
so a file whose buckets were in the journal may grow, for example after an import. If the new file is
not smaller, the output begins with "rewritten" instead of "compacted".

A program that has the file open compacts it by itself, if the file is larger than 64 MiB (8 MiB on a
32-bit system) and more than half of it is free. In a file of an older version, compact also adds the
sums that verify needs.`,
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
	store, err := f.open(changing)
	if err != nil {
		return err
	}
	ctx, stop := untilInterrupted(cmd) // not before: a signal ends the wait for the file
	defer stop()
	before := store.Stats()
	alive := context.AfterFunc(ctx, func() { _ = store.Close() }) // ends Compact between two steps
	if err = store.Compact(); !alive() {
		_ = store.Close()
		return errInterrupted
	}
	after := store.Stats().Bytes
	if err := errors.Join(err, store.Close()); err != nil {
		return failed(err)
	}
	path, _, _ := f.file()
	_, err = fmt.Fprintln(cmd.OutOrStdout(), compacted(display.Visible(path), before, after))
	return failed(err)
}

// compacted returns the result in words. A bucket takes more space in the tree
// than in the journal, so the file may grow.
func compacted(path string, before stint.FileStats, after int64) string {
	sizes := fmt.Sprintf("%s  %s, was %s", path, display.Size(after), display.Size(before.Bytes))
	switch {
	case after < before.Bytes:
		return "compacted  " + sizes
	case before.Journaled > 0:
		return "rewritten  " + sizes + ": " + display.Plural(int(before.Journaled), "bucket") + " moved from the journal to the tree"
	}
	return "rewritten  " + sizes + ": it could not be made smaller"
}
