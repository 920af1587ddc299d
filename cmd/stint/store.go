package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltstore"
)

// dbFlags name the file of the buckets.
type dbFlags struct {
	cmd         *cobra.Command
	path        string
	lockTimeout time.Duration
	snapshot    string // URL of a status page, for readers
}

const dbUsage = "the `FILE` of the buckets (default stint.db in the user's state directory)"

func (f *dbFlags) register(cmd *cobra.Command, usage string) {
	f.cmd = cmd
	cmd.Flags().StringVar(&f.path, "db", "", usage)
	cmd.Flags().DurationVar(&f.lockTimeout, "lock-timeout", 5*time.Second,
		"wait this long for another process to close the file")
	_ = cmd.MarkFlagFilename("db", "db")
}

// registerToRead is register for commands that only read.
func (f *dbFlags) registerToRead(cmd *cobra.Command) {
	f.register(cmd, dbUsage)
	cmd.Flags().StringVar(&f.snapshot, "snapshot", "",
		"read a copy of the file from a running program's status page at this `URL`")
}

// named takes the file from the argument, if there is one.
func (f *dbFlags) named(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.Flags().Changed("db") {
		return misuse(cmd, "FILE and --db exclude each other")
	}
	if f.path = args[0]; f.path == "" {
		return misuse(cmd, "FILE is empty: name a file, or leave the argument out")
	}
	return nil
}

// file returns the path of the file. If the user did not name it, dir is the
// directory to make for it.
func (f *dbFlags) file() (path, dir string, err error) {
	if f.path != "" {
		return f.path, "", nil
	}
	if dir, err = stateDir(); err != nil {
		return "", "", fmt.Errorf("no state directory: %w; name the file with --db", err)
	}
	return filepath.Join(dir, "stint.db"), dir, nil
}

// stateDir returns the directory for files that stint keeps for the user.
func stateDir() (string, error) {
	var parent string
	var err error
	switch runtime.GOOS {
	case "windows":
		parent, err = os.UserCacheDir() // %LocalAppData%
	case "darwin", "ios":
		parent, err = os.UserConfigDir() // ~/Library/Application Support
	default:
		parent = os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(parent) { // the XDG specification ignores a relative path
			var home string
			home, err = os.UserHomeDir()
			parent = filepath.Join(home, ".local", "state")
		}
	}
	return filepath.Join(parent, "stint"), err
}

// open opens the file, or makes one if there is none.
func (f *dbFlags) open() (*stint.BoltStore, error) {
	path, dir, err := f.file()
	if err != nil {
		return nil, err
	}
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, failed(err)
		}
	}
	store, err := stint.OpenBolt(path, nil, &stint.BoltOptions{LockTimeout: f.lockTimeout})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; make the directory first, or name another file with --db", err)
	}
	return store, failed(ifEmpty(path, err))
}

// openExisting opens the file. If there is none, the error is fs.ErrNotExist.
func (f *dbFlags) openExisting() (*stint.BoltStore, error) {
	path, _, err := f.file()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, failed(notThere(err))
	}
	return f.open()
}

// openToSpend opens the file, and returns the number that it has for the label
// of a limit. If it has none, the label gets one.
func (f *dbFlags) openToSpend(label string) (stint.Store, stint.Name, error) {
	store, err := f.open()
	if err != nil {
		return nil, 0, err
	}
	name, err := numberFor(store, label)
	if err != nil {
		return nil, 0, failed(errors.Join(err, store.Close()))
	}
	return store, name, nil
}

// openToGive is openToSpend for commands that return tokens. A label that the
// file does not have is an error, because no token was ever spent under it.
func (f *dbFlags) openToGive(label string) (stint.Store, stint.Name, error) {
	store, err := f.openExisting()
	if err != nil {
		return nil, 0, err
	}
	if name, ok := numberOf(store, label); ok {
		return store, name, nil
	}
	return nil, 0, errors.Join(noSuchLabel(label), failed(store.Close()))
}

// openToRead opens the file read-only.
func (f *dbFlags) openToRead() (*readStore, error) {
	path, temp, err := f.pathToRead()
	if err != nil {
		return nil, err
	}
	store, err := stint.OpenBolt(path, nil, &stint.BoltOptions{ReadOnly: true, LockTimeout: f.lockTimeout})
	if err == nil {
		return &readStore{store, path, temp}, nil
	}
	if temp != "" {
		os.Remove(temp)
	}
	if errors.Is(err, stint.ErrLocked) && f.cmd.Flags().Lookup("snapshot") != nil {
		err = hinted{err, errAskItsProgram}
	}
	return nil, failed(ifEmpty(path, notThere(err)))
}

// pathToRead returns the path of the file. If that is a copy, it is also temp,
// and the caller removes it.
func (f *dbFlags) pathToRead() (path, temp string, err error) {
	if f.snapshot == "" {
		path, _, err = f.file()
		return path, "", err
	}
	if err := exclusive(f.cmd, "db", "snapshot"); err != nil {
		return "", "", err
	}
	file, err := tempFile("stint-snapshot-*.db")
	if err != nil {
		return "", "", err
	}
	if err = errors.Join(fetch(f.cmd, f.snapshot, file), failed(file.Close())); err != nil {
		os.Remove(file.Name())
		return "", "", err
	}
	return file.Name(), file.Name(), nil
}

// readStore is a file that is open for reading.
type readStore struct {
	*stint.BoltStore
	path, temp string
}

func (s *readStore) Close() error {
	err := s.BoltStore.Close()
	if s.temp != "" {
		err = errors.Join(err, os.Remove(s.temp))
	}
	return err
}

// notThere adds a hint if there is no file.
func notThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; name another file with --db, or spend something first", err)
	}
	return err
}

// ifEmpty adds a hint if the file is empty, because there is nothing to repair.
func ifEmpty(path string, err error) error {
	if errors.Is(err, stint.ErrCorrupt) {
		if info, statErr := os.Stat(path); statErr == nil && info.Size() == 0 {
			return hinted{err, errEmpty}
		}
	}
	return err
}

func numberOf(store *stint.BoltStore, label string) (stint.Name, bool) {
	name, ok := boltstore.Of(store).NumberOf(label)
	return stint.Name(name), ok
}

// numberFor returns the number that the file has for a label. If it has none,
// the label gets one.
func numberFor(store *stint.BoltStore, label string) (stint.Name, error) {
	name, err := boltstore.Of(store).Number(label)
	return stint.Name(name), err
}

// namesOf returns the labels that the file has.
func namesOf(store *stint.BoltStore) map[stint.Name]string {
	names := map[stint.Name]string{}
	for name, label := range boltstore.Of(store).Names() {
		names[stint.Name(name)] = label
	}
	return names
}

type noSuchLabel string

func (l noSuchLabel) Error() string {
	return fmt.Sprintf("the file has no limit %q: stint names lists its limits", string(l))
}
