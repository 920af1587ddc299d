// Package source opens the file of the buckets for a command or, if another
// process has it open, reaches that process.
package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/spell"
)

// Source is the file or, if another process has it open, a connection to that
// process.
type Source struct {
	Store  dbfile.Store       // nil if a program answers
	Owner  *hostlimit.Limiter // nil if the file does
	Labels map[stint.Name]string
	PID    int       // of the program; 0 if it is the file
	Now    time.Time // of the buckets, after setNow

	held map[stint.Key]time.Duration // in a file: the holds, once they were read, of limits that were not
}

// reach opens the file, or connects to the program that has it. It waits for a
// process that is about to open or to close the file.
func (f *File) Reach(to Access) (*Source, error) {
	path, _, err := f.Locate()
	if err != nil {
		return nil, err
	}
	deadline, once := time.Now().Add(f.LockTimeout), *f
	for patience := time.Duration(1); ; patience = 50 * time.Millisecond { // the first is one try
		select {
		case <-f.Stop:
			return nil, console.ErrInterrupted
		default:
		}
		once.LockTimeout = max(1, min(patience, time.Until(deadline)))
		store, err := once.Open(to)
		if err == nil {
			return &Source{Store: store, Labels: store.Labels()}, nil
		}
		if !errors.Is(err, stint.ErrLocked) {
			return nil, err
		}
		owner, asked := hostlimit.Dial(path, nil, nil)
		switch {
		case asked == nil:
			in := &Source{Owner: owner, Labels: map[stint.Name]string{}, PID: owner.OwnerPID()}
			for name, spec := range owner.Limits().Names() {
				in.Labels[name] = spec.Label
			}
			if f.Verbose {
				fmt.Fprintf(f.ErrOut(), "stint: %s is open in process %d, which answers\n", display.Visible(path), in.PID)
			}
			return in, nil
		case errors.Is(asked, fs.ErrPermission):
			if refused := (*net.OpError)(nil); errors.As(asked, &refused) {
				asked = refused // there is an owner
			}
			return nil, console.Failed(fmt.Errorf("ask the program that has %s open: %w", path, asked))
		case !errors.Is(asked, hostlimit.ErrNoOwner) && !errors.Is(asked, errors.ErrUnsupported):
			return nil, console.Failed(asked)
		case time.Now().After(deadline) && errors.Is(asked, hostlimit.ErrNoAnswer):
			return nil, console.Failed(fmt.Errorf("%w: %s: the process that has it shares it, but does not answer: "+
				"it may be stopped", stint.ErrLocked, path))
		case time.Now().After(deadline):
			err = fmt.Errorf("%w: %s: still in use by another process after %v", stint.ErrLocked, path, f.LockTimeout)
			return nil, console.Hint(console.Failed(err), "it does not share the file through package hostlimit: "+
				"try again, or wait longer with --lock-timeout")
		}
	}
}

func (s *Source) Number(label string) (stint.Name, error) {
	name, ok := NumberOf(s.Labels, label)
	switch {
	case ok:
		return name, nil
	case s.Owner != nil:
		return 0, fmt.Errorf("process %d, which has the file open, has no limit %q: it has %s; name one with --name",
			s.PID, label, Labels(maps.Values(s.Labels)))
	}
	return 0, NoSuchLabel(label)
}

// NoSuchLabel is the error of a label that a file does not have.
type NoSuchLabel string

func (l NoSuchLabel) Error() string {
	return fmt.Sprintf("the file has no limit %q: see its limits with stint names", string(l))
}

// declare returns the number of a label, which gets one if it has none.
func (s *Source) Declare(label string) (name stint.Name, err error) {
	if s.Owner != nil {
		name, err = s.Owner.Number(label)
	} else {
		name, err = s.Store.Number(label)
	}
	return name, console.Failed(err)
}

func (s *Source) setNow(f *File) (err error) {
	if s.Owner != nil {
		s.Now = s.Owner.Now()
	} else {
		s.Now, err = f.TimeOf(s.Store)
	}
	return err
}

// Close closes the file, or the connection to the program.
func (s *Source) Close() error {
	switch {
	case s.Owner != nil:
		return console.Failed(s.Owner.Close())
	case s.Store != nil:
		return console.Failed(s.Store.Close())
	}
	return nil
}

// view opens the file or, if a program has it open, connects to the program. It
// sets the time.
func (f *File) View(to Access) (*Source, error) {
	in, err := f.Reach(to)
	if err != nil {
		return nil, err
	}
	if err := in.setNow(f); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// look opens the file for reading or, if a program has the file open, a copy that
// the program sends.
func (f *File) Look(ctx context.Context) (*Source, error) {
	in, err := f.Reach(Reading)
	if err != nil || in.Owner == nil {
		return in, err
	}
	defer in.Close()
	ctx, stop := console.UntilInterrupted(ctx)
	defer stop()
	file, err := TempFile("stint-snapshot-*.db")
	if err != nil {
		return nil, err
	}
	_, err = f.Copy(ctx, in, file)
	var store dbfile.Store
	if err = errors.Join(err, console.Failed(file.Close())); err == nil {
		store, err = (&File{Path: file.Name(), LockTimeout: f.LockTimeout}).Open(Reading)
	}
	// The copy goes now, because a signal, such as that of a closed pipe, may end
	// the process before it closes the store. Windows keeps a file that is open.
	gone := os.Remove(file.Name()) == nil
	if err != nil {
		return nil, err
	}
	if !gone {
		store = tempStore{store, file.Name()}
	}
	return &Source{Store: store, Labels: store.Labels(), PID: in.PID}, nil
}

// tempStore is a file that Close removes.
type tempStore struct {
	dbfile.Store
	path string
}

func (s tempStore) Close() error { return errors.Join(s.Store.Close(), os.Remove(s.path)) }

// read calls do with the file as look opens it, and with its time.
func (f *File) Read(ctx context.Context, do func(in *Source) error) error {
	in, err := f.Look(ctx)
	if err != nil {
		return err
	}
	if err = in.setNow(f); err == nil {
		err = do(in)
	}
	return errors.Join(err, in.Close())
}

// copy writes a copy of the file, until ctx ends. Its errors are failures, or an
// interruption.
func (f *File) Copy(ctx context.Context, from *Source, to io.Writer) (int64, error) {
	var snapshot func(w io.Writer) (int64, error)
	total := int64(-1)
	if from.Owner != nil {
		snapshot = from.Owner.Snapshot
	} else {
		total, snapshot = from.Store.Stats().Bytes, from.Store.Snapshot
	}
	bar := console.NewProgress(f.ErrOut(), "copying", total, true)
	defer bar.Close()
	n, err := snapshot(writerFunc(func(b []byte) (int, error) {
		if err := console.Interruption(ctx); err != nil {
			return 0, err
		}
		bar.Add(len(b))
		return to.Write(b)
	}))
	if errors.Is(err, console.ErrInterrupted) {
		return n, console.ErrInterrupted
	}
	return n, console.Failed(err)
}

type writerFunc func(b []byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }

// Labels returns the labels for a sentence.
func Labels(of iter.Seq[string]) string {
	all := slices.Sorted(of)
	for i, label := range all {
		all[i] = spell.Line(label)
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// TempFile makes a file in the directory for temporary ones.
func TempFile(pattern string) (*os.File, error) {
	file, err := os.CreateTemp("", pattern)
	if wrong := (*fs.PathError)(nil); errors.As(err, &wrong) {
		err = fmt.Errorf("make a temporary file in %s: %w; name another directory with TMPDIR",
			os.TempDir(), wrong.Err)
	}
	return file, console.Failed(err)
}
