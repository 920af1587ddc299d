package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func newCompact() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "compact [FILE]",
		Short: "Rewrite a file without its free pages",
		Long: `Rewrite a file without its free pages, and with all buckets in their place instead of the journal: it takes the place of the old one in one step when it is complete. A program that has the
file open does that by itself, once more than half of more than 64 MiB is free. It also gives the file sums, where an
older version wrote it without: verify needs them.`,
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
		_ = store.Close() // which ends it between two steps
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

func newBackup() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "backup TO",
		Short: "Copy a file, or that of a running program",
		Long: `Copy a file as it is at one moment to TO, where there must be none, or with TO - to standard output. The file of a running program is
copied from its status page with --snapshot, where the page allows it; others have to wait until nobody has the file open.

The copy is a file like any other.`,
		Example: `  stint backup --db quota.db quota-monday.db
  stint backup --snapshot http://localhost:8080/limits quota-monday.db
  stint backup --db quota.db - | ssh backup 'cat > quota.db'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return misuse(cmd, "one TO is needed, not %d: a file, or - for standard output", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.backup(cmd, args[0]) },
	}
	f.registerToRead(cmd)
	return cmd
}

func (f *dbFlags) backup(cmd *cobra.Command, to string) error {
	store, err := f.openToRead(cmd)
	if err != nil {
		return err
	}
	bar := newProgress(cmd.ErrOrStderr(), "copying", store.Stats().Bytes, true)
	var n int64
	if to == "-" {
		n, err = store.Snapshot(bar.writer(cmd.OutOrStdout()))
	} else {
		ctx, stop := untilInterrupted(cmd)
		defer stop()
		err = newFile(to, func(w io.Writer) error {
			n, err = store.Snapshot(bar.writer(writerFunc(func(b []byte) (int, error) {
				if err := interruption(ctx); err != nil {
					return 0, err
				}
				return w.Write(b)
			})))
			return err
		})
	}
	bar.close()
	if err := errors.Join(err, store.Close()); errors.Is(err, errInterrupted) {
		return errInterrupted
	} else if err != nil || to == "-" {
		return failed(err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "copied  %s  %s\n", visible(to), size(n))
	return failed(err)
}

type writerFunc func(b []byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }

// newFile makes a file under another name, and gives it its own when it is complete. There must be none.
func newFile(path string, write func(w io.Writer) error) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("%s is there already: name another file, or move it away", path)) // or it cannot be looked at
	}
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	if err := errors.Join(write(temp), temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
