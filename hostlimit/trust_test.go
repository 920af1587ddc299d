//go:build unix

package hostlimit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/subprocess"
)

const (
	strangerVar = "STINT_TEST_HOST_STRANGER"
	nobody      = 65534
)

// strangerOptions say what a process of another user does. It ends when its
// input does.
type strangerOptions struct {
	Listen string // answers each connection like an owner that allows everything
	Spy    string // says how many bytes each connection sends
	Open   string
	Dial   string
}

func init() { children[strangerVar] = beStranger }

// beStranger is what a process of another user does.
func beStranger(told string) {
	var o strangerOptions
	if err := json.Unmarshal([]byte(told), &o); err != nil {
		panic(err)
	}
	limits, _ := stint.NewLimits(testNames)
	var err error
	switch {
	case o.Listen != "":
		l, _ := stint.New(stint.NewMemStore(), limits, nil)
		p, _ := placeOf(strings.TrimSuffix(o.Listen, ".sock"))
		_, err = serve(l, p, 10, nil, func(*stint.Limiter, error) {})
		os.Chmod(o.Listen, 0o777)
	case o.Spy != "":
		var l net.Listener
		if l, err = net.Listen("unix", o.Spy); err == nil {
			os.Chmod(o.Spy, 0o777)
			go acceptAll(l, spy)
		}
	case o.Open != "":
		_, err = Open(o.Open, limits, patient(nil))
	default:
		_, err = Dial(o.Dial, nil, patient(nil))
	}
	fmt.Println(err)
	bufio.NewReader(os.Stdin).ReadString('\n')
}

func spy(nc net.Conn) {
	said, _ := io.ReadAll(nc)
	fmt.Println(len(said), "bytes")
}

// publicBinary returns a copy of this program that every user may run.
func publicBinary(t *testing.T) (exe string) {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "stranger")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	require.NoError(t, os.Chmod(folder, 0o755))
	binary, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	exe = filepath.Join(folder, "stranger.test")
	require.NoError(t, os.WriteFile(exe, binary, 0o755))
	return exe
}

// startStranger starts a process of the user nobody, and returns what it says.
func startStranger(t *testing.T, exe string, o strangerOptions) (said string) {
	t.Helper()
	return nextLine(t, beginStranger(t, exe, o))
}

func nextLine(t *testing.T, from *bufio.Reader) string {
	t.Helper()
	line, err := from.ReadString('\n')
	require.NoError(t, err)
	return line
}

// beginStranger starts a process of the user nobody.
func beginStranger(t *testing.T, exe string, o strangerOptions) (says *bufio.Reader) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	told, err := json.Marshal(o)
	require.NoError(t, err)
	cmd := subprocess.Command(t.Context(), exe)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	in, out := startChild(t, cmd, strangerVar, string(told))
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return bufio.NewReader(out)
}

// stickyFolder returns a folder in which every user may make files, but remove
// only own ones, like /tmp.
func stickyFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "sticky")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	require.NoError(t, os.Chmod(folder, 0o777|os.ModeSticky))
	return folder
}

// A process trusts no process of another user, whatever that one has prepared.
func TestStranger(t *testing.T) {
	t.Parallel()
	limits, exe := limitsWith(t, nil), publicBinary(t)
	long := strings.Repeat("x", 90)
	t.Run("has the socket in a folder of all", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(stickyFolder(t), "quota.db")
		require.Equal(t, "<nil>\n", startStranger(t, exe, strangerOptions{Listen: path + ".sock"}))
		_, err := Open(path, limits, nil)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, fmt.Sprintf("%s.sock belongs to user %d", path, nobody))
		require.ErrorIs(t, errorOf(Dial(path, nil, nil)), ErrRefused)
		own := openAlone(t, path, limits, nil)
		require.ErrorIs(t, errorOf(Serve(own, path, nil)), ErrRefused)
		require.ErrorIs(t, errorOf(Open(path, limits, nil)), ErrRefused, "also as a guest")
	})
	t.Run("receives nothing", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(stickyFolder(t), "quota.db")
		spy := beginStranger(t, exe, strangerOptions{Spy: path + ".sock"})
		require.Equal(t, "<nil>\n", nextLine(t, spy))
		require.ErrorIs(t, errorOf(Open(path, limits, nil)), ErrRefused)
		require.Equal(t, "0 bytes\n", nextLine(t, spy))
		require.ErrorIs(t, errorOf(Dial(path, limits.Names(), nil)), ErrRefused)
		require.Equal(t, "0 bytes\n", nextLine(t, spy))
		own := openAlone(t, path, limits, nil)
		require.ErrorIs(t, errorOf(Serve(own, path, nil)), ErrRefused)
		require.Equal(t, "0 bytes\n", nextLine(t, spy))
	})
	t.Run("may not connect", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(stickyFolder(t), "quota.db")
		events := newRecorder()
		require.Equal(t, RoleOwner, openOn(t, path, limits, &Options{OnEvent: events.record}).Role())
		info, err := os.Stat(path + ".sock")
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		said := startStranger(t, exe, strangerOptions{Dial: path})
		require.Contains(t, said, "hostlimit: refused")
		require.Contains(t, said, "permission denied")
		require.NoError(t, os.Chmod(path+".sock", 0o666))
		said = startStranger(t, exe, strangerOptions{Dial: path})
		require.Contains(t, said, "hostlimit: refused: a process of user 65534")
		require.ErrorIs(t, events.wait(t, RoleOwner, true).Err, ErrRefused)
	})
	t.Run("may not connect, and has no file", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(stickyFolder(t), "quota.db")
		listenOn(t, path, func(net.Conn) {})
		require.NoError(t, os.Chmod(path+".sock", 0o600))
		said := startStranger(t, exe, strangerOptions{Open: path})
		require.True(t, strings.HasPrefix(said, "hostlimit: refused"), said)
		require.Contains(t, said, "permission denied")
	})
	t.Run("has the folder that long paths used to share", func(t *testing.T) {
		t.Parallel()
		folder := filepath.Join(stickyFolder(t), long)
		require.NoError(t, os.Mkdir(folder, 0o755))
		path := filepath.Join(folder, "quota.db")
		owner := openOn(t, path, limits, nil)
		guest := openOn(t, path, limits, nil)
		require.Equal(t, RoleOwner, owner.Role())
		require.Equal(t, RoleGuest, guest.Role())
		require.Contains(t, startStranger(t, exe, strangerOptions{Dial: path}), "permission denied")
		require.Contains(t, startStranger(t, exe, strangerOptions{Open: path}), "permission denied")
	})
	t.Run("may not make the file", func(t *testing.T) {
		t.Parallel()
		folder := filepath.Join(stickyFolder(t), long)
		require.NoError(t, os.Mkdir(folder, 0o755))
		path := filepath.Join(folder, "quota.db")
		require.Contains(t, startStranger(t, exe, strangerOptions{Open: path}), "permission denied")
		require.Equal(t, RoleOwner, openOn(t, path, limits, nil).Role(), "and leaves nothing that is in the way")
		require.Equal(t, RoleGuest, openOn(t, path, limits, nil).Role())
	})
	t.Run("has the file", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			t.Skip("only root can be another user")
		}
		folder := filepath.Join(stickyFolder(t), long)
		require.NoError(t, os.Mkdir(folder, 0o755))
		require.NoError(t, os.Chown(folder, nobody, nobody))
		path := filepath.Join(folder, "quota.db")
		require.Equal(t, "<nil>\n", startStranger(t, exe, strangerOptions{Open: path}))
		require.Equal(t, RoleGuest, openOn(t, path, limits, nil).Role(), "root may use the file of any user")
	})
	t.Run("has the file, and root opens it first", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			t.Skip("only root can be another user")
		}
		folder := stickyFolder(t)
		path := filepath.Join(folder, "quota.db")
		makeFile(t, path, limits)
		require.NoError(t, os.Chown(path, nobody, nobody))
		owner := openOn(t, path, limits, nil)
		require.Equal(t, RoleOwner, owner.Role())
		require.Equal(t, "<nil>\n", startStranger(t, exe, strangerOptions{Open: path}))
		eventually(t, func() bool { return len(connsOf(owner.now.Load().server)) == 1 }, "it is a guest")
		require.NoError(t, owner.Close())
		eventually(t, func() bool {
			g, err := Dial(path, nil, nil)
			if err == nil {
				defer g.Close()
			}
			return err == nil && g.OwnerPID() != os.Getpid()
		}, "it takes the file over")
	})
}

// The processes of three users may use a file.
func TestTrusted(t *testing.T) {
	require.True(t, trusted(0, 1000, 1000), "root")
	require.True(t, trusted(1000, 1000, 1001), "the owner's user")
	require.True(t, trusted(1001, 1000, 1001), "the file's user")
	require.False(t, trusted(1002, 1000, 1001))
}

// What is in the place of the socket stays there, unless a dead owner left it.
func TestInTheWay(t *testing.T) {
	t.Parallel()
	limits := limitsWith(t, nil)
	refused := func(t *testing.T, path, why string, patience time.Duration) {
		t.Helper()
		_, err := Open(path, limits, &Options{
			TakeoverTimeout: patience, LimiterOptions: stint.Options{LockTimeout: 10 * time.Millisecond}})
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, why)
	}
	t.Run("a file", func(t *testing.T) {
		path := filePath(t)
		require.NoError(t, os.WriteFile(path+".sock", []byte("mine"), 0o600))
		refused(t, path, "is not a socket", 0)
		content, err := os.ReadFile(path + ".sock")
		require.NoError(t, err)
		require.Equal(t, "mine", string(content))
	})
	t.Run("a folder", func(t *testing.T) {
		path := filePath(t)
		require.NoError(t, os.Mkdir(path+".sock", 0o700))
		refused(t, path, "is not a socket", 0)
		require.DirExists(t, path+".sock")
	})
	t.Run("a datagram socket", func(t *testing.T) {
		path := filePath(t)
		l, err := net.ListenPacket("unixgram", path+".sock")
		require.NoError(t, err)
		defer l.Close()
		refused(t, path, "another program listens", 0)
		makeFile(t, path, limits)
		refused(t, path, "another program listens", 0)
		nc, err := net.Dial("unixgram", path+".sock")
		require.NoError(t, err)
		nc.Close()
	})
	for name, says := range map[string]string{"that talks": "220 ready\r\n", "that hangs up": "", "that is silent": "nothing"} {
		t.Run("a program "+name, func(t *testing.T) {
			t.Parallel()
			path := filePath(t)
			listenOn(t, path, func(nc net.Conn) {
				if says == "nothing" {
					io.Copy(io.Discard, nc)
				} else {
					nc.Write([]byte(says))
				}
				nc.Close()
			})
			if says != "nothing" { // a stopped owner, whose file was removed, is as silent
				refused(t, path, "another program listens", 20*time.Second)
			}
			makeFile(t, path, limits)
			refused(t, path, "another program listens", 0)
			nc, err := net.Dial("unix", path+".sock")
			require.NoError(t, err)
			nc.Close()
		})
	}
}

// makeFile makes a file that no process has open.
func makeFile(t *testing.T, path string, limits *stint.Limits) {
	t.Helper()
	l, err := stint.Open(path, limits, nil)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
