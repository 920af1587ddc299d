package maintain

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/fsck"
	"github.com/stint-go/stint/internal/source"
)

// Verify says whether a file is sound.
type Verify struct {
	File   *source.File
	Output console.Output
	Stdout io.Writer

	PageCheck func(ctx context.Context, path string) *exec.Cmd // for AskBbolt
}

// Verify checks the file, and by label the buckets that limits have.
func (f *Verify) Verify(ctx context.Context, limits *stint.Limits, numbers map[string]stint.Name) error {
	path, _, err := f.File.Locate()
	if err != nil {
		return err
	}
	var found verified
	store, err := f.File.Open(source.Reading)
	if err == nil {
		err = errors.Join(found.look(f.File, f.PageCheck(ctx, path), store, path, limits, numbers), store.Close())
	}
	switch {
	case errors.Is(err, stint.ErrCorrupt):
		return console.Failed(f.wrong(path, err))
	case err != nil:
		return console.Failed(err)
	}
	asJSON := verifiedJSON{path, true, &found.Buckets, &found.Journaled, []string{}, found.ahead, found.Unsummed}
	return f.Output.Print(f.Stdout, asJSON, found.words(path))
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
func (f *Verify) wrong(path string, err error) error {
	wrong := console.Findings(err)
	if err := f.Output.Print(f.Stdout, verifiedJSON{File: path, Wrong: wrong}, asLines("wrong  ", wrong)); err != nil {
		return err
	}
	if errors.As(err, new(console.Hinted)) { // of ifEmpty
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

func (v *verified) look(f *source.File, pageCheck *exec.Cmd, store dbfile.Store, path string,
	limits *stint.Limits, numbers map[string]stint.Name) (err error) {
	bar := console.NewProgress(f.ErrOut(), "verifying", -1, false)
	defer bar.Close()
	if v.Verified, err = fsck.Verify(path, f.LockTimeout, bar.Add); err != nil {
		return err
	}
	bar.Next("checking the pages", -1)
	if err := AskBbolt(pageCheck, path); err != nil {
		return err
	}
	bar.Next("comparing with the limits", -1)
	now, err := f.TimeOf(store)
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

// AskBbolt runs bbolt's check of the pages in another process, because a
// damaged page may end that process: cmd calls CheckPages.
func AskBbolt(cmd *exec.Cmd, path string) error {
	var stdout, stderr bytes.Buffer
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

// CheckPages is bbolt's check, in the process for it.
func (f *Verify) CheckPages() error {
	return console.Failed(checkPages(f.Stdout, f.File.Path, f.File.LockTimeout))
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

// Repair copies the readable part to a new file: to, or FILE.repaired.
func (f *Verify) Repair(ctx context.Context, to string) error {
	ctx, stop := console.UntilInterrupted(ctx)
	defer stop()
	path, _, err := f.File.Locate()
	if err != nil {
		return err
	}
	to = cmp.Or(to, path+".repaired")
	bar := console.NewProgress(f.File.ErrOut(), "repairing", -1, false)
	found, err := fsck.Salvage(path, to, f.File.LockTimeout, func(n int) error {
		bar.Add(n)
		return console.Interruption(ctx)
	})
	bar.Close()
	switch {
	case ctx.Err() != nil && err != nil:
		return console.ErrInterrupted
	case errors.Is(err, fs.ErrExist):
		return console.Failed(fmt.Errorf("make %s: %w; name another with --to", to, fs.ErrExist))
	case errors.Is(err, stint.ErrCorrupt):
		if err := source.IfEmpty(path, err); errors.As(err, new(console.Hinted)) {
			return console.Failed(console.Hint(err, "or restore a backup"))
		}
		return console.Failed(console.Hint(err, "nothing in it can be read: restore a backup, or move the file away to begin a new one"))
	case err != nil:
		return console.Failed(err)
	}
	lost := console.Findings(errors.Join(found.Lost...))
	err = f.Output.Print(f.Stdout, salvagedJSON{path, to, found.Buckets, lost}, asLines("lost  ", lost)+
		fmt.Sprintf("repaired  %s  %s, findings: %d\n",
			display.Visible(to), display.Plural(int(found.Buckets), "bucket"), len(lost)))
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%s is not all of %s: read what was lost before you use it", to, path)
	}
	return console.Failed(err)
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
			limit := limits.For(number.Key(c.Key.ID))
			if limit == stint.Unlimited || limit == stint.Blocked {
				continue
			}
			most := now.Add(limit.Tolerance())
			if limit.FollowsCalendar() { // a lease of an earlier version was an eighth of the quota ahead at most
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
