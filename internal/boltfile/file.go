package boltfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/format"
)

// ErrLocked: another process, or another store of this one, has the file, and
// kept it for all of LockTimeout.
var ErrLocked = errors.New("stint: file is locked")

// Options are the options of Open.
type Options struct {
	LockTimeout time.Duration
	ReadOnly    bool // several may have the file open, and nobody to write
	Short       bool // with ReadOnly: the file may end early, and only its pages are read
	FS          *FS  // nil: the operating system's
}

// File is an open file.
type File struct {
	Path  string
	DB    *bolt.DB
	Check *bboltpage.Checker // nil if this process wrote all of the file

	file   *os.File // bbolt's own; closing it releases the lock if bbolt cannot
	fs     *FS
	size   atomic.Int64 // that the last transaction found
	broken atomic.Pointer[error]

	views     sync.RWMutex
	unsure    *bboltpage.Meta // of a failed commit that is in force
	unsynced  atomic.Bool
	commitLog commitLog
}

const (
	lockRetry = 10 * time.Millisecond
	allocSize = 1 << 20 // by which a file grows: bbolt's 16 MiB are much for one of 32 KiB
)

// Open opens a file that is there. The errors are ErrLocked, ErrCorrupt,
// ErrFormat, or the operating system's.
func Open(path string, o Options) (*File, error) {
	f := &File{Path: path, fs: o.FS}
	if f.fs == nil {
		f.fs = OS()
	}
	err := f.guard(func() error {
		m, err := f.inspect(o)
		if err != nil {
			return err
		}
		if !o.ReadOnly {
			b := f.boltOptions(o.LockTimeout)
			b.OpenFile = f.openFile
			f.DB, err = bolt.Open(path, 0o600, b)
		}
		f.size.Store(int64(m.Pages) * bboltpage.Size)
		f.Check = bboltpage.NewChecker(f.file, path, m)
		return err
	})
	if err == nil {
		f.DB.AllocSize = allocSize
		return f, nil
	}
	if f.file != nil {
		f.release()
	}
	return nil, openError(path, o.LockTimeout, err)
}

// openError returns the error of Open. Only what guard recovered from and what
// bbolt and stint found in the file is damage.
func openError(path string, lockTimeout time.Duration, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w: %s: still in use after %v", ErrLocked, path, lockTimeout)
	case errors.Is(err, format.ErrCorrupt), errors.Is(err, format.ErrFormat):
		return err
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum),
		errors.Is(err, bolterrors.ErrVersionMismatch),
		strings.Contains(err.Error(), "file size too small"):
		return fmt.Errorf("%w: %s: %w", format.ErrCorrupt, path, err)
	case !strings.Contains(err.Error(), path):
		err = fmt.Errorf("open %s: %w", path, err)
	}
	return fmt.Errorf("stint: %w", err)
}

// Explain returns the error of reading what a file needs to be used: the
// operating system's, or ErrCorrupt unless it says otherwise.
func (f *File) Explain(err error) error {
	switch sysErr, pathErr := syscall.Errno(0), (*fs.PathError)(nil); {
	case err == nil:
		return nil
	case errors.As(err, &sysErr), errors.As(err, &pathErr):
		return fmt.Errorf("stint: %w", err)
	case !errors.Is(err, format.ErrFormat) && !errors.Is(err, format.ErrCorrupt):
		return fmt.Errorf("%w: %s: %w", format.ErrCorrupt, f.Path, err)
	case !strings.Contains(err.Error(), f.Path):
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return err
}

// inspect checks what bbolt is about to trust. It opens the file to read only,
// to have the lock: another process might be writing. To read only, the file
// stays open so.
func (f *File) inspect(o Options) (m bboltpage.Meta, err error) {
	b := f.boltOptions(o.LockTimeout)
	b.ReadOnly = true // and bbolt does not read the list of free pages
	b.InitialMmapSize = 0
	b.OpenFile = f.openFile
	db, err := bolt.Open(f.Path, 0o600, b)
	if err != nil {
		return m, err
	}
	if !o.ReadOnly {
		m, err = bboltpage.CheckFile(f.file)
	} else if m, err = bboltpage.CheckMeta(f.file, o.Short); err == nil {
		f.DB = db
		return m, nil
	}
	return m, errors.Join(err, db.Close())
}

// openFile is os.OpenFile for bbolt, which would make a file that is not there.
func (f *File) openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	file, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
	if err != nil {
		return nil, err
	}
	if err := bboltpage.CheckMagic(file); err != nil {
		file.Close()
		return nil, err
	}
	f.file = file
	return file, nil
}

// Create opens a new file under another name than path, beside it.
func Create(path, what string, files *FS) (*File, error) {
	file, err := CreateTemp(path, what)
	if err != nil {
		return nil, err
	}
	f := &File{Path: file.Name(), fs: files}
	o := f.boltOptions(time.Second)
	o.OpenFile = func(path string, flag int, mode os.FileMode) (_ *os.File, err error) {
		f.file, err = os.OpenFile(path, flag, mode)
		return f.file, err
	}
	if err = file.Close(); err == nil {
		f.DB, err = bolt.Open(f.Path, 0o600, o)
	}
	if err != nil {
		os.Remove(f.Path)
		return nil, err
	}
	f.DB.AllocSize = allocSize
	return f, nil
}

// BuildUpon makes durable what the next save builds upon: the meta page and the
// name. The process that wrote them may have been killed before it synced them.
// Or it met an error, and then the system takes what it could not write for
// written. The next save begins another round for the same reason.
func (f *File) BuildUpon() error {
	m, err := bboltpage.ReadMeta(f.file)
	if err != nil {
		return err
	}
	f.unsure = &m
	f.commitLog.failed = f.commitLog.Begin > 0
	return cmp.Or(f.settle(), f.fs.SyncDir(filepath.Dir(f.Path)))
}

func (f *File) boltOptions(lockTimeout time.Duration) *bolt.Options {
	b := &bolt.Options{
		Timeout:      lockTimeout, // 0 would wait for ever
		FreelistType: bolt.FreelistMapType,
		NoStatistics: true,
		PageSize:     bboltpage.Size,
		NoSync:       f.fs.NoSync,
		// NoFreelistSync stays off: with it a bad page is a panic in a
		// goroutine of bbolt, and no caller can recover it.
	}
	if strconv.IntSize == 64 && runtime.GOOS != "windows" && f.fs.MaxSize == 0 {
		b.InitialMmapSize = 1 << 30 // address space only: a file that grows need not wait for its readers
	}
	return b
}

// OS returns the file of the operating system.
func (f *File) OS() *os.File { return f.file }

// Broken returns the error that broke the file, or nil.
func (f *File) Broken() error {
	if broken := f.broken.Load(); broken != nil {
		return *broken
	}
	return nil
}

// guard runs fn, which calls bbolt. A panic or a memory fault in it becomes
// ErrCorrupt, and the file is broken from then on.
func (f *File) guard(fn func() error) (err error) {
	if err := f.Broken(); err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = f.panicked(r)
			f.broken.Store(&err)
		}
	}()
	return fn()
}

// whole returns ErrCorrupt if the file was truncated since the last transaction
// that read. A transaction would make it longer, and hide that.
func (f *File) whole() error {
	info, err := f.file.Stat()
	if want := f.size.Load(); err == nil && info.Size() < want {
		return bboltpage.Short(f.file, f.Path, want)
	}
	return err
}

// panicked returns what is wrong with a file at which bbolt panicked. A file
// that another process has truncated is a memory fault.
func (f *File) panicked(r any) error {
	if f.file != nil {
		if err := f.whole(); errors.Is(err, format.ErrCorrupt) {
			return err
		}
	}
	return format.Damaged(f.Path, "%v", r)
}

// View runs fn in a transaction that reads. The transaction ends also after a
// panic, which touches no page: a writer may be waiting for it, to map more of
// the file.
func (f *File) View(fn func(tx *bolt.Tx) error) error {
	f.views.RLock()
	defer f.views.RUnlock()
	return f.guard(func() (err error) {
		tx, err := f.DB.Begin(false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tx.Rollback()) }()
		f.size.Store(tx.Size())
		return fn(tx)
	})
}

// Update runs fn in a transaction that writes. It begins with what is in the
// log: nothing in the tree is newer than that. After an error it is rolled back.
// After a panic it is not, because its pages cannot be trusted.
func (f *File) Update(fn func(tx *bolt.Tx) error) error {
	if err := f.syncName(); err != nil {
		return err
	}
	f.commitLog.mu.Lock()
	defer f.commitLog.mu.Unlock()
	return f.guard(func() error {
		if err := f.whole(); err != nil {
			return err
		}
		if err := f.settle(); err != nil {
			return fmt.Errorf("write the first pages of %s again: %w", f.Path, err)
		}
		tx, err := f.DB.Begin(true)
		if err != nil {
			return err
		}
		f.DB.MaxSize = f.fs.MaxSize
		id := uint64(tx.ID())
		round, err := f.commitLog.takeOver(tx)
		if err == nil {
			err = fn(tx)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err = tx.Commit(); err != nil {
			f.unsure, _ = bboltpage.MetaOf(f.file, id) // one that cannot be read is not in force
		}
		f.commitLog.ended(round, err)
		return err
	})
}

// settle makes the last commit durable if it failed and is in force all the
// same. bbolt reuses the pages that it freed, and on the disk they may still be
// in use. The page is written again because the system takes one that it could
// not write for written.
func (f *File) settle() error {
	if f.unsure == nil {
		return nil
	}
	at := int64(f.unsure.Place) * bboltpage.Size
	if _, err := f.fs.WriteAt(f.file, f.unsure.Page(), at); err != nil {
		return err
	}
	if err := f.fs.SyncFile(f.file); err != nil {
		return err
	}
	f.views.Lock() // readers that began before may read what the next commit overwrites
	defer f.views.Unlock()
	f.unsure = nil
	return nil
}

// Close closes the file and releases its lock.
func (f *File) Close() error {
	err := f.guard(f.DB.Close)
	if f.Broken() != nil {
		f.release()
		return nil // the caller that met the damage got the error
	}
	return err
}

// release closes a file that bbolt cannot close. Its mapping stays, and would
// keep the lock.
func (f *File) release() {
	unlock(f.file)
	f.file.Close()
}

// Snapshot writes the file as a transaction sees it. While the transaction
// lasts, none of its pages is written, except its meta page: the second commit
// from now overwrites that one. begun is called when it has been read, and
// there must be no commits before. The log is empty in the copy if emptyLog is
// true. (bbolt's own WriteTo opens the file anew, by a name that it no longer
// has after a compaction.)
func (f *File) Snapshot(tx *bolt.Tx, emptyLog bool, w io.Writer, begun func()) (int64, error) {
	id := uint64(tx.ID())
	m, err := bboltpage.MetaOf(f.file, id)
	if err != nil {
		return 0, err
	}
	if m == nil {
		return 0, format.Damaged(f.Path, "it has no meta page of transaction %d", id)
	}
	log := f.commitLog.Begin
	begun()
	section := func(from, to int64) io.Reader { return io.NewSectionReader(f.file, from, to-from) }
	var parts []io.Reader
	for i := range uint64(2) { // bbolt takes turns; the other page stands for the commit before
		page := m.Page()
		bboltpage.SealMeta(page, i, id-(i^id&1))
		parts = append(parts, bytes.NewReader(page))
	}
	at := int64(2 * bboltpage.Size)
	if emptyLog && log > 0 {
		parts = append(parts, section(at, log), bytes.NewReader(make([]byte, format.LogSize)))
		at = log + format.LogSize
	}
	return io.Copy(w, io.MultiReader(append(parts, section(at, tx.Size()))...))
}
