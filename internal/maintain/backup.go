// Package maintain checks, copies, compacts and repairs files of buckets, and moves
// buckets between them.
package maintain

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
	"github.com/stint-go/stint/internal/wholefile"
)

// Backup copies a file to another one, or to stdout if to is "-".
func Backup(ctx context.Context, f *source.File, to string, stdout io.Writer) (err error) {
	open := func() (*source.Source, error) { return f.Reach(source.Reading) }
	if to == "-" { // a reader that stalls would break off what a program sends
		open = func() (*source.Source, error) { return f.Look(ctx) }
	}
	from, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	ctx, stop := console.UntilInterrupted(ctx) // before there is a file that would be left behind
	defer stop()
	if to == "-" {
		_, err = f.Copy(ctx, from, stdout)
		return err
	}
	var n int64
	if err = wholefile.New(to, func(w io.Writer) error {
		n, err = f.Copy(ctx, from, w)
		return err
	}); errors.Is(err, console.ErrInterrupted) {
		return console.ErrInterrupted
	} else if err != nil {
		return console.Failed(err)
	}
	_, err = fmt.Fprintf(stdout, "copied  %s  %s\n", display.Visible(to), display.Size(n))
	return console.Failed(err)
}
