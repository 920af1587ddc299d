//go:build unix

package hostlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/boltfile"
)

// noSockets reports whether the system has no Unix sockets.
func noSockets(err error) bool { return errors.Is(err, syscall.EAFNOSUPPORT) }

// isStale reports whether no process listens at a socket.
func isStale(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

func isSocket(info os.FileInfo) bool { return info.Mode().Type() == os.ModeSocket }

func idOf(info os.FileInfo) inode {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}
	}
	return inode{uint64(st.Dev), st.Ino}
}

func uidOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return os.Geteuid()
}

// shorten returns a path of the same socket that is short enough to connect and
// to listen. It goes through the open folder, if the system shows it, and else
// through a link in a new folder that only this process knows. Call done when
// the path is no longer needed.
func shorten(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	if folder, err := os.Open(filepath.Dir(path)); err == nil {
		open := "/proc/self/fd/" + strconv.Itoa(int(folder.Fd()))
		if _, err := os.Stat(open + "/."); err == nil {
			return open + "/" + filepath.Base(path), func() { folder.Close() }, nil
		}
		folder.Close()
	}
	return shortenByLink(path)
}

func shortenByLink(path string) (short string, done func(), err error) {
	own, err := os.MkdirTemp("/tmp", "stint") // mode 0700
	if err != nil {
		return "", nil, err
	}
	done = func() { os.RemoveAll(own) }
	link := filepath.Join(own, "f")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		done()
		return "", nil, err
	}
	return filepath.Join(link, filepath.Base(path)), done, nil
}

// lock locks a file beside the socket for a process that becomes the owner, or
// that closes. Call unlock even after an error, which is stint.ErrLocked if another
// process has the lock for longer than d.
func (p place) lock(d time.Duration) (unlock func(), err error) {
	path := p.socket + ".lock"
	for begun := time.Now(); ; <-time.After(2 * time.Millisecond) {
		unlock, err = boltfile.Lock(path)
		if !errors.Is(err, stint.ErrLocked) || time.Since(begun) >= d {
			break
		}
	}
	if err == nil {
		err = p.protect(path)
	}
	_, statErr := os.Lstat(path)
	if statErr == nil && errors.Is(err, fs.ErrPermission) { // until the other process has given it to the file's user
		err = fmt.Errorf("%w: %w: %w", ErrRefused, ErrNoOwner, err)
	}
	return unlock, err
}

// protect lets only this process's user open a socket or a lock. If that is root,
// it gives them to the file's user.
func (p place) protect(path string) error {
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	if uid := p.uid(); os.Geteuid() == 0 && uid != 0 {
		return os.Lchown(path, uid, -1)
	}
	return nil
}

// uid returns the user of the file or, while there is none, of its folder: the
// user who may make it.
func (p place) uid() int {
	for _, path := range []string{p.file, filepath.Dir(p.file)} {
		if info, err := os.Stat(path); err == nil {
			return uidOf(info)
		}
	}
	return os.Geteuid()
}

// checkGuest returns ErrRefused unless a guest is a process of this user, of
// the file's user, or of root.
func (p place) checkGuest(nc net.Conn) error {
	uid, known, err := peerOf(nc)
	switch {
	case err != nil:
		return fmt.Errorf("%w: the user of the process is not known: %w", ErrRefused, err)
	case known && !trusted(uid, os.Geteuid(), p.uid()):
		return fmt.Errorf("%w: a process of user %d, want user %d or that of %s", ErrRefused, uid, os.Geteuid(), p.file)
	}
	return nil
}

// checkOwner returns ErrRefused unless the process at the socket belongs to
// this user, to the file's user, or to root. It is called before anything is
// sent. If the system does not say whose process it is, the socket's user
// counts.
func (p place) checkOwner(nc net.Conn) error {
	uid, known, err := peerOf(nc)
	if err == nil && !known {
		var info os.FileInfo
		if info, err = os.Lstat(p.socket); err == nil {
			uid = uidOf(info)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: the user of the process at %s is not known: %w", ErrRefused, p.socket, err)
	case !trusted(uid, os.Geteuid(), p.uid()):
		return fmt.Errorf("%w: the process at %s belongs to user %d, want user %d or that of %s",
			ErrRefused, p.socket, uid, os.Geteuid(), p.file)
	}
	return nil
}

// trusted reports whether a process of user uid may have the same file.
func trusted(uid, own, file int) bool { return uid == 0 || uid == own || uid == file }

// peerOf returns the user at the other end of a socket.
func peerOf(nc net.Conn) (uid int, known bool, err error) {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return 0, false, errors.ErrUnsupported
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var peerErr error
	if err := raw.Control(func(fd uintptr) { uid, known, peerErr = peerUID(int(fd)) }); err != nil {
		return 0, false, err
	}
	return uid, known, peerErr
}
