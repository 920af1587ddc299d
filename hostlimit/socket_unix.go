//go:build unix

package hostlimit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// noSockets reports whether the system has no Unix sockets.
func noSockets(err error) bool { return errors.Is(err, syscall.EAFNOSUPPORT) }

// socketFolder is the same for all processes, whatever their environment.
func socketFolder() string { return "/tmp" }

// ownerOf returns the user of a file, or of its folder if it is not there yet.
func ownerOf(file string) int {
	for _, path := range []string{file, filepath.Dir(file)} {
		if info, err := os.Stat(path); err == nil {
			return uidOf(info)
		}
	}
	return os.Geteuid()
}

func uidOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return os.Geteuid()
}

// makeFolder makes a folder that only one user may enter, or checks the folder
// that is there.
func makeFolder(path string, uid int) error {
	if err := os.Mkdir(path, 0o700); err == nil && os.Geteuid() != uid {
		os.Chown(path, uid, -1)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm() != 0o700 || uidOf(info) != uid {
		return fmt.Errorf("%w: %s is not a folder of user %d with mode 0700", ErrRefused, path, uid)
	}
	return nil
}

// protect lets only this process's user connect. If that is root, it gives the
// socket to the file's user.
func protect(socket string, file os.FileInfo) error {
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	if uid := uidOf(file); os.Geteuid() == 0 && uid != 0 {
		return os.Chown(socket, uid, -1)
	}
	return nil
}

// checkPeer returns an error unless the other side is a process of this user,
// of the file's user, or of root.
func checkPeer(nc net.Conn, file os.FileInfo) error {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return err
	}
	var uid int
	var known bool
	var peerErr error
	if err := raw.Control(func(fd uintptr) { uid, known, peerErr = peerUID(int(fd)) }); err != nil {
		return err
	}
	if peerErr != nil {
		return fmt.Errorf("%w: the user of the process is not known: %w", ErrRefused, peerErr)
	}
	if known && !mayConnect(uid, os.Geteuid(), uidOf(file)) {
		return fmt.Errorf("%w: a process of user %d, want the user of the owner or of the file", ErrRefused, uid)
	}
	return nil
}

func mayConnect(uid, own, file int) bool { return uid == 0 || uid == own || uid == file }
