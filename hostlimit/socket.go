package hostlimit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/boltfile"
)

const (
	// maxSocketPath is a length that every system allows for a socket's path.
	maxSocketPath = 100

	// maxSocketName is the longest name of a socket. It leaves space for the short
	// way to its folder.
	maxSocketName = 48
)

// place has the paths of a file and its socket. The socket is in the file's own
// folder, so whoever may make the one may make the other.
type place struct {
	file   string // without links
	socket string
}

// placeOf returns the place of a file, which need not be there yet.
func placeOf(path string) (place, error) {
	file, err := boltfile.Resolve(path)
	if err == nil {
		file, err = filepath.Abs(file)
	}
	var folder string
	if err == nil { // the folder may be reached by several paths, too
		folder, err = filepath.EvalSymlinks(filepath.Dir(file))
	}
	if err != nil {
		return place{}, fmt.Errorf("hostlimit: %w", err)
	}
	file = filepath.Join(folder, filepath.Base(file))
	name := filepath.Base(file) + ".sock"
	if len(name) > maxSocketName { // even if the path is short: that of another process may be long
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:16]) + ".sock"
	}
	return place{file: file, socket: filepath.Join(folder, name)}, nil
}

// socket is a listener at a path.
type socket struct {
	net.Listener
	path string
	id   inode
}

// inode identifies a file of this machine. It is zero if the system does not say it.
type inode struct{ device, number uint64 }

// inPlace reports whether the socket is at its path.
func (so *socket) inPlace() bool {
	info, err := os.Lstat(so.path)
	return err == nil && idOf(info) == so.id
}

// remove removes the socket if it is still at its path.
func (so *socket) remove() {
	if so.inPlace() {
		os.Remove(so.path)
	}
}

// listen makes the socket. The caller has the file. So a socket that is there
// belongs to a dead process, or to an owner whose file was replaced, or to no
// process of stint at all. The error is ErrRefused in the last case.
func (p place) listen() (*socket, error) {
	if err := p.clear(); err != nil { // steps clear, ask, remove stale
		return nil, err
	}
	short, done, err := shorten(p.socket)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"}) // steps bind, listen
	if noSockets(err) {
		err = fmt.Errorf("this system has no Unix sockets: %w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would remove what is at the path, whatever that is
	err = p.protect(p.socket)
	info, statErr := os.Lstat(p.socket) // step stat
	if err = errors.Join(err, statErr); err != nil {
		l.Close()
		os.Remove(p.socket) // step give up socket
		return nil, err
	}
	return &socket{l, p.socket, idOf(info)}, nil
}

// clear removes a socket that no owner of this file uses.
func (p place) clear() error {
	info, err := os.Lstat(p.socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !isSocket(info):
		return fmt.Errorf("%w: %s is there, and is not a socket: move it away", ErrRefused, p.socket)
	}
	for range 2 { // a process that hangs up may be dying
		if err = p.listener(); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(p.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// listener returns nil if no process listens at the socket, or an owner that is
// closing, as one does whose file was replaced. The error is ErrNoOwner if the file of
// the caller was replaced, and the process at the socket has the new one.
func (p place) listener() error {
	nc, err := p.dial(defaultTimeout)
	if err != nil {
		if isStale(err) {
			return nil
		}
		return err
	}
	c, err := newConn(nc, nil, defaultTimeout, func(*conn, error) {})
	switch {
	case err == nil:
		c.close()
		return fmt.Errorf("%w: %s was replaced, and another process has the new one", ErrNoOwner, p.file)
	case isAny(err, wire.ErrMessage, ErrNoAnswer, errHungUp):
		return foreign(p, err)
	}
	return nil
}

// foreign returns the error of a socket at which no process of stint listens.
func foreign(p place, err error) error {
	return fmt.Errorf("%w: another program listens at %s: stop it, or use another path for the file: %w",
		ErrRefused, p.socket, err)
}

// dial connects to the process at the socket. The error is ErrNoOwner if there
// is none, and ErrRefused if it belongs to a user who must not have the file, or
// is no process of stint. If the socket's mode keeps this user out, it is both.
func (p place) dial(timeout time.Duration) (net.Conn, error) {
	short, done, err := shorten(p.socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoOwner, err)
	}
	defer done()
	nc, err := net.DialTimeout("unix", short, timeout)
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			op.Addr = &net.UnixAddr{Name: p.socket, Net: "unix"} // not the short way
		}
		switch {
		case errors.Is(err, syscall.EPROTOTYPE): // no process of stint listens like that
			return nil, foreign(p, err)
		case errors.Is(err, fs.ErrPermission): // perhaps only until an owner has given the socket to the file's user
			return nil, fmt.Errorf("%w: %w: %w", ErrRefused, ErrNoOwner, err)
		}
		return nil, fmt.Errorf("%w: %w", ErrNoOwner, err)
	}
	if err := p.checkOwner(nc); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(target error) bool { return errors.Is(err, target) })
}
