package boltfile

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// FS has the calls to the operating system that a File makes besides bbolt's.
type FS struct {
	WriteAt     func(file *os.File, b []byte, at int64) (int, error)
	SyncFile    func(file *os.File) error
	SyncDir     func(dir string) error
	Link        func(old, name string) error
	Exchange    func(a, b string) error // of two files' names, in one step; or errors.ErrUnsupported
	LookEvery   time.Duration           // time between checks of the path by saves
	RenamesOpen bool                    // a file may be renamed while it is open
	NoSync      bool                    // bbolt does not sync
	MaxSize     int                     // bytes of a file; 0 means no limit
}

// maxSize is the largest file on a 32-bit system, in bytes. bbolt maps all of a
// file. When a file outgrows its mapping, bbolt unmaps it, and then maps twice
// as much. If that fails, no bucket can be read any more. An address space of
// 512 MiB has no 256 MiB free in one piece.
const maxSize = 128 << 20

// OS returns an FS that calls the operating system.
func OS() *FS {
	files := &FS{
		WriteAt:     func(file *os.File, b []byte, at int64) (int, error) { return file.WriteAt(b, at) },
		SyncFile:    syncData,
		SyncDir:     syncNames,
		Link:        os.Link,
		Exchange:    exchange,
		LookEvery:   10 * time.Millisecond,
		RenamesOpen: runtime.GOOS != "windows",
	}
	if strconv.IntSize == 32 {
		files.MaxSize = maxSize
	}
	return files
}

// syncNames makes the names in a directory durable. It does nothing if the
// system cannot do that, or if the directory may not be opened.
func syncNames(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	} else if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
