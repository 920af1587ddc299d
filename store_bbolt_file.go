package stint

import (
	"cmp"
	"encoding/binary"
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
)

// boltFile is an open bbolt file. A panic or a memory fault inside bbolt, which is how it meets a damaged file, becomes
// ErrCorrupt; after the first one every call returns that error, and bbolt is not called again: a lock inside it may
// be held for ever.
type boltFile struct {
	path   string
	db     *bolt.DB
	file   *os.File     // bbolt's own: closing it lets go of the lock where bbolt cannot be asked to
	check  *pageChecker // nil: this process wrote all of it
	broken atomic.Pointer[error]
	views  sync.RWMutex // held by each to read
	unsure []byte       // a meta page that is in force, and need not be on the disk: its commit failed

	log boltLog
}

// purpose is what a file is opened for.
type purpose uint8

const (
	toWrite purpose = iota
	toRead
	toSalvage // it may be shorter than it says; bbolt is to read nothing of it
)

// openBoltFile opens the file at path, which is there already.
func openBoltFile(path string, lockTimeout time.Duration, maxSize int, purpose purpose) (*boltFile, error) {
	f := &boltFile{path: path}
	o := boltOptions(lockTimeout, maxSize)
	o.OpenFile = f.openFile
	err := f.guard(func() (err error) {
		var m boltMeta
		if m, err = f.look(lockTimeout, purpose); err != nil {
			return err
		}
		if purpose == toWrite {
			f.db, err = bolt.Open(path, 0o600, o)
		}
		f.check = newPageChecker(f.file, path, m)
		return err
	})
	if err == nil {
		f.db.AllocSize = allocSize
		return f, nil
	}
	if f.file != nil {
		f.letGo()
	}
	return nil, openError(path, lockTimeout, err)
}

// openError returns what Open says of a file that could not be opened. Damage is only what guard has caught, and what bbolt or stint has found in
// the file: anything else is the operating system's.
func openError(path string, lockTimeout time.Duration, err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w: %s: still in use by another after %v", ErrLocked, path, lockTimeout)
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrFormat):
		return err
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch),
		strings.Contains(err.Error(), "file size too small"):
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	case strings.Contains(err.Error(), path):
		return fmt.Errorf("stint: %w", err)
	}
	return fmt.Errorf("stint: open %s: %w", path, err)
}

// checkRegular returns an error where there is no file at path, or what is no regular file: to open a pipe may take for ever.
func checkRegular(path string) error {
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

// resolve returns where a link leads, be there a file or not: one is made, and replaced, in that place.
func resolve(path string) (string, error) {
	if path == "" {
		return "", errors.New("open: no path")
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

// setAside renames a corrupt file, and returns whether it did: it does not where another has done so since it was found. It holds the lock
// meanwhile: without it, the file that it renames may be the new one of another, who has it in use.
func setAside(path, to string, found os.FileInfo, lockTimeout time.Duration) (done bool, err error) {
	if runtime.GOOS != "windows" { // which renames no file that is in use
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		defer file.Close()
		for begun := time.Now(); !lock(file); time.Sleep(lockRetry) {
			if time.Since(begun) > lockTimeout {
				return false, fmt.Errorf("%w: still in use by another after %v", ErrLocked, lockTimeout)
			}
		}
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(found, there) {
		return false, nil
	}
	err = os.Rename(path, to)
	return err == nil, err
}

// look has a look at the file before bbolt reads what it must not trust. It opens it to read only, for the lock: who else
// has the file might be writing. Who is not to write has it open so from then on.
func (f *boltFile) look(lockTimeout time.Duration, purpose purpose) (m boltMeta, err error) {
	o := boltOptions(lockTimeout, 0)
	o.ReadOnly = true // and the list of free pages is left alone
	o.InitialMmapSize = 0
	o.OpenFile = f.openFile
	db, err := bolt.Open(f.path, 0o600, o)
	if err != nil {
		return m, err
	}
	if purpose == toWrite {
		m, err = checkFile(f.file)
	} else if m, err = checkMeta(f.file, purpose); err == nil { // only a writer reads the list of free pages
		f.db = db
		return m, nil
	}
	return m, errors.Join(err, db.Close())
}

// openFile is os.OpenFile for bbolt, which would make a file that is not there, and take an empty one for a new one.
func (f *boltFile) openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	file, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || info.Size() == 0 {
		file.Close()
		return nil, cmp.Or(err, fmt.Errorf("%w: %s: it is empty; remove it to start anew", ErrCorrupt, path))
	}
	if _, err := file.ReadAt(make([]byte, 2*pageSize), 0); err != nil && err != io.EOF { // which bbolt would take for damage
		file.Close()
		return nil, err
	}
	f.opened(file)
	return file, nil
}

func (f *boltFile) opened(file *os.File) {
	f.file = file
	f.log.out, f.log.sync = file, func() error { return syncFile(file) }
}

// makeBoltFile opens the empty file at path as a new one.
func makeBoltFile(path string) (*boltFile, error) {
	f := &boltFile{path: path}
	o := boltOptions(time.Second, 0)
	o.OpenFile = func(path string, flag int, mode os.FileMode) (file *os.File, err error) {
		if file, err = os.OpenFile(path, flag, mode); err == nil {
			f.opened(file)
		}
		return file, err
	}
	var err error
	if f.db, err = bolt.Open(path, 0o600, o); err != nil {
		return nil, err
	}
	f.db.AllocSize = allocSize
	return f, nil
}

// replaced reports whether another file stands at the path by now: whoever held the lock before has compacted it, or set it
// aside.
func (f *boltFile) replaced() bool {
	mine, err := f.file.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(f.path)
	return err != nil || !os.SameFile(mine, there)
}

// buildUpon makes durable what is built upon, the meta page and the name, and has the next save begin a round, and bring what is in
// the log: whoever wrote it may have been killed before he synced it, or have met an error, and then the system takes what it could not
// write for written.
func (f *boltFile) buildUpon() error {
	m, err := readMeta(f.file)
	if err == nil {
		f.unsure, err = f.metaOf(m.tx)
	}
	f.log.failed = f.log.begin > 0
	return cmp.Or(err, f.settle(), syncDir(filepath.Dir(f.path)))
}

func boltOptions(lockTimeout time.Duration, maxSize int) *bolt.Options {
	o := &bolt.Options{
		Timeout:      lockTimeout, // 0 would wait for ever
		FreelistType: bolt.FreelistMapType,
		NoStatistics: true,
		PageSize:     pageSize,
		MaxSize:      maxSize,
		// NoFreelistSync stays off: with it a bad page is a panic in a goroutine of bbolt's, which nobody can recover.
	}
	if strconv.IntSize == 64 && runtime.GOOS != "windows" && maxSize == 0 {
		o.InitialMmapSize = 1 << 30 // address space only: a growing file need not stop its readers to be mapped anew
	}
	return o
}

const (
	lockRetry = 10 * time.Millisecond
	pageSize  = 4096
	allocSize = 1 << 20 // a file grows by this: bbolt's 16 MiB are much for one that may stay at 32 KiB
)

// guard runs fn, which calls bbolt, and turns a panic or a memory fault in it into ErrCorrupt, for good.
func (f *boltFile) guard(fn func() error) (err error) {
	if broken := f.broken.Load(); broken != nil {
		return *broken
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", ErrCorrupt, f.path, r)
			f.broken.Store(&err)
		}
	}()
	return fn()
}

// view and update run fn in a transaction, which is rolled back after an error. One that writes and panicked is left alone: its
// pages cannot be trusted, and guard sees to it that nobody comes after it. One that reads ends all the same, which touches no page: a
// writer who came before may be waiting for that, to map more of the file.
func (f *boltFile) view(fn func(tx *bolt.Tx) error) error {
	f.views.RLock()
	defer f.views.RUnlock()
	return f.guard(func() (err error) {
		tx, err := f.db.Begin(false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tx.Rollback()) }()
		return fn(tx)
	})
}

// update begins with what is in the log: nothing in the tree is newer than that.
func (f *boltFile) update(fn func(tx *bolt.Tx) error) error {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return f.guard(func() error {
		if err := f.settle(); err != nil {
			return fmt.Errorf("write the first pages of %s again: %w", f.path, err)
		}
		tx, err := f.db.Begin(true)
		if err != nil {
			return err
		}
		id := uint64(tx.ID())
		round, err := f.log.takeOver(tx)
		if err == nil {
			err = fn(tx)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err = tx.Commit(); err != nil {
			f.unsure, _ = f.metaOf(id) // one that cannot be read is not in force
		}
		f.log.ended(round, err)
		return err
	})
}

// metaOf returns the meta page of a transaction; nil where there is none.
func (f *boltFile) metaOf(id uint64) ([]byte, error) {
	for i := range int64(2) {
		page := make([]byte, pageSize)
		if _, err := f.file.ReadAt(page[:metaBytes], i*pageSize); err != nil {
			return nil, err
		}
		if isMeta(page) && binary.NativeEndian.Uint64(page[64:]) == id {
			binary.NativeEndian.PutUint64(page, uint64(i)) // the checksum is not of that, and who writes the page again goes by it
			return page, nil
		}
	}
	return nil, nil
}

// settle makes the last commit durable if it is in force, though it failed. bbolt takes the pages that it freed for free by
// now, and on the disk they may still be in use; and the system takes a page that it could not write for written.
func (f *boltFile) settle() error {
	if f.unsure == nil {
		return nil
	}
	if _, err := f.log.out.WriteAt(f.unsure, int64(binary.NativeEndian.Uint64(f.unsure))*pageSize); err != nil {
		return err
	}
	if err := f.log.sync(); err != nil {
		return err
	}
	f.views.Lock() // those that began before may be reading what the next commit takes for free
	defer f.views.Unlock()
	f.unsure = nil
	return nil
}

// close lets go of the file and its lock.
func (f *boltFile) close() error {
	err := f.guard(f.db.Close)
	if f.broken.Load() != nil {
		f.letGo()
		return nil // whoever met the damage was told
	}
	return err
}

// letGo closes a file that bbolt can no longer be asked to close. What it has mapped stays so, and would keep the lock.
func (f *boltFile) letGo() {
	unlock(f.file)
	f.file.Close()
}

// sizes returns the bytes of the file, and those of its pages that are free, as bbolt last wrote them down.
func (f *boltFile) sizes() (size, free int64) {
	info, err := f.file.Stat()
	if err != nil {
		return 0, 0
	}
	var newest, freelist uint64
	var page [pageSize]byte
	for i := range int64(2) {
		if _, err := f.file.ReadAt(page[:80], i*pageSize); err != nil {
			return info.Size(), 0
		}
		// A page's header is 16 bytes; in a meta page the freelist's page number is at 48, the transaction's at 64.
		if id := binary.NativeEndian.Uint64(page[64:]); id >= newest {
			newest, freelist = id, binary.NativeEndian.Uint64(page[48:])
		}
	}
	if _, err := f.file.ReadAt(page[:24], int64(freelist)*pageSize); err != nil {
		return info.Size(), 0
	}
	n := uint64(binary.NativeEndian.Uint16(page[10:]))
	if n == 0xFFFF { // more than fit in 16 bits: the first of the list says how many
		n = binary.NativeEndian.Uint64(page[16:])
	}
	return info.Size(), min(int64(n)*pageSize, info.Size())
}

// makeFile makes a new file, unless another process has made one meanwhile.
func makeFile(path string, names Names) error {
	labels := make(map[Name]string)
	for name, spec := range names {
		labels[name] = spec.Label
	}
	err := newBoltFile(path, func(f *boltFile) error {
		return f.update(func(tx *bolt.Tx) error { return layOut(tx, labels) })
	})
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// newBoltFile makes a file under another name, complete and synced, and links it to its own: bbolt, whose power is cut in
// its first moments, can leave a file that it will not open. A link, unlike a rename, never replaces a file that
// is there: that is fs.ErrExist.
func newBoltFile(path string, fill func(f *boltFile) error) error {
	temp, err := tempName(path, "new")
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	f, err := makeBoltFile(temp)
	if err != nil {
		return err
	}
	if err := errors.Join(fill(f), f.close()); err != nil {
		return err
	}
	if err := link(temp, path); errors.Is(err, fs.ErrExist) {
		return err
	} else if err != nil { // a file system without links: there, one that is made in this moment may be replaced
		if _, err := os.Lstat(path); err == nil {
			return &fs.PathError{Op: "make", Path: path, Err: fs.ErrExist}
		}
		if err := os.Rename(temp, path); err != nil {
			return err
		}
	}
	return syncDir(filepath.Dir(path))
}

// tempName makes an empty file, mode 0600, beside the one at path, and returns its name.
func tempName(path, what string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"."+what+"-*")
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// layOut writes what every file of the format has.
func layOut(tx *bolt.Tx, labels map[Name]string) error {
	meta, err := tx.CreateBucket(metaBucket)
	if err != nil {
		return err
	}
	if err := meta.Put(formatKey, bigEndian(formatNumber)); err != nil {
		return err
	}
	if _, err := meta.CreateBucket(namesBucket); err != nil {
		return err
	}
	for _, name := range [][]byte{holdsBucket, journalBucket} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	for _, b := range []*bolt.Bucket{meta.Bucket(namesBucket), tx.Bucket(holdsBucket), tx.Bucket(journalBucket)} {
		if err := b.SetSequence(sumStart); err != nil {
			return err
		}
	}
	return putNames(tx, labels)
}

// Tests have these fail.
var syncFile, syncDir, link = syncData, syncNames, os.Link

// syncNames makes the names in a directory durable, where the operating system and the file system have that notion, and it may be opened.
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
