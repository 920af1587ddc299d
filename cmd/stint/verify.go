package main

import (
	"context"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/console"

	"github.com/stint-go/stint/internal/maintain"
)

type verifyFlags struct {
	db     dbFlags
	limits limitFlags
	repair bool
	to     string
	out    console.Output
	pages  bool // this is the process for checkPages
}

func newVerify() *cobra.Command {
	f := &verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Say whether a file is sound",
		Long: `Say whether a file is sound. Each finding is printed, and then the exit status is 3. The command reads
all of the file. It checks the structure of the pages, the checksums of records, and the sums of all
contents: a sum shows if a bit of a TAT has flipped. bbolt checks which pages are in use. The file does
not change.

With --limit or --limits, the command also counts the buckets that will be full later than their limit
allows. That is no damage: the clock was set back, or a limit was made smaller. Such a bucket counts as
empty. With --limits, a bucket's limit is the one of its label, or the override for exactly its id.

--repair writes what can be read to a new file, FILE.repaired or the one in --to, and prints what is
lost. The exit status is 0 if nothing is lost, and 3 if something is, or if no new file could be
written. If a page is lost, all pages that only it leads to are lost too, which may be most of the
file. If only a sum was wrong, nothing is lost, but an entry may be wrong, or the sum itself. Move the
new file to FILE yourself.

--json prints one object: file, sound, buckets, journaled, wrong (an array of findings),
further_behind (by label, the number of buckets that count as empty) and without_sums. With --repair
the object has file, repaired, buckets and lost (an array). The number of buckets includes Holds.`,
		Example: `  stint verify quota.db
  stint verify quota.db --limits defaults.yml --overrides overrides.yml
  stint verify quota.db --repair --to sound.db
  stint verify quota.db --json`,
		Args: atMostOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.db.named(cmd, args); err != nil {
				return err
			}
			v := maintain.Verify{File: &f.db.File, Output: f.out, Stdout: cmd.OutOrStdout(), PageCheck: pageCheck}
			if f.pages {
				return v.CheckPages()
			}
			if f.repair {
				return v.Repair(cmd.Context(), f.to)
			}
			limits, numbers, err := f.limits.load(counter())
			if err != nil {
				return err
			}
			return v.Verify(cmd.Context(), limits, numbers)
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.register(cmd, false)
	cmd.Flags().BoolVar(&f.repair, "repair", false, "copy the readable part to a new file")
	cmd.Flags().StringVar(&f.to, "to", "", "the new `FILE` of --repair (default FILE.repaired)")
	registerJSON(cmd, &f.out)
	cmd.Flags().BoolVar(&f.pages, "bbolt-pages", false, "")
	_ = cmd.Flags().MarkHidden("bbolt-pages")
	return cmd
}

// pageCheck returns this command, as the process that checks the pages.
func pageCheck(ctx context.Context, path string) *exec.Cmd {
	self, _ := os.Executable() // Run fails without it
	return commandOf(ctx, self, "verify", "--bbolt-pages", "--", path)
}

// commandOf returns the command that runs a program. Tests replace it if the
// processor is emulated.
var commandOf = exec.CommandContext
