package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// terminal returns both ends of a terminal of that many columns.
func terminal(t *testing.T, columns uint16) (ours, its *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { ours.Close() })
	control := func(request uintptr, arg unsafe.Pointer) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, ours.Fd(), request, uintptr(arg))
		require.Zero(t, errno)
	}
	var unlocked, number int32
	size := [4]uint16{50, columns}
	control(syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked))
	control(syscall.TIOCGPTN, unsafe.Pointer(&number))
	control(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	its, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { its.Close() })
	return ours, its
}

// shownOn runs the command in a terminal of that many columns, and returns what
// it writes there.
func shownOn(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	ours, its := terminal(t, columns)
	cmd := process(t, args...)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = its, &stderr
	require.NoError(t, cmd.Start())
	its.Close()
	out, _ := io.ReadAll(ours) // it fails when the last process has closed its end
	require.NoError(t, cmd.Wait(), stderr.String())
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}

// In a terminal of any width, no line is broken inside a word, a number or a
// bar.
func TestTerminalWidth(t *testing.T) {
	db := filepath.Join(t.TempDir(), "a.db")
	for _, id := range []string{"alice", "2001:db8:1234:5678::/64", "le.wtf,le1.wtf"} {
		succeeds(t, "allow", "--db", db, "--limit", "3/100d", "--name", "CertificatesPerDomainPerAccount", id)
	}
	log := write(t, "access.log", accessLines("2001:db8:1234:5678::1", "2001:db8:1234:5678::2", "192.168.100.101",
		"192.168.100.101", "192.168.100.101", "192.168.100.102", "192.168.100.102"))
	limits := []string{"a name that is longer than there is space for=100/1s burst 200", "leaky bucket=100/1s burst 1",
		"5/1s", "60/1m burst 12345", "17/1m", "1/1s burst 70"}
	commands := map[string][]string{
		"help":             {"--help"},
		"help replay":      {"help", "replay"},
		"list":             {"list", "--db", db, "--limit", "3/100d", "--name", "CertificatesPerDomainPerAccount"},
		"replay":           {"replay", "--limit", "1/1m", log},
		"replay, tried":    {"replay", "--try", "1/1m,2/1m,1/24h burst 12345,60/1m", log},
		"simulate":         append([]string{"simulate", "--load", "300/1s for 2s"}, limits[:2]...),
		"simulate, all":    append([]string{"simulate", "--load", "200 in 100ms after 5s idle"}, limits...),
		"simulate, many":   append([]string{"simulate", "--load", "90000 in 10s"}, limits...),
		"simulate, single": {"simulate", "--load", "300/1s for 2s", limits[3]},
	}
	for name, args := range commands {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain := succeeds(t, args...)
			for _, columns := range []uint16{60, 200} {
				if columns == 200 && strings.Contains(name, ",") && !testlength.Long {
					continue
				}
				fits(t, plain, shownOn(t, columns, args...), int(columns))
			}
		})
	}
}
