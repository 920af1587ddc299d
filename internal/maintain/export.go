package maintain

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

// An export has one JSON object in a line. The first is a header with the
// labels of the limits by number. Then comes one line for each bucket and each
// hold. A line names its limit by the label, because another file may have
// other numbers. The lines stay the same when the format of files changes.

type exportHeader struct {
	Stint int                   `json:"stint"` // 1
	Names map[stint.Name]string `json:"names"`
}

type exportLine struct {
	Name string `json:"name"`
	display.JSONID
	TAT  int64 `json:"tat,omitempty"`  // Unix nanoseconds
	Hold int64 `json:"hold,omitempty"` // end of a hold, instead of TAT
}

// Export writes the buckets of a file, and the holds, as JSON lines.
func Export(ctx context.Context, f *source.File, stdout io.Writer) error {
	return f.Read(ctx, func(in *source.Source) error { return console.Failed(exportTo(stdout, f.ErrOut(), in)) })
}

func exportTo(stdout, stderr io.Writer, in *source.Source) error {
	names := in.Labels
	for name, label := range names {
		if !utf8.ValidString(label) { // JSON would change it
			return fmt.Errorf("the label %q of number %d is not UTF-8; "+
				"stint limits set-names gives it another", label, name)
		}
	}
	bar := console.NewProgress(stderr, "counting", -1, false)
	defer bar.Close()
	all := func(yield func(stint.Change, error) bool) { // those that are not over
		for _, name := range append([]stint.Name{stint.Unknown}, slices.Sorted(maps.Keys(names))...) {
			for c, err := range in.Store.All(name) {
				if (err != nil || c.TAT > in.Now.UnixNano()) && !yield(c, err) || err != nil {
					return
				}
			}
		}
	}
	if bar.Visible() {
		total := int64(0)
		for range all {
			total++
		}
		bar.Next("exporting", total)
	}
	w := bufio.NewWriterSize(stdout, 1<<16)
	if err := display.WriteJSON(w, exportHeader{1, names}); err != nil {
		return err
	}
	for c, err := range all {
		if err != nil {
			return err
		}
		key, line := c.Key, exportLine{TAT: c.TAT}
		if key.Name == stint.Unknown {
			line = exportLine{Hold: c.TAT}
			if key, err = source.ParseKey(c.Key.ID); err != nil {
				return err
			}
		}
		if line.Name, line.JSONID = names[key.Name], display.NewJSONID(key.ID); line.Name == "" {
			return fmt.Errorf("bucket %s: the file has no label for number %d; "+
				"stint limits set-names gives it one", key, key.Name)
		}
		if err := display.WriteJSON(w, line); err != nil {
			return err
		}
		bar.Add(1)
	}
	return w.Flush()
}
