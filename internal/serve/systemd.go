package serve

import (
	"cmp"
	"net"
	"os"
	"strconv"
	"strings"
)

// passedFiles returns the sockets that systemd passes to the process that it
// starts, as sd_listen_fds(3) says.
func passedFiles() (files []*os.File) {
	const first = 3
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return nil
	}
	n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range n {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		files = append(files, os.NewFile(uintptr(first+i), cmp.Or(name, "LISTEN_FD_"+strconv.Itoa(first+i))))
	}
	return files
}

// notify tells systemd the state of the server, as sd_notify(3) says, if systemd
// started it.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close()
}
