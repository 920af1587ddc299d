package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/fsck"
)

type verifyFlags struct {
	db     dbFlags
	limits limitFlags
	repair bool
	to     string
	out    outputFlags
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
the object has file, repaired, buckets and lost (an array). The number of buckets includes holds.`,
		Example: `  stint verify quota.db
  stint verify quota.db --limits defaults.yml --overrides overrides.yml
  stint verify quota.db --repair --to sound.db
  stint verify quota.db --json`,
		Args: atMostOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.db.named(cmd, args); err != nil {
				return err
			}
			if f.pages {
				return failed(checkPages(cmd.OutOrStdout(), f.db.path, f.db.lockTimeout))
			}
			if f.repair {
				return f.salvage(cmd)
			}
			return f.verify(cmd)
		},
	}
	f.db.register(cmd, dbUsage)
	f.limits.register(cmd, false)
	cmd.Flags().BoolVar(&f.repair, "repair", false, "copy the readable part to a new file")
	cmd.Flags().StringVar(&f.to, "to", "", "the new `FILE` of --repair (default FILE.repaired)")
	f.out.registerJSON(cmd)
	cmd.Flags().BoolVar(&f.pages, "bbolt-pages", false, "")
	_ = cmd.Flags().MarkHidden("bbolt-pages")
	return cmd
}

func (f *verifyFlags) verify(cmd *cobra.Command) error {
	limits, numbers, err := f.limits.load(counter())
	if err != nil {
		return err
	}
	path, _, err := f.db.file()
	if err != nil {
		return err
	}
	var found verified
	store, err := f.db.open(reading)
	if err == nil {
		err = errors.Join(found.look(cmd, store, path, f.db.lockTimeout, limits, numbers), store.Close())
	}
	switch {
	case errors.Is(err, stint.ErrCorrupt):
		return failed(f.wrong(cmd, path, err))
	case err != nil:
		return failed(err)
	}
	asJSON := verifiedJSON{path, true, &found.Buckets, &found.Journaled, []string{}, found.ahead, found.Unsummed}
	return f.out.print(cmd, asJSON, found.words(path))
}

type verifiedJSON struct {
	File          string         `json:"file"`
	Sound         bool           `json:"sound"`
	Buckets       *int64         `json:"buckets,omitempty"` // nil unless Sound
	Journaled     *int64         `json:"journaled,omitempty"`
	Wrong         []string       `json:"wrong"`
	FurtherBehind map[string]int `json:"further_behind,omitempty"`
	WithoutSums   []string       `json:"without_sums,omitempty"`
}

type salvagedJSON struct {
	File     string   `json:"file"`
	Repaired string   `json:"repaired"`
	Buckets  int64    `json:"buckets"`
	Lost     []string `json:"lost"`
}

// wrong prints the findings, and returns an error that counts them.
func (f *verifyFlags) wrong(cmd *cobra.Command, path string, err error) error {
	wrong := findings(err)
	if err := f.out.print(cmd, verifiedJSON{File: path, Wrong: wrong}, asLines("wrong  ", wrong)); err != nil {
		return err
	}
	if errors.As(err, new(hinted)) { // of ifEmpty
		return fmt.Errorf("%s is not sound: it is empty, so nothing can be repaired", path)
	}
	return fmt.Errorf("%s is not sound: %s; stint verify --repair copies the readable part to a new file",
		path, display.Plural(len(wrong), "finding"))
}

func asLines(first string, findings []string) string {
	var text strings.Builder
	for _, line := range findings {
		text.WriteString(first + display.Visible(line) + "\n")
	}
	return text.String()
}

// verified has the counts of a sound file.
type verified struct {
	fsck.Verified
	ahead map[string]int // by label, the buckets that tooFarAhead counts
}

func (v *verified) look(cmd *cobra.Command, store dbfile.Store, path string, lockTimeout time.Duration,
	limits *stint.Limits, numbers map[string]stint.Name) (err error) {
	bar := newProgress(cmd.ErrOrStderr(), "verifying", -1, false)
	defer bar.close()
	if v.Verified, err = fsck.Verify(path, lockTimeout, bar.add); err != nil {
		return err
	}
	if err := askBbolt(cmd.Context(), path); err != nil {
		return err
	}
	now, err := timeOf(cmd, store)
	if err != nil {
		return err
	}
	v.ahead, err = tooFarAhead(store, limits, numbers, now)
	return err
}

func (v *verified) words(path string) string {
	s := fmt.Sprintf("sound  %s  %s, %s in the journal\n",
		display.Visible(path), display.Plural(int(v.Buckets), "bucket"), display.Plural(int(v.Journaled), "entry"))
	for _, label := range slices.Sorted(maps.Keys(v.ahead)) {
		s += fmt.Sprintf("note   %s of %s will be full later than the limit allows: each counts as empty\n",
			display.Plural(v.ahead[label], "bucket"), display.Printable(label))
	}
	if len(v.Unsummed) > 0 {
		s += fmt.Sprintf("note   without sums: %s; a changed byte there would not be noticed: "+
			"an older version wrote the file, and stint compact adds the sums\n",
			strings.Join(v.Unsummed, ", "))
	}
	return s
}

// commandOf returns the command that runs a program. Tests replace it if the
// processor is emulated.
var commandOf = exec.CommandContext

// askBbolt runs bbolt's check of the pages in another process, because a
// damaged page may end that process.
func askBbolt(ctx context.Context, path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var stdout, stderr bytes.Buffer
	cmd := commandOf(ctx, self, "verify", "--bbolt-pages", "--", path)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	exit := (*exec.ExitError)(nil)
	if err := cmd.Run(); errors.As(err, &exit) && !exit.Exited() { // killed, for example for want of memory
		return fmt.Errorf("bbolt's check of %s ended with %w", path, err)
	} else if exit != nil {
		first, _, _ := strings.Cut(stderr.String(), "\n")
		return fmt.Errorf("%w: %s: bbolt's check ended with %w: %s", stint.ErrCorrupt, path, err, first)
	} else if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(stdout.String()) {
		errs = append(errs, fmt.Errorf("%w: %s: bbolt finds: %s", stint.ErrCorrupt, path, strings.TrimSpace(line)))
	}
	return errors.Join(errs...)
}

// checkPages is bbolt's check. It prints a line for each of the first 20
// findings.
func checkPages(w io.Writer, path string, lockTimeout time.Duration) error {
	const most = 20
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: lockTimeout})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		n := 0
		for found := range tx.Check() {
			if n++; n <= most && err == nil {
				_, err = fmt.Fprintf(w, "%q\n", found.Error())
			}
		}
		return err
	})
}

// salvage copies the readable part to a new file.
func (f *verifyFlags) salvage(cmd *cobra.Command) error {
	ctx, stop := untilInterrupted(cmd)
	defer stop()
	path, _, err := f.db.file()
	if err != nil {
		return err
	}
	to := cmp.Or(f.to, path+".repaired")
	bar := newProgress(cmd.ErrOrStderr(), "repairing", -1, false)
	found, err := fsck.Salvage(path, to, f.db.lockTimeout, func(n int) error {
		bar.add(n)
		return interruption(ctx)
	})
	bar.close()
	switch {
	case ctx.Err() != nil && err != nil:
		return errInterrupted
	case errors.Is(err, fs.ErrExist):
		return failed(fmt.Errorf("make %s: %w; name another with --to", to, fs.ErrExist))
	case errors.Is(err, stint.ErrCorrupt):
		return failed(hinted{err, "nothing in it can be read: restore a backup, or move the file away to begin a new one"})
	case err != nil:
		return failed(err)
	}
	lost := findings(errors.Join(found.Lost...))
	err = f.out.print(cmd, salvagedJSON{path, to, found.Buckets, lost}, asLines("lost  ", lost)+
		fmt.Sprintf("repaired  %s  %s, findings: %d\n",
			display.Visible(to), display.Plural(int(found.Buckets), "bucket"), len(lost)))
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%s is not all of %s: read what was lost before you use it", to, path)
	}
	return failed(err)
}

// tooFarAhead counts, by label, the buckets that will be full later than their
// limit allows.
func tooFarAhead(store dbfile.Store, limits *stint.Limits, numbers map[string]stint.Name, now time.Time) (
	map[string]int, error) {
	ahead := map[string]int{}
	for name, label := range store.Labels() {
		number, ok := numbers[label]
		if !ok {
			continue
		}
		for c, err := range store.All(name) {
			if err != nil {
				return nil, err
			}
			limit, ok := limits.For(number.Key(c.Key.ID))
			if !ok || limit.IsBlocked() {
				continue
			}
			most := now.Add(limit.Tolerance())
			if limit.FollowsCalendar() { // a lease is an eighth of the quota ahead at most
				_, most = limit.PeriodAt(now)
				most = most.Add(time.Duration(limit.Burst + limit.Burst/8 + 1))
			}
			if time.Unix(0, c.TAT).After(most) {
				ahead[label]++
			}
		}
	}
	return ahead, nil
}
