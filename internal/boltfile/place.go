package boltfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
)

// CheckRegular returns an error if there is no regular file at path. Opening a
// pipe, for example, may block for ever.
func CheckRegular(path string) error {
	switch info, err := os.Stat(path); {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("open %s: it is a directory, not a file", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("open %s: it is a device or a pipe, not a file", path)
	}
	return nil
}

// Resolve follows the links at path to a file that may or may not exist. A file
// is made and replaced at the path that Resolve returns.
func Resolve(path string) (string, error) {
	if path == "" {
		return "", errors.New("open: the path is empty")
	}
	for range 40 {
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil
		}
		dir, _ := filepath.Split(path)
		if filepath.IsAbs(to) {
			dir = ""
		}
		dir, name := filepath.Split(dir + to)
		if dir, err = filepath.EvalSymlinks(dir); err != nil { // "a/b/.." is not always "a"
			return "", fmt.Errorf("open %s: %w", path, err)
		}
		path = filepath.Join(dir, name)
	}
	return "", fmt.Errorf("open %s: too many links", path)
}

// SetAside renames a corrupt file. If another process has done so since the
// file was found, done is false. SetAside holds the file's lock. Otherwise it
// could rename the new file of that process.
func SetAside(path, to string, found os.FileInfo,
	lockTimeout time.Duration) (done bool, err error) {
	if runtime.GOOS != "windows" { // Windows renames no file that is in use
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		defer file.Close()
		if err := lock(file, true, lockTimeout); errors.Is(err, ErrLocked) {
			return false, fmt.Errorf("%w: still in use by another process or store after %v", err, lockTimeout)
		} else if err != nil {
			return false, err
		}
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(found, there) {
		return false, nil
	}
	err = os.Rename(path, to)
	return err == nil, err
}

// Lock makes a file at path, and locks it until unlock removes it. If another
// process has it, the error is ErrLocked, and unlock does nothing.
func Lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return func() {}, err
	}
	mine, err := file.Stat()
	if err == nil {
		err = lock(file, true, 0)
	}
	there, _ := os.Lstat(path)
	if err != nil || !os.SameFile(mine, there) { // the other process may have removed it just before it was locked here
		file.Close()
		return func() {}, cmp.Or(err, ErrLocked)
	}
	return func() {
		os.Remove(path)
		file.Close()
	}, nil
}

// Make completes and syncs a file under another name, and then links it to
// path. If bbolt made the file at path, a power cut could leave a file that
// bbolt cannot open. A link, unlike a rename, never replaces a file. If path
// has a file, the error is fs.ErrExist.
func Make(path string, files *FS, fill func(f *File) error) error {
	f, err := Create(path, "new", files)
	if err != nil {
		return err
	}
	temp := f.Path
	defer os.Remove(temp)
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return err
	}
	if err := files.linkNew(temp, path); err != nil {
		return err
	}
	return files.SyncDir(filepath.Dir(path))
}

// linkNew gives a file another name. If another file has that name, the error is
// fs.ErrExist. On a file system without links it renames the file, and may
// replace a file that is made at the same moment.
func (files *FS) linkNew(temp, path string) error {
	err := files.Link(temp, path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "make", Path: path, Err: fs.ErrExist}
	}
	return os.Rename(temp, path)
}

// CreateTemp makes an empty file, mode 0600, beside the one at path. Its name
// ends with .tmp, so that RemoveLeft does not remove a user's backup with a name
// such as FILE.snapshot-20260101.
func CreateTemp(path, what string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"."+what+"-*.tmp")
}

// ErrGone: the file is not at its path any more, so the next Open would not
// find it. If it was removed or renamed, the error is also fs.ErrNotExist.
// Otherwise another file is at the path.
var ErrGone = errors.New("stint: file was taken away")

// InPlace returns ErrGone if this file is not at its path any more. It returns
// nil if it is, or if this process may not look at the path. The error is
// ErrCorrupt if the file was truncated.
func (f *File) InPlace() error {
	mine, err := f.file.Stat()
	if err != nil {
		return err
	}
	switch there, err := os.Stat(f.Path); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s: it was removed or renamed: %w", ErrGone, f.Path, fs.ErrNotExist)
	case errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		return err
	case !os.SameFile(mine, there):
		return fmt.Errorf("%w: %s: another file is at its path, and was not touched; "+
			"remove that one, or restart the program to use it", ErrGone, f.Path)
	}
	return f.whole()
}

// ReplaceWith puts target in the place of this file, in one step. It returns
// the file that is in use after that. If the path has no file any more, target
// is put there. If the path has a file that is not this one, ReplaceWith leaves
// that file alone and returns ErrGone.
//
// After an error this file stays in use, with one exception. If only target's
// name could not be made durable, target is in use, and its next write tries
// the sync again. The caller keeps all other goroutines from using either file.
//
// A process that waits for the lock of the old file gets that lock, and then
// finds another file at the path. That file is already locked.
func (f *File) ReplaceWith(target *File) (*File, error) {
	err := f.InPlace()
	free := f.fs.RenamesOpen && errors.Is(err, fs.ErrNotExist)
	if err == nil || free {
		err = target.keepAccess(f)
	}
	if err == nil && !f.fs.RenamesOpen {
		return f.replaceClosed(target)
	}
	if err == nil {
		err = f.fs.SyncDir(filepath.Dir(f.Path)) // an error here leaves the old file in use
	}
	switch {
	case err != nil:
	case free:
		if err = f.fs.linkNew(target.Path, f.Path); err == nil {
			os.Remove(target.Path)
		}
	default:
		err = f.takePlace(target.Path)
	}
	if err != nil {
		target.Close()
		return f, err
	}
	target.Path = f.Path
	target.unsynced.Store(true)
	return target, errors.Join(target.syncName(), f.Close())
}

// takePlace gives the file at target the path of this file, in one step. If
// another program has put a file there since the last look, that one stays, and
// the error is ErrGone.
func (f *File) takePlace(target string) error {
	err := f.fs.Exchange(target, f.Path)
	if errors.Is(err, errors.ErrUnsupported) { // a file that comes just now would be lost
		if err := f.InPlace(); err != nil {
			return err
		}
		return os.Rename(target, f.Path)
	}
	if err != nil {
		return err
	}
	mine, err := f.file.Stat()
	if err == nil {
		var was os.FileInfo
		if was, err = os.Stat(target); err == nil && os.SameFile(mine, was) {
			os.Remove(target) // if that fails, the next Open removes it
			return nil
		}
	}
	if back := f.fs.Exchange(target, f.Path); back != nil {
		err = errors.Join(err, os.Rename(target, f.Path))
	}
	return fmt.Errorf("%w: %s: another file came to its path: %w", ErrGone, f.Path, errors.Join(err, f.InPlace()))
}

// RemoveLeft removes copies beside the file that killed processes left. The
// caller has the file's lock, so no process is making one.
func RemoveLeft(path string) {
	dir, base := filepath.Split(path)
	entries, _ := os.ReadDir(cmp.Or(dir, "."))
	for _, e := range entries {
		for _, what := range []string{".compact-", ".snapshot-"} {
			rest, ours := strings.CutPrefix(e.Name(), base+what)
			number, temp := strings.CutSuffix(rest, ".tmp")
			if _, err := strconv.ParseUint(number, 10, 64); ours && temp && err == nil && e.Type().IsRegular() {
				os.Remove(filepath.Join(dir, e.Name()))
			}
		}
	}
}

// replaceClosed is ReplaceWith on a system that renames no open file. For a
// moment no process holds the lock. If another process takes the lock or writes
// to the file, this file is broken: each later call returns that error.
func (f *File) replaceClosed(target *File) (*File, error) {
	want, err := bboltpage.ReadMeta(f.file)
	renamed, targetErr := bboltpage.ReadMeta(target.file)
	if err := errors.Join(err, targetErr, target.Close()); err != nil {
		return f, err
	}
	if err = f.Close(); err == nil {
		err = os.Rename(target.Path, f.Path)
	}
	if err == nil {
		want = renamed
	}
	file, lost := Open(f.Path, Options{LockTimeout: time.Second, FS: f.fs})
	if lost == nil {
		lost = file.View(func(tx *bolt.Tx) error {
			m, err := bboltpage.ReadMeta(file.file)
			if err == nil && m != want {
				err = fmt.Errorf("%w: %s: another process has written to it while it was compacted", ErrLocked, f.Path)
			}
			if err == nil {
				_, err = file.OpenLog(tx)
			}
			return err
		})
		if lost != nil {
			file.Close()
		}
	}
	if lost != nil {
		f.broken.Store(&lost)
		return f, errors.Join(err, lost)
	}
	return file, err
}

// keepAccess gives this file the owner and the mode of the old one, as far as
// this process may.
func (f *File) keepAccess(old *File) error {
	info, err := old.file.Stat()
	if err == nil {
		err = keepOwner(f.file, info)
	}
	if err != nil {
		return err
	}
	return f.file.Chmod(info.Mode().Perm())
}

// After a replacement, syncName makes the name of the new file durable. Until
// then a power cut would bring the old file back, so nothing is saved.
func (f *File) syncName() error {
	if !f.unsynced.Load() {
		return nil
	}
	if err := f.fs.SyncDir(filepath.Dir(f.Path)); err != nil {
		return fmt.Errorf("sync the directory of the new %s: %w", f.Path, err)
	}
	f.unsynced.Store(false)
	return nil
}
