package hostlimit

import "golang.org/x/sys/unix"

// peerUID returns the user at the other end of a socket.
func peerUID(fd int) (uid int, known bool, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, false, err
	}
	return int(cred.Uid), true, nil
}
