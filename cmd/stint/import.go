package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/replay"
)

func newImport() *cobra.Command {
	f := &importFlags{}
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Put the buckets of an export into a file",
		Long: `Put the buckets of an export into a file. A missing file is made. The export is read from FILE, or
from standard input, to its end. Then all its buckets are saved in one step. If the export has a
mistake, none is saved.

If the file already has the bucket of an id, the fuller one is dropped, so no id gains tokens. Of two
holds, the one that ends later stays. A limit that the file already has keeps its number there. A new
limit keeps the number that it has in the export, unless the file uses that number.`,
		Example: `  stint import --db quota.db quota.jsonl
  gzip -dc quota.jsonl.gz | stint import --db quota.db`,
		Args: atMostOne("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.importFrom(cmd, args, readExport)
		},
	}
	f.register(cmd)
	return cmd
}

type importFlags struct {
	db     dbFlags
	dryRun bool
}

func (f *importFlags) register(cmd *cobra.Command) {
	f.db.register(cmd, dbUsage)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print how much would be imported at most, and write nothing")
}

// importFrom reads the whole input, and then saves it to the file.
func (f *importFlags) importFrom(cmd *cobra.Command, args []string,
	read func(lines *lineReader) (*imported, error)) error {
	ctx, stop := untilInterrupted(cmd)
	defer stop()
	in, name, total := cmd.InOrStdin(), "standard input", int64(-1)
	if len(args) > 0 && args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer file.Close()
		in, name, total = file, args[0], sizeOf(args[:1])
	}
	bar := newProgress(cmd.ErrOrStderr(), "reading", total, true)
	lines := bufio.NewScanner(io.TeeReader(replay.ReadAhead(ctx, in), bar))
	lines.Buffer(nil, 1<<28) // a header may have 65535 labels
	found, err := read(&lineReader{Scanner: lines, name: name})
	bar.close()
	if ctx.Err() != nil {
		return errInterrupted
	}
	stop() // from here a signal ends the process: it waits for the file, and saves in one step
	if err != nil {
		return err
	}
	all := 0
	if f.dryRun {
		found.expire(time.Now())
	} else if all, err = f.put(found); err != nil {
		return err
	}
	buckets := 0
	for key := range found.changes {
		if key.Name != stint.Unknown {
			buckets++
		}
	}
	done, kept := "imported", fmt.Sprintf("; %d stay as they are in the file", all-len(found.changes))
	if f.dryRun {
		done, kept = "would import at most", ""
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s  %s and %s%s; %d expired\n",
		done, display.Plural(buckets, "bucket"), display.Plural(len(found.changes)-buckets, "hold"), kept, found.past)
	return failed(err)
}

// put saves the buckets and holds that end later than those in the file. It
// removes all others from in, and returns how many had not expired.
func (f *importFlags) put(in *imported) (all int, err error) {
	store, err := f.db.open(writing)
	if err != nil {
		return 0, err
	}
	defer func() { err = failed(errors.Join(err, store.Close())) }()
	now, err := timeOf(f.db.cmd, store)
	if err != nil {
		return 0, err
	}
	in.expire(now)
	all = len(in.changes)
	numbers, err := number(store, in.names)
	if err != nil {
		return 0, err
	}
	var changes []stint.Change
	for from, tat := range in.changes {
		key, err := renumbered(from, numbers)
		if err != nil {
			return 0, err
		}
		have, err := store.Load(key)
		if err != nil {
			return 0, err
		}
		if tat > have {
			changes = append(changes, stint.Change{Key: key, TAT: tat})
		} else {
			delete(in.changes, from)
		}
	}
	if len(changes) > 0 {
		err = store.Save(changes)
	}
	return all, err
}

// number returns the file's number for each number in names. A label that the
// file does not have keeps its number. If the file uses that number, the label
// gets another one, but none that another label keeps.
func number(store dbfile.Store, names map[stint.Name]string) (map[stint.Name]stint.Name, error) {
	numbers, has := map[stint.Name]stint.Name{}, store.Labels()
	var others []stint.Name
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n, ok := numberOf(has, names[name])
		if !ok && store.Declare(stint.Names{name: {Label: names[name]}}) == nil {
			n, ok = name, true
		}
		if !ok {
			others = append(others, name)
			continue
		}
		numbers[name] = n
	}
	for _, name := range others {
		n, err := store.Number(names[name])
		if err != nil {
			return nil, err
		}
		numbers[name] = n
	}
	return numbers, nil
}

func renumbered(key stint.Key, numbers map[stint.Name]stint.Name) (stint.Key, error) {
	if key.Name != stint.Unknown {
		return numbers[key.Name].Key(key.ID), nil
	}
	held, err := parseKey(key.ID)
	return stint.Unknown.Key(numbers[held.Name].Key(held.ID).String()), err
}

// imported is what an import puts into a file, under numbers of its own.
type imported struct {
	names   map[stint.Name]string
	changes map[stint.Key]int64 // holds under stint.Unknown, as in a Store
	past    int                 // expired buckets and holds
}

func (in *imported) add(key stint.Key, tat int64, hold bool) {
	if hold {
		key = stint.Unknown.Key(key.String())
	}
	in.changes[key] = max(tat, in.changes[key])
}

// expire removes the buckets that are full and the holds that are over.
func (in *imported) expire(now time.Time) {
	for key, tat := range in.changes {
		if tat <= now.UnixNano() {
			delete(in.changes, key)
			in.past++
		}
	}
}

// lineReader reads lines, and adds the number of the line to an error.
type lineReader struct {
	*bufio.Scanner
	name string
	line int
	text []byte // of the line
}

func (r *lineReader) next() (more bool) {
	more = r.Scan()
	if r.text = r.Bytes(); r.line == 0 {
		r.text = bytes.TrimPrefix(r.text, []byte("\ufeff")) // a byte order mark is not part of the line
	}
	r.line++
	return more
}

// Err returns why there are no more lines, or nil at the end.
func (r *lineReader) Err() error {
	err := r.Scanner.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		return r.wrong("%w", err)
	}
	return err
}

func (r *lineReader) wrong(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w; nothing was imported", r.name, r.line, fmt.Errorf(format, args...))
}

func readExport(lines *lineReader) (*imported, error) {
	in := &imported{changes: map[stint.Key]int64{}}
	var header exportHeader
	if !lines.next() {
		return nil, cmp.Or(lines.Err(), lines.wrong("it is empty: want what stint export writes"))
	}
	if err := json.Unmarshal(lines.text, &header); err != nil || header.Stint == 0 {
		return nil, lines.wrong("not the first line of what stint export writes")
	}
	if header.Stint != 1 {
		return nil, lines.wrong("version %d of the export format, want 1: use a newer stint", header.Stint)
	}
	in.names = header.Names
	numbers := map[string]stint.Name{}
	for name, label := range in.names {
		if _, twice := numbers[label]; twice || name == stint.Unknown || label == "" {
			return nil, lines.wrong("number %d has the label %q: want one label for each number, and none twice",
				name, label)
		}
		numbers[label] = name
	}
	for lines.next() {
		var l exportLine
		if err := json.Unmarshal(lines.text, &l); err != nil {
			return nil, lines.wrong("neither a bucket nor a hold as stint export writes them")
		}
		name, ok := numbers[l.Name]
		if !ok {
			return nil, lines.wrong("the first line has no limit %q", l.Name)
		}
		id := []byte(l.ID)
		if l.Base64 {
			var err error
			if id, err = base64.StdEncoding.DecodeString(l.ID); err != nil {
				return nil, lines.wrong("%w", err)
			}
		}
		key, err := parseKey(name.Key(string(id)).String()) // checks the length of the id
		if err != nil {
			return nil, lines.wrong("%w", err)
		}
		if (l.TAT > 0) == (l.Hold > 0) {
			return nil, lines.wrong("want a tat or a hold, in Unix nanoseconds")
		}
		in.add(key, max(l.TAT, l.Hold), l.Hold > 0)
	}
	return in, lines.Err()
}
