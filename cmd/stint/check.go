package main

import (
	"errors"
	"io/fs"

	"github.com/spf13/cobra"
)

func newCheck() *cobra.Command {
	return newDecision(&decideFlags{open: lookAt, act: check, done: "allowed"},
		&cobra.Command{
			Use:   "check ID",
			Short: "Say what allow would, and spend nothing",
			Long: `Say what allow would answer, and spend nothing. If the answer is "allowed", the command shows what
would be left after the spend. --cost 0 shows what is left now.`,
			Example: `  stint check --limit 3/1m alice
  stint check --limit 3/1m --cost 0 --json alice`,
		})
}

// lookAt returns the target of a check, which leaves the file as it is. If nothing
// was ever spent, it is nothing.
func lookAt(f *dbFlags, label string) (*target, error) {
	to, err := reading.target(f, label)
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(noSuchLabel)) {
		return nothing(), nil
	}
	return to, err
}
