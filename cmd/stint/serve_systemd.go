package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

// firstListenFD is the first file descriptor that systemd passes.
const firstListenFD = 3

// systemdListeners returns the sockets that systemd passes to this process (see
// sd_listen_fds(3)), or none.
func systemdListeners() (ls []net.Listener, err error) {
	pid, n := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // not for programs that this one starts
	}
	if n == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	count, err := strconv.Atoi(n)
	if err != nil || count < 0 {
		return nil, fmt.Errorf("LISTEN_FDS=%s: want a number", n)
	}
	for fd := firstListenFD; fd < firstListenFD+count; fd++ {
		file := os.NewFile(uintptr(fd), "LISTEN_FD_"+strconv.Itoa(fd))
		l, err := net.FileListener(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return ls, fmt.Errorf("the socket that systemd passed as %d: %w", fd, err)
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // it is systemd's
		}
		ls = append(ls, l)
	}
	return ls, nil
}

// notifySystemd tells systemd about a change of state (see sd_notify(3)). Without
// systemd it does nothing.
func notifySystemd(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}) // "@" is abstract
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
