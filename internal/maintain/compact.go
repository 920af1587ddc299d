package maintain

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

// Compact rewrites a file without its free pages.
func Compact(ctx context.Context, f *source.File, stdout io.Writer) error {
	store, err := f.Open(source.Changing)
	if err != nil {
		return err
	}
	ctx, stop := console.UntilInterrupted(ctx) // not before: a signal ends the wait for the file
	defer stop()
	path, _, _ := f.Locate()
	before := store.Stats()
	if wouldGrow(before) {
		_, err = fmt.Fprintf(stdout, "left  %s  %s: it would not get smaller: %s would move from the journal to the tree\n",
			display.Visible(path), display.Size(before.Bytes), display.Plural(int(before.Journaled), "bucket"))
		return console.Failed(errors.Join(err, store.Close()))
	}
	bar := console.NewProgress(f.ErrOut(), "compacting", -1, false)
	defer bar.Close()
	alive := context.AfterFunc(ctx, func() { _ = store.Close() }) // ends Compact between two steps
	if err = store.Compact(); !alive() {
		_ = store.Close()
		return console.ErrInterrupted
	}
	after := store.Stats().Bytes
	bar.Close()
	if err := errors.Join(err, store.Close()); err != nil {
		return console.Failed(err)
	}
	_, err = fmt.Fprintln(stdout, compacted(display.Visible(path), before, after))
	return console.Failed(err)
}

// wouldGrow reports whether the buckets in the journal would take more space in
// the tree than the free pages and the journal give back. Of two million buckets
// with ids of ten bytes, one took 39 bytes there.
func wouldGrow(before stint.FileStats) bool {
	const inTree = 40
	return before.Journaled*inTree >= before.Free+before.Journal && before.Journaled > 0
}

// compacted returns the result in words. A bucket takes more space in the tree
// than in the journal, so the file may grow.
func compacted(path string, before stint.FileStats, after int64) string {
	sizes := fmt.Sprintf("%s  %s, was %s", path, display.Size(after), display.Size(before.Bytes))
	switch {
	case after < before.Bytes:
		return "compacted  " + sizes
	case before.Journaled > 0:
		return "rewritten  " + sizes + ": " + display.Plural(int(before.Journaled), "bucket") + " moved from the journal to the tree"
	}
	return "rewritten  " + sizes + ": it could not be made smaller"
}
