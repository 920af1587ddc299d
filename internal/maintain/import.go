package maintain

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/replay"
	"github.com/stint-go/stint/internal/source"
)

// Import puts buckets into a file.
type Import struct {
	File   *source.File
	DryRun bool   // say how much, and write nothing
	Path   string // of the input; "" or "-": Stdin
	Stdin  io.Reader
	Stdout io.Writer
}

// reading returns the labels by number of an input, and its buckets and holds: holds
// under stint.Unknown, as in a Store. The TAT of one that has expired may be 0.
type reading func(lines *lineReader) (map[stint.Name]string, iter.Seq2[stint.Change, error], error)

// Export reads what export has written.
func (f *Import) Export(ctx context.Context) error { return f.from(ctx, readExport) }

// from reads the whole input, because a mistake in it ends the import. Then it reads
// the input again, and saves it to the file.
func (f *Import) from(ctx context.Context, read reading) (err error) {
	in, again, name, total := f.Stdin, (*os.File)(nil), "standard input", int64(-1)
	if f.Path != "" && f.Path != "-" {
		again, err = os.Open(f.Path)
		in, name, total = again, f.Path, console.SizeOf([]string{f.Path})
	}
	if err == nil && total < 0 { // a pipe
		if again, err = source.TempFile("stint-import-*"); err == nil {
			defer os.Remove(again.Name())
			in = io.TeeReader(in, again)
		}
	}
	if err != nil {
		return err
	}
	defer again.Close()
	bar := console.NewProgress(f.File.ErrOut(), "reading", total, true)
	defer bar.Close()
	found, err := f.check(ctx, read, name, io.TeeReader(in, bar))
	done, saved, kept := "would import at most", found, ""
	if err == nil && !f.DryRun {
		bar.Next("saving", found.buckets+found.holds)
		if _, err = again.Seek(0, io.SeekStart); err == nil {
			found, saved, err = f.save(ctx, read, name, again, bar)
		}
		done, kept = "imported", fmt.Sprintf("; %d stay as they are in the file", found.buckets+found.holds-saved.buckets-saved.holds)
	}
	bar.Close()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f.Stdout, "%s  %s and %s%s; %d expired\n", done, display.Plural(int(saved.buckets), "bucket"),
		display.Plural(int(saved.holds), "hold"), kept, found.expired)
	return console.Failed(err)
}

// check returns what there is to import, or the first mistake.
func (f *Import) check(ctx context.Context, read reading, name string, in io.Reader) (found counts, err error) {
	ctx, stop := console.UntilInterrupted(ctx)
	defer stop()
	_, changes, err := read(newLineReader(ctx, name, in))
	if err == nil {
		now := time.Now()
		for c, wrong := range changes {
			found.add(c, now)
			err = wrong
		}
	}
	return found, cmp.Or(console.Interruption(ctx), err)
}

// save merges the input into the file: all or nothing. A signal ends the process
// while it waits for the file, and the save after that.
func (f *Import) save(ctx context.Context, read reading, name string, in io.Reader, bar *console.Progress) (
	found, saved counts, err error) {
	store, err := f.File.Open(source.Writing)
	if err != nil {
		return found, saved, err
	}
	ctx, stop := console.UntilInterrupted(ctx)
	defer stop()
	defer func() {
		if err = errors.Join(err, store.Close()); errors.Is(err, console.ErrInterrupted) {
			err = console.ErrInterrupted
		} else {
			err = console.Failed(err)
		}
	}()
	now, err := f.File.TimeOf(store)
	if err != nil {
		return found, saved, err
	}
	names, changes, err := read(newLineReader(ctx, name, in))
	if err != nil {
		return found, saved, err
	}
	numbers, err := number(store, names)
	if err != nil {
		return found, saved, err
	}
	err = store.Merge(func(yield func(stint.Change, error) bool) {
		for c, err := range changes {
			bar.Add(1)
			if err == nil && found.add(c, now) {
				c.Key, err = renumbered(c.Key, numbers)
			} else if err == nil {
				continue
			}
			if err = cmp.Or(console.Interruption(ctx), err); !yield(c, err) || err != nil {
				return
			}
		}
	}, func(key stint.Key) { saved.add(stint.Change{Key: key, TAT: now.UnixNano() + 1}, now) })
	return found, saved, err
}

// counts are of buckets and holds, and of those that have expired.
type counts struct{ buckets, holds, expired int64 }

// add returns false if the change has expired.
func (c *counts) add(change stint.Change, now time.Time) bool {
	switch {
	case change.TAT <= now.UnixNano():
		c.expired++
		return false
	case change.Key.Name == stint.Unknown:
		c.holds++
	default:
		c.buckets++
	}
	return true
}

// number returns the file's number for each number in names. A label that the
// file does not have keeps its number. If the file uses that number, the label
// gets another one, but none that another label keeps.
func number(store dbfile.Store, names map[stint.Name]string) (map[stint.Name]stint.Name, error) {
	numbers, has := map[stint.Name]stint.Name{}, store.Labels()
	var others []stint.Name
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n, ok := source.NumberOf(has, names[name])
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
	held, err := source.ParseKey(key.ID)
	return stint.Unknown.Key(numbers[held.Name].Key(held.ID).String()), err
}

// lineReader reads lines, and adds the number of the line to an error.
type lineReader struct {
	*bufio.Scanner
	name string
	line int
	text []byte // of the line
}

func newLineReader(ctx context.Context, name string, in io.Reader) *lineReader {
	r := &lineReader{Scanner: bufio.NewScanner(replay.ReadAhead(ctx, in)), name: name}
	r.Buffer(nil, 1<<28) // a header may have 65535 labels
	return r
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

func readExport(lines *lineReader) (map[stint.Name]string, iter.Seq2[stint.Change, error], error) {
	var header exportHeader
	if !lines.next() {
		return nil, nil, cmp.Or(lines.Err(), lines.wrong("it is empty: want what stint export writes"))
	}
	if err := json.Unmarshal(lines.text, &header); err != nil || header.Stint == 0 {
		return nil, nil, lines.wrong("not the first line of what stint export writes")
	}
	if header.Stint != 1 {
		return nil, nil, lines.wrong("version %d of the export format, want 1: use a newer stint", header.Stint)
	}
	numbers := map[string]stint.Name{}
	for name, label := range header.Names {
		if _, twice := numbers[label]; twice || name == stint.Unknown || label == "" {
			return nil, nil, lines.wrong("number %d has the label %q: want one label for each number, and none twice",
				name, label)
		}
		numbers[label] = name
	}
	return header.Names, func(yield func(stint.Change, error) bool) {
		for lines.next() {
			c, err := lines.exported(numbers)
			if !yield(c, err) || err != nil {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(stint.Change{}, err)
		}
	}, nil
}

// exported returns the bucket or the hold of the line.
func (r *lineReader) exported(numbers map[string]stint.Name) (c stint.Change, err error) {
	var l exportLine
	if err := json.Unmarshal(r.text, &l); err != nil {
		return c, r.wrong("neither a bucket nor a hold as stint export writes them")
	}
	name, ok := numbers[l.Name]
	if !ok {
		return c, r.wrong("the first line has no limit %q", l.Name)
	}
	id := []byte(l.ID)
	if l.Base64 {
		if id, err = base64.StdEncoding.DecodeString(l.ID); err != nil {
			return c, r.wrong("%w", err)
		}
	}
	key, err := source.ParseKey(name.Key(string(id)).String()) // checks the length of the id
	if err != nil {
		return c, r.wrong("%w", err)
	}
	if (l.TAT > 0) == (l.Hold > 0) {
		return c, r.wrong("want a tat or a hold, in Unix nanoseconds")
	}
	if l.Hold > 0 {
		return stint.Change{Key: stint.Unknown.Key(key.String()), TAT: l.Hold}, nil
	}
	return stint.Change{Key: key, TAT: l.TAT}, nil
}
