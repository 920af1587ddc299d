package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
)

// File is the file of the buckets, as the flags of a command name it.
type File struct {
	Path        string // "": stint.db in the user's state directory
	LockTimeout time.Duration
	Verbose     bool             // says that a program answers
	Stderr      func() io.Writer // for warnings and progress; nil: none
	Stop        <-chan struct{}  // ends the wait for another process; or nil
	First       func() error     // must succeed before a file or a label is made; or nil
}

// ErrOut is where warnings and progress go.
func (f *File) ErrOut() io.Writer {
	if f.Stderr == nil {
		return io.Discard
	}
	return f.Stderr()
}

// Locate returns the path of the file. If the user did not name it, dir is the
// directory to make for it.
func (f *File) Locate() (path, dir string, err error) {
	if f.Path != "" {
		return f.Path, "", nil
	}
	if dir, err = StateDir(); err != nil {
		return "", "", fmt.Errorf("no state directory: %w; name the file with --db", err)
	}
	return filepath.Join(dir, "stint.db"), dir, nil
}

// StateDir returns the directory for files that stint keeps for the user.
func StateDir() (string, error) {
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

// Access is what a command does with the file.
type Access int

const (
	Writing  Access = iota // a missing file is made
	Changing               // a missing file is an error: fs.ErrNotExist
	Reading                // likewise, and nothing in the file changes
)

// Open opens the file. Its errors are failures.
func (f *File) Open(to Access) (store dbfile.Store, err error) {
	path, dir, err := f.Locate()
	if err != nil {
		return nil, err
	}
	switch _, missing := os.Stat(path); {
	case to == Changing:
		err = missing
	case to == Writing && errors.Is(missing, fs.ErrNotExist):
		if err := f.first(); err != nil {
			return nil, err
		}
		if dir != "" {
			err = os.MkdirAll(dir, 0o700)
		}
	}
	if err == nil {
		store, err = dbfile.Open(path, nil, &stint.BoltOptions{ReadOnly: to == Reading, LockTimeout: f.LockTimeout})
	}
	if errors.Is(err, fs.ErrNotExist) {
		todo := "name another file with --db, or spend something first"
		if to == Writing {
			todo = "make the directory first, or name another file with --db"
		}
		err = fmt.Errorf("%w; %s", err, todo)
	}
	return store, console.Failed(IfEmpty(path, err))
}

// IfEmpty adds a hint if the file is empty, because there is nothing to repair.
func IfEmpty(path string, err error) error {
	if errors.Is(err, stint.ErrCorrupt) {
		if info, statErr := os.Stat(path); statErr == nil && info.Size() == 0 {
			return console.Hint(err, "or name another with --db") // the error says to remove it
		}
	}
	return err
}

func (f *File) first() error {
	if f.First == nil {
		return nil
	}
	return f.First()
}

// NumberOf returns the number of a label.
func NumberOf(labels map[stint.Name]string, label string) (name stint.Name, ok bool) {
	for name, has := range labels {
		if has == label {
			return name, true
		}
	}
	return stint.Unknown, false
}
