package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/display"
)

// openOrAsk opens the file or, if another process has it open, connects to that
// process. It returns the one or the other. It waits for a process that is
// about to open or to close the file.
func openOrAsk(f *dbFlags, open func(*dbFlags) (dbfile.Store, error)) (
	store dbfile.Store, owner *hostlimit.Limiter, err error) {
	path, _, err := f.file()
	if err != nil {
		return store, nil, err
	}
	deadline, once := time.Now().Add(f.lockTimeout), *f
	for patience := time.Millisecond; ; patience = 50 * time.Millisecond {
		select {
		case <-f.stop:
			return store, nil, errInterrupted
		default:
		}
		once.lockTimeout = max(time.Millisecond, min(patience, time.Until(deadline)))
		store, err = open(&once)
		if !errors.Is(err, stint.ErrLocked) {
			return store, nil, err
		}
		owner, asked := hostlimit.Dial(path, nil, nil)
		switch {
		case asked == nil:
			if f.verbose {
				fmt.Fprintf(f.cmd.ErrOrStderr(), "stint: %s is open in process %d, which answers\n", display.Visible(path), owner.OwnerPID())
			}
			return store, owner, nil
		case errors.Is(asked, fs.ErrPermission):
			if refused := (*net.OpError)(nil); errors.As(asked, &refused) {
				asked = refused // there is an owner
			}
			return store, nil, failed(fmt.Errorf("ask the program that has %s open: %w", path, asked))
		case !errors.Is(asked, hostlimit.ErrNoOwner) && !errors.Is(asked, errors.ErrUnsupported):
			return store, nil, failed(asked)
		case time.Now().After(deadline) && errors.Is(asked, hostlimit.ErrNoAnswer):
			return store, nil, failed(fmt.Errorf("%w: %s: the process that has it shares it, but does not answer: "+
				"it may be stopped", stint.ErrLocked, path))
		case time.Now().After(deadline):
			err = fmt.Errorf("%w: %s: still in use by another process after %v", stint.ErrLocked, path, f.lockTimeout)
			return store, nil, hinted{failed(err), errNotShared}
		}
	}
}

// labelsOf returns the labels that a program which has the file has declared.
func labelsOf(owner *hostlimit.Limiter) map[stint.Name]string {
	labels := map[stint.Name]string{}
	for name, spec := range owner.Limits().Names() {
		labels[name] = spec.Label
	}
	return labels
}

// look opens the file for reading or, if a program has the file open, a copy that
// the program sends.
func (f *dbFlags) look() (*readStore, error) {
	path, _, err := f.file()
	if err != nil {
		return nil, err
	}
	store, owner, err := openOrAsk(f, (*dbFlags).openToRead)
	if err != nil || owner == nil {
		return &readStore{Store: store, path: path}, err
	}
	defer owner.Close()
	ctx, stop := untilInterrupted(f.cmd)
	defer stop()
	file, err := tempFile("stint-snapshot-*.db")
	if err != nil {
		return nil, err
	}
	_, err = f.copy(ctx, owner, file)
	if err = errors.Join(err, failed(file.Close())); err == nil {
		store, err = readFile(file.Name(), f.lockTimeout)
	}
	// The copy goes now, because a signal, such as that of a closed pipe, may end
	// the process before it closes the store. Windows keeps a file that is open.
	gone := os.Remove(file.Name()) == nil
	if err != nil {
		return nil, err
	}
	copied := &readStore{Store: store, path: path, pid: owner.OwnerPID()}
	if !gone {
		copied.temp = file.Name()
	}
	return copied, nil
}

// read calls do with the file as look opens it, and the time of its buckets.
func (f *dbFlags) read(do func(store *readStore, now time.Time) error) error {
	store, err := f.look()
	if err != nil {
		return err
	}
	now, err := timeOf(f.cmd, store)
	if err == nil {
		err = do(store, now)
	}
	return errors.Join(err, failed(store.Close()))
}

// snapshotter is a file, or the program that has it open.
type snapshotter interface {
	Snapshot(w io.Writer) (int64, error)
}

// copy writes a copy of the file, until ctx ends. Its errors are failures, or an
// interruption.
func (f *dbFlags) copy(ctx context.Context, from snapshotter, to io.Writer) (int64, error) {
	total := int64(-1)
	if store, ok := from.(dbfile.Store); ok {
		total = store.Stats().Bytes
	}
	bar := newProgress(f.cmd.ErrOrStderr(), "copying", total, true)
	defer bar.close()
	n, err := from.Snapshot(writerFunc(func(b []byte) (int, error) {
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
