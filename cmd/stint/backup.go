package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func newBackup() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "backup TO",
		Short: "Copy a file, even while a program uses it",
		Long: `Copy a file as it is at one moment to TO, or to standard output if TO is -. There must be no file TO.
--snapshot copies the file of a running program from its status page, if the page allows it. Otherwise the
command waits until no program has the file open.

The copy is an ordinary file of stint.`,
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
	store, err := f.openToRead()
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
