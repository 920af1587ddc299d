package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/display"
)

func newBackup() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "backup TO",
		Short: "Copy a file, even while a program has it open",
		Long: `Copy a file as it is at one moment to TO, or to standard output if TO is -. TO must
not exist yet. If a program has the file open, the program sends the copy.

The copy is an ordinary file of stint.`,
		Example: `  stint backup --db quota.db quota-monday.db
  stint backup --db quota.db - | ssh backup 'cat > quota.db'`,
		Args: exactlyOne("TO", ": a file, or - for standard output"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.backup(cmd, args[0]) },
	}
	f.register(cmd, dbUsage)
	return cmd
}

func (f *dbFlags) backup(cmd *cobra.Command, to string) (err error) {
	open := func() (*source, error) { return f.reach(reading) }
	if to == "-" { // a reader that stalls would break off what a program sends
		open = f.look
	}
	from, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	ctx, stop := untilInterrupted(cmd) // before there is a file that would be left behind
	defer stop()
	if to == "-" {
		_, err = f.copy(ctx, from, cmd.OutOrStdout())
		return err
	}
	var n int64
	if err = newFile(to, func(w io.Writer) error {
		n, err = f.copy(ctx, from, w)
		return err
	}); errors.Is(err, errInterrupted) {
		return errInterrupted
	} else if err != nil {
		return failed(err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "copied  %s  %s\n", display.Visible(to), display.Size(n))
	return failed(err)
}
