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

// ErrLocked: another process, or another store of this process, held the file's
// lock for all of LockTimeout.
var ErrLocked = errors.New("stint: file is locked")

// Options are the options of Open.
type Options struct {
	LockTimeout time.Duration
	ReadOnly    bool // share the file with other readers, and exclude writers
	Short       bool // accept a file that ends early; needs ReadOnly
	FS          *FS  // nil means OS()
}

// File is an open file.
type File struct {
	Path  string
	DB    *bolt.DB
	Check *bboltpage.Checker // nil if this process wrote all of the file

	file   *os.File // bbolt's handle, which has the lock
	fs     *FS
	size   atomic.Int64 // bytes, at the last reading transaction
	broken atomic.Pointer[error]

	views     sync.RWMutex
	unsure    *bboltpage.Meta // meta page that may not be durable; or nil
	unsynced  atomic.Bool
	commitLog commitLog
}

const (
	lockRetry = 2 * time.Millisecond
	boltRetry = 50 * time.Millisecond // bbolt's own: it gives up so much before its timeout
	allocSize = 1 << 20               // step by which a file grows; bbolt's is 16 MiB
)

// Open opens a file that is there. The errors are ErrLocked, ErrCorrupt,
// ErrFormat, or the operating system's.
func Open(path string, o Options) (*File, error) {
	f := &File{Path: path, fs: o.FS}
	if f.fs == nil {
		f.fs = OS()
	}
	err := f.guard(func() (err error) {
		var m bboltpage.Meta
		if o.ReadOnly || !locksTwice {
			m, err = f.inspect(o)
		}
		if err == nil && !o.ReadOnly {
			m, err = f.openToWrite(o.LockTimeout)
		}
		if err != nil {
			return err
		}
		f.size.Store(int64(m.Pages) * bboltpage.Size)
		f.Check = bboltpage.NewChecker(f.file, path, m)
		return nil
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

// openError returns the error of Open. Only two kinds of errors are damage:
// those that guard recovered from, and those that bbolt or stint found in the
// file.
func openError(path string, lockTimeout time.Duration, err error) error {
	switch {
	case errors.Is(err, ErrLocked), errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w: %s: still in use by another process or store after %v", ErrLocked, path, lockTimeout)
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

// Explain adds the path to an error of reading the file's labels or journal. It
// returns ErrCorrupt, unless the error is ErrFormat or the operating system's.
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

// inspect checks the pages that bolt.Open trusts. It opens the file read-only, with
// bbolt's lock, because another process might be writing. With o.ReadOnly the
// file stays open.
func (f *File) inspect(o Options) (m bboltpage.Meta, err error) {
	b := f.boltOptions(o.LockTimeout)
	b.ReadOnly = true // then bbolt does not read the list of free pages
	b.InitialMmapSize = 0
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
	unlock(f.file) // a process that is being started would keep the lock
	return m, errors.Join(err, db.Close())
}

// openToWrite opens the file, and checks the pages that bolt.Open trusts when it has the
// lock, so no other process changes them in between. Where openFile cannot take the lock,
// it checks them again, because inspect gave up its lock.
func (f *File) openToWrite(timeout time.Duration) (m bboltpage.Meta, err error) {
	b := f.boltOptions(timeout)
	open := b.OpenFile
	b.OpenFile = func(path string, flag int, mode os.FileMode) (file *os.File, err error) {
		if file, err = open(path, flag, mode); err == nil && locksTwice {
			m, err = bboltpage.CheckFile(file)
		}
		return file, err // after an error bbolt closes it
	}
	if f.DB, err = bolt.Open(f.Path, 0o600, b); err == nil && !locksTwice {
		if m, err = bboltpage.CheckFile(f.file); err != nil {
			f.DB.Close()
		}
	}
	return m, err
}

// openFile is os.OpenFile for bbolt, except that it never makes a file. It takes bbolt's
// lock before bbolt does, which then has it already, unless a handle cannot take it twice.
func (f *File) openFile(path string, flag int, lockTimeout time.Duration) (*os.File, error) {
	file, err := os.OpenFile(path, flag&^os.O_CREATE, 0)
	if err != nil {
		return nil, err
	}
	if err = bboltpage.CheckMagic(file); err == nil && locksTwice {
		err = lock(file, flag&os.O_RDWR != 0, lockTimeout)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	f.file = file
	return file, nil
}

// Create makes a new file beside path, under another name, and opens it.
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

// BuildUpon makes durable what the next save relies on: the meta page and the
// name. The process that wrote them may have been killed before its sync, or
// its sync may have failed. After a failed write the operating system reports
// the page as written. So the meta page is written again, and the next save is
// a transaction, which begins another round of the log.
func (f *File) BuildUpon() error {
	m, err := bboltpage.ReadMeta(f.file)
	if err != nil {
		return err
	}
	f.unsure = &m
	f.commitLog.failed = f.commitLog.Begin > 0
	return cmp.Or(f.confirm(), f.fs.SyncDir(filepath.Dir(f.Path)))
}

func (f *File) boltOptions(lockTimeout time.Duration) *bolt.Options {
	b := &bolt.Options{
		Timeout:      lockTimeout + boltRetry - lockRetry, // one try if it is shorter than lockRetry
		FreelistType: bolt.FreelistArrayType,              // the map breaks up the rows of pages that the list needs
		NoStatistics: true,
		PageSize:     bboltpage.Size,
		NoSync:       f.fs.NoSync,
		OpenFile: func(path string, flag int, _ os.FileMode) (*os.File, error) {
			return f.openFile(path, flag, lockTimeout)
		},
		// NoFreelistSync stays off. With it a bad page is a panic in a goroutine of
		// bbolt's, from which guard cannot recover.
	}
	if strconv.IntSize == 64 && runtime.GOOS != "windows" && f.fs.MaxSize == 0 {
		b.InitialMmapSize = 1 << 30 // address space only, so that a growing file seldom waits for its readers
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

// guard runs fn, which calls bbolt. After a panic or a memory fault in fn it
// returns ErrCorrupt. The file is broken from then on.
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
	return f.named(fn())
}

// named gives an error of the operating system the path of the file. A handle
// keeps its name, which after a compaction is that of the copy.
func (f *File) named(err error) error {
	if wrong, ok := err.(*fs.PathError); ok && f.file != nil && wrong.Path == f.file.Name() {
		return &fs.PathError{Op: wrong.Op, Path: f.Path, Err: wrong.Err}
	}
	return err
}

// whole returns ErrCorrupt if the file is shorter than at the last reading
// transaction. Without this check a write would extend the file, and hide the
// damage. It looks for the end with a seek, because a stat makes Linux give the
// next write a time of its own, and then each sync also writes the inode: a lone
// caller made three quarters of the commits.
func (f *File) whole() error {
	size, err := f.file.Seek(0, io.SeekEnd)
	if want := f.size.Load(); err == nil && size < want {
		return bboltpage.Short(f.file, f.Path, want)
	}
	return err
}

// panicked returns the damage that made bbolt panic. If another process has
// truncated the file, reading it is a memory fault.
func (f *File) panicked(r any) error {
	if f.file != nil {
		if err := f.whole(); errors.Is(err, format.ErrCorrupt) {
			return err
		}
	}
	return format.Damaged(f.Path, "%v", r)
}

// View runs fn in a transaction that reads. After a panic the transaction ends
// too, because a writer that maps more of the file may wait for it. Ending it
// touches no page.
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

// Update runs fn in a transaction that writes. It first moves the records of
// the log into the tree, so that fn's changes are newer. After an error the
// transaction is rolled back. After a panic it is not, because its pages cannot
// be trusted.
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
		if err := f.confirm(); err != nil {
			return fmt.Errorf("write the first pages of %s again: %w", f.Path, f.named(err))
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
			f.unsure, _ = bboltpage.MetaOf(f.file, id) // a meta page that cannot be read is not in force
		}
		f.commitLog.ended(round, err)
		return err
	})
}

// confirm makes the last commit durable if that commit failed after it wrote
// its meta page. bbolt goes on from that page, and reuses the pages that the
// commit freed. If the meta page were not on the disk, a power cut would bring
// back a tree that needs them. So the meta page is written again. A sync alone
// does not help, because the operating system reports a page as written even if
// the write failed.
func (f *File) confirm() error {
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
	f.views.Lock() // earlier readers may use pages that the next commit overwrites
	defer f.views.Unlock()
	f.unsure = nil
	return nil
}

// Close closes the file and releases its lock.
func (f *File) Close() error {
	err := f.guard(f.DB.Close)
	if f.Broken() != nil {
		f.release()
		return nil // an earlier call returned the error
	}
	return err
}

// release closes a file that bbolt cannot close. It also releases the lock,
// which the mapping of the file would keep.
func (f *File) release() {
	unlock(f.file)
	f.file.Close()
}

// Snapshot writes the file as a transaction sees it. While the transaction
// lasts, bbolt overwrites none of its pages, except its meta page in the second
// commit from now. So the caller must prevent commits until Snapshot has read
// that page and calls begun. If emptyLog is true, the log in the copy is empty.
// (bbolt's own WriteTo opens the file by its old name, which is wrong after a
// compaction.)
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
	for i := range uint64(2) { // the meta pages take turns: the other one is of the commit before
		page := m.Page()
		bboltpage.SealMeta(page, i, id-(i^id&1))
		parts = append(parts, bytes.NewReader(page))
	}
	at := int64(2 * bboltpage.Size)
	if emptyLog && log > 0 {
		parts = append(parts, section(at, log), bytes.NewReader(make([]byte, format.LogSize)))
		at = log + format.LogSize
	}
	n, err := io.Copy(w, io.MultiReader(append(parts, section(at, tx.Size()))...))
	if err == nil && n < tx.Size() { // the file was truncated
		err = bboltpage.Short(f.file, f.Path, tx.Size())
	}
	return n, err
}
