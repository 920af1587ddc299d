//go:build darwin || freebsd

package hostlimit

import "golang.org/x/sys/unix"

const solLocal = 0

// peerUID returns the user at the other end of a socket.
func peerUID(fd int) (uid int, known bool, err error) {
	cred, err := unix.GetsockoptXucred(fd, solLocal, unix.LOCAL_PEERCRED)
	if err != nil {
		return 0, false, err
	}
	return int(cred.Uid), true, nil
}
