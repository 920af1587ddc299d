package main

import (
	"errors"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
)

func newCheck() *cobra.Command {
	return newDecision(&decideFlags{open: (*dbFlags).openToLook, act: check, done: "allowed"},
		&cobra.Command{
			Use:   "check ID",
			Short: "Say what allow would, and spend nothing",
			Long: `Say what allow would answer, and spend nothing. If the answer is "allowed", the command shows what
would be left after the spend. --cost 0 shows what is left now.`,
			Example: `  stint check --limit 3/1m alice
  stint check --limit 3/1m --cost 0 --json alice`,
		})
}

// openToLook is openToSpend for check, which leaves the file as it is: it makes
// no file, and gives no label a number. If nothing was ever spent, the store is
// empty.
func (f *dbFlags) openToLook(label string) (*target, error) {
	to, err := reach(f, label, (*dbFlags).openToRead, func(store dbfile.Store) (*target, error) {
		if name, ok := numberOf(store.Labels(), label); ok {
			return &target{cmd: f.cmd, store: unsaved{store}, name: name}, nil
		}
		return nothing(), failed(store.Close())
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nothing(), nil
	}
	return to, err
}

// unsaved is a store that ignores what a Limiter deletes, such as holds that
// are over.
type unsaved struct{ dbfile.Store }

func (unsaved) Save([]stint.Change) error { return nil }

func (unsaved) SaveClock([]byte) error { return nil }
