package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
)

// source is the file or, if another process has it open, a connection to that
// process.
type source struct {
	store  dbfile.Store       // nil if a program answers
	owner  *hostlimit.Limiter // nil if the file does
	labels map[stint.Name]string
	pid    int       // of the program; 0 if it is the file
	now    time.Time // of the buckets, after setNow

	held map[stint.Key]time.Duration // in a file: the holds, once they were read, of limits that were not
}

// reach opens the file, or connects to the program that has it. It waits for a
// process that is about to open or to close the file.
func (f *dbFlags) reach(to access) (*source, error) {
	path, _, err := f.file()
	if err != nil {
		return nil, err
	}
	deadline, once := time.Now().Add(f.lockTimeout), *f
	for patience := time.Millisecond; ; patience = 50 * time.Millisecond {
		select {
		case <-f.stop:
			return nil, errInterrupted
		default:
		}
		once.lockTimeout = max(time.Millisecond, min(patience, time.Until(deadline)))
		store, err := once.open(to)
		if err == nil {
			return &source{store: store, labels: store.Labels()}, nil
		}
		if !errors.Is(err, stint.ErrLocked) {
			return nil, err
		}
		owner, asked := hostlimit.Dial(path, nil, nil)
		switch {
		case asked == nil:
			in := &source{owner: owner, labels: map[stint.Name]string{}, pid: owner.OwnerPID()}
			for name, spec := range owner.Limits().Names() {
				in.labels[name] = spec.Label
			}
			if f.verbose {
				fmt.Fprintf(f.cmd.ErrOrStderr(), "stint: %s is open in process %d, which answers\n", display.Visible(path), in.pid)
			}
			return in, nil
		case errors.Is(asked, fs.ErrPermission):
			if refused := (*net.OpError)(nil); errors.As(asked, &refused) {
				asked = refused // there is an owner
			}
			return nil, failed(fmt.Errorf("ask the program that has %s open: %w", path, asked))
		case !errors.Is(asked, hostlimit.ErrNoOwner) && !errors.Is(asked, errors.ErrUnsupported):
			return nil, failed(asked)
		case time.Now().After(deadline) && errors.Is(asked, hostlimit.ErrNoAnswer):
			return nil, failed(fmt.Errorf("%w: %s: the process that has it shares it, but does not answer: "+
				"it may be stopped", stint.ErrLocked, path))
		case time.Now().After(deadline):
			err = fmt.Errorf("%w: %s: still in use by another process after %v", stint.ErrLocked, path, f.lockTimeout)
			return nil, hinted{failed(err), "it does not share the file through package hostlimit: " +
				"try again, or wait longer with --lock-timeout"}
		}
	}
}

func (s *source) number(label string) (stint.Name, error) {
	name, ok := numberOf(s.labels, label)
	switch {
	case ok:
		return name, nil
	case s.owner != nil:
		return 0, fmt.Errorf("process %d, which has the file open, has no limit %q: it has %s; name one with --name",
			s.pid, label, labels(maps.Values(s.labels)))
	}
	return 0, noSuchLabel(label)
}

// noSuchLabel is the error of a label that a file does not have.
type noSuchLabel string

func (l noSuchLabel) Error() string {
	return fmt.Sprintf("the file has no limit %q: see its limits with stint names", string(l))
}

// declare returns the number of a label, which gets one if it has none.
func (s *source) declare(label string) (name stint.Name, err error) {
	if s.owner != nil {
		name, err = s.owner.Number(label)
	} else {
		name, err = s.store.Number(label)
	}
	return name, failed(err)
}

func (s *source) setNow(cmd *cobra.Command) (err error) {
	if s.owner != nil {
		s.now = s.owner.Now()
	} else {
		s.now, err = timeOf(cmd, s.store)
	}
	return err
}

// Close closes the file, or the connection to the program.
func (s *source) Close() error {
	switch {
	case s.owner != nil:
		return failed(s.owner.Close())
	case s.store != nil:
		return failed(s.store.Close())
	}
	return nil
}

// view opens the file or, if a program has it open, connects to the program. It
// sets the time.
func (f *dbFlags) view(to access) (*source, error) {
	in, err := f.reach(to)
	if err != nil {
		return nil, err
	}
	if err := in.setNow(f.cmd); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// look opens the file for reading or, if a program has the file open, a copy that
// the program sends.
func (f *dbFlags) look() (*source, error) {
	in, err := f.reach(reading)
	if err != nil || in.owner == nil {
		return in, err
	}
	defer in.Close()
	ctx, stop := untilInterrupted(f.cmd)
	defer stop()
	file, err := tempFile("stint-snapshot-*.db")
	if err != nil {
		return nil, err
	}
	_, err = f.copy(ctx, in, file)
	var store dbfile.Store
	if err = errors.Join(err, failed(file.Close())); err == nil {
		store, err = (&dbFlags{path: file.Name(), lockTimeout: f.lockTimeout}).open(reading)
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
	return &source{store: store, labels: store.Labels(), pid: in.pid}, nil
}

// tempStore is a file that Close removes.
type tempStore struct {
	dbfile.Store
	path string
}

func (s tempStore) Close() error { return errors.Join(s.Store.Close(), os.Remove(s.path)) }

// read calls do with the file as look opens it, and with its time.
func (f *dbFlags) read(do func(in *source) error) error {
	in, err := f.look()
	if err != nil {
		return err
	}
	if err = in.setNow(f.cmd); err == nil {
		err = do(in)
	}
	return errors.Join(err, in.Close())
}

// copy writes a copy of the file, until ctx ends. Its errors are failures, or an
// interruption.
func (f *dbFlags) copy(ctx context.Context, from *source, to io.Writer) (int64, error) {
	var snapshot func(w io.Writer) (int64, error)
	total := int64(-1)
	if from.owner != nil {
		snapshot = from.owner.Snapshot
	} else {
		total, snapshot = from.store.Stats().Bytes, from.store.Snapshot
	}
	bar := newProgress(f.cmd.ErrOrStderr(), "copying", total, true)
	defer bar.close()
	n, err := snapshot(writerFunc(func(b []byte) (int, error) {
		if err := interruption(ctx); err != nil {
			return 0, err
		}
		bar.add(len(b))
		return to.Write(b)
	}))
	if errors.Is(err, errInterrupted) {
		return n, errInterrupted
	}
	return n, failed(err)
}

type writerFunc func(b []byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }
