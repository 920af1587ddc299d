// Package wholefile writes files that are complete, or not there at all.
package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// New writes a file. It is an error if there is one already.
func New(path string, write func(w io.Writer) error) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) { // there is one, or Lstat fails
		return errors.Join(err, fmt.Errorf("%s already exists: name another file, or move it away", path))
	}
	return writeFile(path, func(f *os.File) error { return errors.Join(write(f), f.Sync()) })
}

// Replace replaces all of a file, or leaves it as it was. If path is a device
// or a pipe, Replace writes to it.
func Replace(path string, content []byte) error {
	mode := os.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		if !info.Mode().IsRegular() {
			return os.WriteFile(path, content, mode)
		}
		mode = info.Mode().Perm()
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	return writeFile(path, func(f *os.File) error {
		_, err := f.Write(content)
		return errors.Join(err, f.Chmod(mode))
	})
}

// writeFile writes a file under another name, and renames it when it is complete.
func writeFile(path string, write func(f *os.File) error) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	if err := errors.Join(write(temp), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
