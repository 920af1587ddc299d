package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
)

// isPath reports whether an address is the path of a socket, and not HOST:PORT.
func isPath(address string) bool {
	return strings.ContainsAny(address, `/\`) || !strings.Contains(address, ":")
}

// sockets is where the server listens.
type sockets struct {
	passed    []*os.File // by systemd, instead of the others; nil without them
	addresses []string
	gid       int // of a group that may connect, or -1
}

// sockets returns where to listen, by the flags. It looks for what can go wrong before
// there is a file.
func (f *Config) sockets(usual string, password bool) (at sockets, err error) {
	at = sockets{passedFiles(), f.Listen, -1}
	for i, address := range at.addresses {
		if err := f.allowed(address, password); err != nil {
			return at, err
		}
		for _, other := range at.addresses[:i] {
			if sameAddress(other, address) {
				return at, misuse("--listen %s: is there twice: --listen %s listens there, too", address, other)
			}
		}
	}
	if at.passed != nil {
		return at, nil
	}
	if at.addresses == nil {
		at.addresses = []string{usual}
	}
	for _, address := range at.addresses {
		if !isPath(address) {
			_, err = net.ResolveTCPAddr("tcp", address)
		} else if filepath.Dir(address) != filepath.Dir(usual) { // that directory may be made with the file
			_, err = os.Stat(filepath.Dir(address))
		}
		if err != nil {
			return at, console.Failed(fmt.Errorf("--listen %s: %w", address, err))
		}
		if isPath(address) {
			err = nameable(address)
		}
		if err != nil {
			return at, console.Failed(err)
		}
	}
	if f.Group != "" {
		group, err := user.LookupGroup(f.Group)
		if err == nil {
			at.gid, err = strconv.Atoi(group.Gid)
		}
		if err != nil {
			return at, console.Failed(fmt.Errorf("--socket-group %s: %w", f.Group, err))
		}
	}
	return at, nil
}

// allowed returns an error if the address would let everybody in.
func (f *Config) allowed(address string, password bool) error {
	if isPath(address) {
		if address == "" {
			return misuse("--listen is empty: give it a value, or leave the flag out")
		}
		if strings.Trim(address, "0123456789") == "" {
			return misuse("--listen %s: want the path of a socket, or HOST:PORT: 127.0.0.1:%s or :%s", address, address, address)
		}
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return misuse("--listen %q: want the path of a socket, or HOST:PORT", address)
	}
	if ip := net.ParseIP(host); !password && host != "localhost" && !ip.IsLoopback() {
		return misuse("--listen %s: other machines can reach it: add --password-file, or listen at 127.0.0.1",
			address)
	}
	return nil
}

// sameAddress reports whether two addresses are one, however they are written, or
// one includes the other. The server would wait for itself to end.
func sameAddress(a, b string) bool {
	if a == b || isPath(a) != isPath(b) {
		return a == b
	}
	if isPath(a) {
		x, xErr := os.Stat(filepath.Dir(a))
		y, yErr := os.Stat(filepath.Dir(b))
		return xErr == nil && yErr == nil && os.SameFile(x, y) && filepath.Base(a) == filepath.Base(b)
	}
	x, xErr := net.ResolveTCPAddr("tcp", a)
	y, yErr := net.ResolveTCPAddr("tcp", b)
	return xErr == nil && yErr == nil && x.Port == y.Port && x.Port != 0 && // 0 is any port that is free
		(x.String() == y.String() || includes(x.IP, y.IP) || includes(y.IP, x.IP))
}

// includes reports whether a socket at all is also at one. IPv6's address for all
// is IPv4's, too.
func includes(all, one net.IP) bool {
	return all == nil || all.Equal(net.IPv6unspecified) || all.Equal(net.IPv4zero) && one.To4() != nil
}

// listeners returns the sockets that systemd passed, or else those of the
// addresses. It returns none if ctx ends while another server has one of them.
func (f *Config) listeners(ctx context.Context, s *server, at sockets) (ls []net.Listener, err error) {
	defer func() {
		if err != nil || ctx.Err() != nil {
			for _, l := range ls {
				_ = l.Close()
			}
			ls = nil
		}
	}()
	if at.passed != nil {
		if f.Listen != nil {
			s.log("systemd passed %s: --listen is not used", display.Plural(len(at.passed), "socket"))
		}
		return f.passed(at.passed, s.password != nil)
	}
	for _, address := range at.addresses {
		var l net.Listener
		if isPath(address) {
			l, err = s.listenUnix(ctx, address, at.gid)
		} else {
			l, err = s.listenTCP(ctx, address)
		}
		if err != nil {
			return ls, err
		}
		if l == nil {
			return ls, nil
		}
		ls = append(ls, l)
	}
	return ls, nil
}

func (f *Config) passed(files []*os.File, password bool) (ls []net.Listener, err error) {
	for _, file := range files {
		l, err := net.FileListener(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return ls, fmt.Errorf("the socket that systemd passed as %s: %w", file.Name(), err)
		}
		ls = append(ls, l)
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // it is systemd's
		} else if err := f.allowed(l.Addr().String(), password); err != nil {
			return ls, err
		}
	}
	return ls, nil
}

// listenTCP listens at HOST:PORT, as soon as no other server does. It returns
// nil if ctx ends before.
func (s *server) listenTCP(ctx context.Context, address string) (l net.Listener, err error) {
	if !s.retry(ctx, display.Visible(address)+" is in use", func() bool {
		l, err = net.Listen("tcp", address)
		return !errors.Is(err, syscall.EADDRINUSE)
	}) {
		return nil, nil
	}
	return l, err
}

// listenUnix listens at a path, as soon as no other server does: PATH.lock is for
// one at a time. It returns nil if ctx ends before. Only the user, and the group unless it is -1, may connect.
func (s *server) listenUnix(ctx context.Context, path string, gid int) (net.Listener, error) {
	var unlock func() // it ends with the process, too
	var err error
	if !s.retry(ctx, "another server has "+display.Visible(path), func() bool {
		unlock, err = boltfile.Lock(path + ".lock")
		return !errors.Is(err, boltfile.ErrLocked)
	}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s.lock: %w", path, err)
	}
	if !s.retry(ctx, "another program listens at "+display.Visible(path), func() bool { return !answers(path) }) {
		unlock()
		return nil, nil
	}
	l, err := bindPrivate(path, gid)
	if err != nil {
		unlock()
		return nil, err
	}
	return &unixListener{l, path, unlock}, nil
}

// nameable returns an error if the path has a file that is no socket, if clients
// cannot name the socket, or if bindPrivate cannot name it before it has its name:
// the system cuts such a path off, or refuses it.
func nameable(path string) error {
	const most = len(syscall.RawSockaddrUnix{}.Path) - 1 // it ends with a zero
	temp := filepath.Join(filepath.Dir(path), temporary+"4294967295", "s")
	if max(len(path), len(temp)) > most {
		return fmt.Errorf("the path %s is too long for a socket: name a shorter one with --listen", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s is there, and no socket: name another with --listen", path)
	}
	return nil
}

// temporary begins the names of directories for new sockets.
const temporary = ".resp-"

// answers reports whether a program listens at a path. A stint serve has the lock
// while it does, so this is another program, which must keep its socket, or a
// server whose process is just ending.
func answers(path string) bool {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// bindPrivate binds a socket under another name, gives it its owner and mode,
// and then its name: no other process can connect in between, and a socket that
// a killed server left is replaced.
func bindPrivate(path string, gid int) (net.Listener, error) {
	if err := nameable(path); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), temporary) // mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	temp := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	mode := os.FileMode(0o600)
	if gid >= 0 {
		mode = 0o660
		err = os.Chown(temp, -1, gid)
	}
	if err = errors.Join(err, os.Chmod(temp, mode)); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	net.Listener
	path   string
	unlock func()
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	err := errors.Join(os.Remove(l.path), l.Listener.Close())
	l.unlock()
	return err
}

// retry calls try every tenth of a second until it returns true, and logs why the
// server waits. It returns false if ctx ends before.
func (s *server) retry(ctx context.Context, why string, try func() bool) bool {
	for first := true; !try(); first = false {
		if first {
			s.log("%s: waiting to take over", why)
		}
		if !pause(ctx) {
			return false
		}
	}
	return true
}

// pause waits for a tenth of a second. It returns false if ctx ends before.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(100 * time.Millisecond):
		return true
	}
}
