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
	"github.com/stint-go/stint/internal/dbfile"
)

// dbFlags name the file of the buckets.
type dbFlags struct {
	cmd         *cobra.Command
	path        string
	lockTimeout time.Duration
	verbose     bool            // says that a program answers
	stop        <-chan struct{} // ends the wait for another process; or nil
}

const dbUsage = "the `FILE` of the buckets (default stint.db in the user's state directory)"

func (f *dbFlags) register(cmd *cobra.Command, usage string) {
	f.cmd = cmd
	cmd.Flags().StringVar(&f.path, "db", "", usage)
	cmd.Flags().DurationVar(&f.lockTimeout, "lock-timeout", 5*time.Second,
		"wait this long for another process to close the file")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "say on stderr which process has the file open")
	_ = cmd.MarkFlagFilename("db", "db")
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

// access is what a command does with the file.
type access int

const (
	writing  access = iota // a missing file is made
	changing               // a missing file is an error: fs.ErrNotExist
	reading                // likewise, and nothing in the file changes
)

func (f *dbFlags) open(to access) (store dbfile.Store, err error) {
	path, dir, err := f.file()
	if err != nil {
		return nil, err
	}
	switch {
	case to == writing && dir != "":
		err = os.MkdirAll(dir, 0o700)
	case to == changing:
		_, err = os.Stat(path)
	}
	if err == nil {
		store, err = dbfile.Open(path, nil, &stint.Options{ReadOnly: to == reading, LockTimeout: f.lockTimeout})
	}
	if errors.Is(err, fs.ErrNotExist) {
		todo := "name another file with --db, or spend something first"
		if to == writing {
			todo = "make the directory first, or name another file with --db"
		}
		err = fmt.Errorf("%w; %s", err, todo)
	}
	return store, failed(ifEmpty(path, err))
}

// ifEmpty adds a hint if the file is empty, because there is nothing to repair.
func ifEmpty(path string, err error) error {
	if errors.Is(err, stint.ErrCorrupt) {
		if info, statErr := os.Stat(path); statErr == nil && info.Size() == 0 {
			return hinted{err, "or name another with --db"} // the error says to remove it
		}
	}
	return err
}

func numberOf(labels map[stint.Name]string, label string) (name stint.Name, ok bool) {
	for name, has := range labels {
		if has == label {
			return name, true
		}
	}
	return stint.Unknown, false
}
