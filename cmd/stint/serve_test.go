package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/resp/resptest"
	"github.com/stint-go/stint/internal/serve"
	"github.com/stint-go/stint/internal/testlength"
)

// served is a server in a process of its own.
type servedProcess struct {
	*exec.Cmd
	stderr *bufio.Reader
	at     []string // addresses
	log    []string
}

var servingAt = regexp.MustCompile(`^stint: serving .* at (.*)\n$`)

// startServe starts a server, and returns when it listens at n addresses.
func startServe(t *testing.T, n int, change func(cmd *exec.Cmd), args ...string) *servedProcess {
	t.Helper()
	s := &servedProcess{Cmd: process(t, append([]string{"serve"}, args...)...)}
	if change != nil {
		change(s.Cmd)
	}
	stderr, err := s.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(func() { s.kill() })
	s.stderr = bufio.NewReader(stderr)
	for len(s.at) < n {
		line := s.line(t)
		if m := servingAt.FindStringSubmatch(line); m != nil {
			s.at = append(s.at, m[1])
		}
	}
	return s
}

// line returns the next line that the server writes.
func (s *servedProcess) line(t *testing.T) string {
	t.Helper()
	line, err := s.stderr.ReadString('\n')
	s.log = append(s.log, line)
	require.NoError(t, err, "%q", s.log)
	return line
}

// lineWith skips what the server says until a line contains want. Events, such
// as the one of becoming the owner, may come between any two lines.
func (s *servedProcess) lineWith(t *testing.T, want string) {
	t.Helper()
	for !strings.Contains(s.line(t), want) {
	}
}

func (s *servedProcess) kill() {
	_ = s.Process.Kill()
	_ = s.Wait()
}

// end ends the server with a signal, and returns its exit status.
func (s *servedProcess) end(t *testing.T) int {
	t.Helper()
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	_, _ = io.Copy(io.Discard, s.stderr)
	_ = s.Wait()
	return s.ProcessState.ExitCode()
}

// replies checks replies. A number from 1000 is a time in seconds, and may be up
// to two minutes less, because time goes on.
func replies(t *testing.T, want, got, about string) {
	t.Helper()
	numbers := regexp.MustCompile(`\d{4,}`)
	left := numbers.FindAllString(got, -1)
	same := numbers.ReplaceAllStringFunc(want, func(number string) string {
		if len(left) > 0 {
			n, _ := strconv.Atoi(number)
			is, _ := strconv.Atoi(left[0])
			if is <= n && is > n-120 {
				number = left[0]
			}
			left = left[1:]
		}
		return number
	})
	assert.Equal(t, same, got, about)
}

func serveDB(t *testing.T) string {
	t.Helper()
	skipOnWindows(t, "a process cannot be sent a signal")
	return filepath.Join(t.TempDir(), "limits.db")
}

// The replies go on after a crash and after an end.
func TestServe(t *testing.T) {
	db := serveDB(t)
	const user1 = "CL.THROTTLE user:1 15 24 86400"
	s := startServe(t, 1, nil, "--db", db, "--durability", "synced")
	require.Equal(t, []string{db + ".resp"}, s.at)
	info, err := os.Stat(db + ".resp")
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o600, info.Mode())
	c := resptest.Dial(t, s.at[0])
	do := func(want, commands string) {
		t.Helper()
		replies(t, want, c.Do(t, commands), commands)
	}
	do("[0 16 15 -1 3600]", user1)
	do("[0 16 14 -1 7200]", user1)
	s.kill()

	s = startServe(t, 1, nil, "--db", db)
	c = resptest.Dial(t, s.at[0])
	do("[0 16 14 -1 7200]", user1+" 0")
	do("[1 16 14 -1 7200]", user1+" 17") // never allowed
	do("[0 16 0 -1 57600]", user1+" 14")
	do("[1 16 0 3600 57600]", user1)
	assert.Equal(t, 0, s.end(t))
	_, err = c.In.ReadByte()
	assert.Equal(t, io.EOF, err)
	assert.NoFileExists(t, db+".resp")

	s = startServe(t, 1, nil, "--db", db)
	c = resptest.Dial(t, s.at[0])
	do("[1 16 0 3600 57600]\n1\n[0 16 16 -1 0]\n0", user1+"\nDEL user:1 other user:1\n"+user1+" 0\nDEL user:1 user:1")
	succeeds(t, "allow", "--db", db, "--name", serve.ThrottleLabel, "--limit", "9/9h", "user:2") // beside it
	do("[0 9 8 -1 3600]", "CL.THROTTLE user:2 8 24 86400 0")
	succeeds(t, "hold", "--db", db, "--name", serve.ThrottleLabel, "--for", "2h", "user:2")
	do("[1 9 8 7200 3600]\n[0 9 9 -1 0]", "CL.THROTTLE user:2 8 24 86400\nCL.THROTTLE user:3 8 24 86400 0")
}

// Clients get an answer to what they send when they connect.
func TestServeConnects(t *testing.T) {
	s := startServe(t, 1, nil, "--db", serveDB(t))
	for commands, want := range map[string]string{
		"PING":                 "PONG",
		"ping hello":           "hello",
		"ECHO hello":           "hello",
		"SELECT 0":             "OK",
		"SELECT 1":             "-ERR DB index is out of range: there is only database 0, so leave the number out of the URL",
		"ROLE":                 "[master 0 []]",
		"CONFIG GET timeout":   "[]",
		"CONFIG SET timeout 1": "-ERR only CONFIG GET is served, and it lists no parameter",
		"HELLO 3 SETNAME a\nMULTI\nPING\nRESET\nCLIENT GETNAME\nEXEC": "[server redis version 7.2.0 proto 3 id ID mode standalone role master modules []]\n" +
			"OK\nQUEUED\nRESET\nnil\n-ERR EXEC without MULTI",
		"CLIENT SETINFO LIB-NAME x":                          "OK",
		"CLIENT GETNAME\nCLIENT SETNAME web\nCLIENT GETNAME": "nil\nOK\nweb",
		"AUTH default x":                                     "OK",
		"HELLO 4":                                            "-NOPROTO unsupported protocol version",
		"HELLO 2 SETNAME a\nCLIENT GETNAME":                  "[server redis version 7.2.0 proto 2 id ID mode standalone role master modules []]\na",
		"HELLO 3\nCLIENT GETNAME":                            "[server redis version 7.2.0 proto 3 id ID mode standalone role master modules []]\n",
		"HELLO 3 AUTH default any":                           "[server redis version 7.2.0 proto 3 id ID mode standalone role master modules []]",
		"COMMAND COUNT":                                      "27",
		"COMMAND INFO CL.THROTTLE nothing":                   "[[cl.throttle -5 [write] 1 1 1] nil]",
		"COMMAND DOCS ping":                                  "[ping [summary Returns PONG. since 1.0.0 group stint]]",
		"CLUSTER SLOTS":                                      "-ERR This instance has cluster support disabled",
		"GET a":                                              "-ERR unknown command 'GET', with args beginning with: 'a' ",
		"ECHO":                                               "-ERR wrong number of arguments for 'echo' command",
		"PING a b":                                           "-ERR wrong number of arguments for 'ping' command",
		"AUTH x": "-ERR AUTH <password> called without any password configured for the default user. " +
			"Are you sure your configuration is correct?",
		"EVALSHA x 1 y": "-ERR unknown command 'evalsha': stint serve runs no scripts, so those of other limiters " +
			"do not work here: use CL.THROTTLE",
		"STINT.SPEND a b 1": "-ERR no limits: start stint serve with --limits",
	} {
		c := resptest.Dial(t, s.at[0])
		got := regexp.MustCompile(` id \d+ `).ReplaceAllString(c.Do(t, commands), " id ID ")
		assert.Equal(t, want, got, commands)
	}
	c := resptest.Dial(t, s.at[0])
	assert.Contains(t, c.Do(t, "INFO"), "\r\nloading:0\r\n")
	assert.Regexp(t, `^\[\d{10} \d{1,6}\]$`, c.Do(t, "TIME"))
	assert.Equal(t, "OK", c.Do(t, "QUIT"))
	_, err := c.In.ReadByte()
	assert.Equal(t, io.EOF, err)

	c = resptest.Dial(t, s.at[0])
	_, err = io.WriteString(c, "PING\r\n*1\r\n*1\r\n")
	require.NoError(t, err)
	rest, err := io.ReadAll(c.In)
	require.NoError(t, err)
	assert.Equal(t, "+PONG\r\n-ERR Protocol error: expected '$', got '*'\r\n", string(rest))
}

// The commands of one read are decided in their order, and so are the replies.
func TestServePipeline(t *testing.T) {
	s := startServe(t, 1, nil, "--db", serveDB(t))
	c := resptest.Dial(t, s.at[0])
	var commands, want strings.Builder
	used := map[int]int{}
	for i := range 100 {
		fmt.Fprintf(&commands, "CL.THROTTLE user:%d 9 1 3600 %d\n", i%40, i%3)
		used[i%40] += i % 3
		fmt.Fprintf(&want, "[0 10 %d -1 %d]\n", 10-used[i%40], 3600*used[i%40])
		switch i % 10 {
		case 3:
			commands.WriteString("CL.THROTTLE user:1 x 1 1\n")
			want.WriteString("-Cell error: Store error: Couldn't parse as integer: x\n")
		case 4: // refills in 3,170 years
			commands.WriteString("CL.THROTTLE slow:1 99999 1 1000000\n")
			want.WriteString("-Cell error: burst is 100000, want a bucket that refills within 100 years\n")
		case 5:
			commands.WriteString("ECHO five\n")
			want.WriteString("five\n")
		case 7:
			commands.WriteString("CL.THROTTLE big:1 1 1 3600 5\n")
			want.WriteString("[1 2 2 -1 0]\n")
		}
	}
	replies(t, strings.TrimSpace(want.String()), c.Do(t, commands.String()), "")
}

const serveLimits = `
Orders: {burst: 3, count: 3, period: 1h}
Logins: {burst: 1, count: 1, period: 1h}
Slow: {burst: 1, count: 1, period: 1h, queue: 1}
Fast: {burst: 1, count: 10, period: 1s}
`

// With --limits, commands use the limits of a file.
func TestServeLimits(t *testing.T) {
	db, limits := serveDB(t), write(t, "limits.yml", serveLimits)
	s := startServe(t, 1, nil, "--db", db, "--limits", limits)
	c := resptest.Dial(t, s.at[0])
	for _, step := range [][2]string{
		{"STINT.SPEND Orders a 1", "[0 3 2 -1 1200 Orders]"},
		{"STINT.SPEND Orders a 1 Logins a 1", "[0 1 0 -1 3600 Logins]"},
		{"STINT.SPEND Orders a 1 Logins a 1", "[1 1 0 3600 3600 Logins]"},
		{"STINT.CHECK Orders a 1", "[0 3 0 -1 3600 Orders]"},
		{"STINT.REFUND Orders a 1", "[0 3 2 -1 1200 Orders]"},
		{"STINT.RESET Orders a Logins a", "OK"},
		{"STINT.CHECK Logins a 1 Orders a 3", "[0 3 0 -1 3600 Orders]"},
		{"STINT.HOLD Orders a 6000", "OK"},
		{"STINT.SPEND Orders a 1", "[1 3 3 6000 0 Orders]"},
		{"STINT.HOLD Orders a 0", "OK"},
		{"STINT.SPEND Orders a 1", "[0 3 2 -1 1200 Orders]"},
		{"STINT.WAIT Slow a 1 0", "1"},
		{"STINT.WAIT Slow a 1 1", "0"},
		{"STINT.WAIT Fast a 1 9", "1"},
		{"STINT.WAIT Fast a 1 9", "1"},

		{"STINT.SPEND Orders a 4", "-OVERBURST cost over burst: 4 of 3 for Orders:a"},
		{"STINT.SPEND Orders a 1 Orders a 1", "-ERR duplicate key: Orders:a"},
		{"STINT.SPEND Other a 1", `-ERR no limit "Other"`},
		{"STINT.SPEND Orders a x", `-ERR cost "x": want a whole number from 0`},
		{"STINT.SPEND Orders a", "-ERR wrong number of arguments for 'stint.spend' command"},
		{"STINT.SPEND Orders a 1 Logins", "-ERR wrong number of arguments for 'stint.spend' command"},
		{"STINT.HOLD Orders a -1", `-ERR seconds "-1": want a whole number from 0`},
		{"CL.THROTTLE a 0 1 3600", "[0 1 0 -1 3600]"},
	} {
		got := c.Do(t, step[0])
		replies(t, step[1], got, step[0])
	}
	r := runArgs(t, "show", "--db", db, "--limits", limits, "--name", "Orders", "a")
	assert.Contains(t, r.stdout, "2 of 3")

	require.NoError(t, os.WriteFile(limits, []byte(strings.Replace(serveLimits, "burst: 3", "burst: 5", 1)), 0o600))
	require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	s.lineWith(t, "loaded")
	replies(t, "[0 5 4 -1 1200 Orders]", c.Do(t, "STINT.CHECK Orders b 1"), "")
	require.NoError(t, os.WriteFile(limits, []byte("Orders: {burst: 3, count: 3, period: 1h}"), 0o600))
	require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	s.lineWith(t, "the limits stay as they are")
	replies(t, "[0 5 4 -1 1200 Orders]", c.Do(t, "STINT.CHECK Orders b 1"), "")
}

// A client that leaves while it waits leaves the queue.
func TestServeWaitLeaves(t *testing.T) {
	s := startServe(t, 1, nil, "--db", serveDB(t), "--limits", write(t, "limits.yml", serveLimits))
	c := resptest.Dial(t, s.at[0])
	require.Equal(t, "1", c.Do(t, "STINT.WAIT Slow a 1 0"))
	waiting := resptest.Dial(t, s.at[0])
	_, err := io.WriteString(waiting, resptest.Encoded("PING\nSTINT.WAIT Slow a 1 7200"))
	require.NoError(t, err)
	require.Equal(t, "PONG", waiting.Reply(t), "sent before the wait")
	// The queue has space for one token.
	const tries = "STINT.WAIT Slow a 1 1"
	eventually(t, func() bool { return strings.HasPrefix(c.Do(t, tries), "-QUEUEFULL ") })
	require.NoError(t, waiting.Close())
	eventually(t, func() bool { return c.Do(t, tries) == "0" })
	_, err = io.WriteString(c, resptest.Encoded("STINT.WAIT Slow a 1 7200"))
	require.NoError(t, err)
	other := resptest.Dial(t, s.at[0])
	eventually(t, func() bool { return strings.HasPrefix(other.Do(t, tries), "-QUEUEFULL ") })
	assert.Equal(t, 0, s.end(t), "waits end")
	assert.Equal(t, "-ERR the server is ending", c.Reply(t))
}

// A client that leaves the middle of a queue leaves no gap.
func TestServeWaitMiddleLeaves(t *testing.T) {
	const limits = "Line: {count: 1, burst: 1, period: 1000s}\n"
	s := startServe(t, 1, nil, "--db", serveDB(t), "--limits", write(t, "limits.yml", limits))
	c := resptest.Dial(t, s.at[0])
	require.Equal(t, "1", c.Do(t, "STINT.WAIT Line a 1 0"))
	wait := func(seconds int64) bool { // until a request would pass: about that many
		var retry int64
		reply := c.Do(t, "STINT.CHECK Line a 1")
		_, err := fmt.Sscanf(reply, "[1 1 0 %d", &retry)
		require.NoError(t, err, reply)
		return seconds-100 < retry && retry <= seconds
	}
	var waiting []*resptest.Client
	for i := range int64(3) {
		waiting = append(waiting, resptest.Dial(t, s.at[0]))
		_, err := io.WriteString(waiting[i], resptest.Encoded("STINT.WAIT Line a 1 7200"))
		require.NoError(t, err)
		eventually(t, func() bool { return wait(1000 * (i + 2)) })
	}
	require.NoError(t, waiting[1].Close())
	eventually(t, func() bool { return wait(3000) })
	require.NoError(t, waiting[0].Close())
	eventually(t, func() bool { return wait(2000) })
}

// eventually polls for at most a minute.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); <-time.After(time.Millisecond) {
		require.True(t, time.Now().Before(deadline))
	}
}

// What was read before the signal is answered, also to a client that sends more
// than it reads.
func TestServeDrains(t *testing.T) {
	const burst = 800_000 // refills in 91 years
	for name, listen := range map[string]string{"unix": "", "TCP": "127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			db := serveDB(t)
			args := []string{"--db", db}
			if listen != "" {
				args = append(args, "--listen", listen)
			}
			s := startServe(t, 1, nil, args...)
			c := resptest.Dial(t, s.at[0])
			if tcp, ok := c.Conn.(*net.TCPConn); ok {
				require.NoError(t, tcp.SetReadBuffer(64<<10)) // then most replies wait in the server's system
			}
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				commands := strings.Repeat(resptest.Encoded(fmt.Sprintf("CL.THROTTLE a %d 1 3600", burst-1)), 100)
				for {
					if _, err := io.WriteString(c, commands); err != nil {
						return
					}
				}
			}()
			answered, signalled := 0, false
			for {
				if _, err := c.In.Peek(1); err != nil {
					if name == "TCP" {
						require.Equal(t, io.EOF, err)
					}
					break
				}
				require.True(t, strings.HasPrefix(c.Reply(t), fmt.Sprintf("[0 %d ", burst)))
				if answered++; !signalled {
					require.NoError(t, s.Process.Signal(syscall.SIGTERM))
					signalled = true
				}
			}
			require.NoError(t, c.Close())
			<-sent
			_, _ = io.Copy(io.Discard, s.stderr)
			_ = s.Wait()
			require.Equal(t, 0, s.ProcessState.ExitCode())

			s = startServe(t, 1, nil, args...)
			c = resptest.Dial(t, s.at[0])
			var zero, of, left int
			_, err := fmt.Sscanf(c.Do(t, fmt.Sprintf("CL.THROTTLE a %d 1 3600 0", burst-1)), "[%d %d %d ", &zero, &of, &left)
			require.NoError(t, err)
			require.Equal(t, burst-left, answered, "every answer is saved, and nothing else")
		})
	}
}

// A second server of the socket takes over, after an end and after a crash.
func TestServeTakesOver(t *testing.T) {
	db := serveDB(t)
	first := startServe(t, 1, nil, "--db", db, "--durability", "synced")
	c := resptest.Dial(t, first.at[0])
	replies(t, "[0 10 9 -1 3600]", c.Do(t, "CL.THROTTLE a 9 1 3600"), "")
	second := startServe(t, 0, nil, "--db", db, "--durability", "synced")
	second.lineWith(t, "waiting to take over")
	replies(t, "[0 10 8 -1 7200]", c.Do(t, "CL.THROTTLE a 9 1 3600"), "")
	first.kill()
	second.lineWith(t, "stint: serving ")
	c = resptest.Dial(t, first.at[0])
	replies(t, "[0 10 7 -1 10800]", c.Do(t, "CL.THROTTLE a 9 1 3600"), "")
	third := startServe(t, 0, nil, "--db", db)
	third.lineWith(t, "waiting to take over")
	require.Equal(t, 0, second.end(t))
	third.lineWith(t, "stint: serving ")
	c = resptest.Dial(t, first.at[0])
	replies(t, "[0 10 7 -1 10800]", c.Do(t, "CL.THROTTLE a 9 1 3600 0"), "")
	waiting := startServe(t, 0, nil, "--db", db)
	waiting.lineWith(t, "waiting to take over")
	assert.Equal(t, 0, waiting.end(t), "a server that waits ends, too")
}

// A server that waits to take over loads its limits again, too.
func TestServeReloadsWhileItWaits(t *testing.T) {
	db, limits := serveDB(t), write(t, "limits.yml", serveLimits)
	first := startServe(t, 1, nil, "--db", db, "--limits", limits)
	second := startServe(t, 0, nil, "--db", db, "--limits", limits)
	second.lineWith(t, "waiting to take over")
	require.NoError(t, os.WriteFile(limits, []byte(strings.Replace(serveLimits, "burst: 3", "burst: 5", 1)), 0o600))
	require.NoError(t, second.Process.Signal(syscall.SIGHUP))
	second.lineWith(t, "loaded")
	require.Equal(t, 0, first.end(t))
	second.lineWith(t, "serving")
	replies(t, "[0 5 4 -1 1200 Orders]", resptest.Dial(t, first.at[0]).Do(t, "STINT.SPEND Orders a 1"), "")
}

// The server goes on if the program that read its log has ended.
func TestServeWithoutLog(t *testing.T) {
	db, limits := serveDB(t), write(t, "limits.yml", serveLimits)
	s := &servedProcess{Cmd: process(t, "serve", "--db", db, "--limits", limits)}
	log, stderr, err := os.Pipe()
	require.NoError(t, err)
	s.Stderr = stderr
	require.NoError(t, s.Start())
	t.Cleanup(s.kill)
	require.NoError(t, stderr.Close())
	s.stderr = bufio.NewReader(log)
	s.lineWith(t, "serving")
	require.NoError(t, log.Close())
	require.NoError(t, os.WriteFile(limits, []byte(strings.Replace(serveLimits, "burst: 3", "burst: 5", 1)), 0o600))
	require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	c := resptest.Dial(t, db+".resp")
	eventually(t, func() bool { return strings.HasPrefix(c.Do(t, "STINT.CHECK Orders a 0"), "[0 5 5 ") })
	assert.Equal(t, 0, s.end(t))
}

// A program that is no stint keeps its socket, until it ends.
func TestServeLeavesSocketsAlone(t *testing.T) {
	db := serveDB(t)
	at := db + ".s"
	other, err := net.Listen("unix", at)
	require.NoError(t, err)
	s := startServe(t, 0, nil, "--db", db, "--listen", at)
	s.lineWith(t, "another program listens at")
	conn, err := net.Dial("unix", at)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	other.(*net.UnixListener).SetUnlinkOnClose(false) // as if it were killed
	require.NoError(t, other.Close())
	s.lineWith(t, "serving")
	assert.Equal(t, "PONG", resptest.Dial(t, at).Do(t, "PING"))
	assert.Equal(t, 0, s.end(t))
}

// A socket may be in the directory that is made with the user's file.
func TestServeInState(t *testing.T) {
	serveDB(t)
	at := filepath.Join(filepath.Dir(stateHome(t)), "s")
	s := startServe(t, 1, nil, "--listen", at)
	assert.Equal(t, "PONG", resptest.Dial(t, at).Do(t, "PING"))
	assert.Equal(t, 0, s.end(t))
}

// A connection beyond the bound is refused, and a password is needed.
func TestServeRefuses(t *testing.T) {
	db := serveDB(t)
	secret := write(t, "secret", "hunter2\nnot this\n")
	s := startServe(t, 2, nil, "--db", db, "--listen", db+".s", "--listen", "127.0.0.1:0",
		"--password-file", secret, "--max-connections", "2")
	c := resptest.Dial(t, s.at[1])
	const hello = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> " +
		"<pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
	const wrong = "-WRONGPASS invalid username-password pair or user is disabled."
	assert.Equal(t, "-NOAUTH Authentication required.\n-NOAUTH Authentication required.\n"+hello+"\n"+wrong+"\n"+wrong+"\n"+wrong,
		c.Do(t, "PING\nCL.THROTTLE a 1 1 1\nHELLO 3\nAUTH hunter\nAUTH admin hunter2\nHELLO 3 AUTH default x"))
	assert.Equal(t, "OK\nPONG", c.Do(t, "AUTH hunter2\nPING"))
	assert.Equal(t, "RESET\n-NOAUTH Authentication required.\nOK", c.Do(t, "RESET\nPING\nAUTH hunter2"))
	other := resptest.Dial(t, s.at[0])
	assert.Equal(t, "OK\nPONG", other.Do(t, "AUTH default hunter2\nPING"))
	third := resptest.Dial(t, s.at[0])
	refused, err := io.ReadAll(third)
	require.NoError(t, err)
	assert.Equal(t, "-ERR max number of clients reached\r\n", string(refused))
	require.NoError(t, other.Close())
	eventually(t, func() bool {
		c := resptest.Dial(t, s.at[0])
		defer c.Close()
		_, _ = io.WriteString(c, resptest.Encoded("AUTH hunter2"))
		answer, _ := c.In.ReadString('\n') // it fails if the server refuses the connection first
		return answer == "+OK\r\n"
	})
}

// Flags that would let strangers in, or mean nothing, are refused before there is
// a file.
func TestServeMisuse(t *testing.T) {
	db, file := serveDB(t), write(t, "file.yml", "Orders: {burst: many}\n")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	for args, want := range map[string]string{
		"--listen 0.0.0.0:6380":             "other machines can reach it: add --password-file",
		"--listen :6380":                    "other machines can reach it",
		"--listen example.com:6380":         "other machines can reach it",
		"--listen [::]:6380":                "other machines can reach it",
		"--listen s --listen t --listen s":  "--listen s: is there twice",
		"--listen a:b:c":                    "want the path of a socket, or HOST:PORT",
		"--durability fast":                 "must be memory, flushed, leased or synced",
		"--max-connections 0":               "must be 1 or more",
		"--limits missing.yml":              "missing.yml",
		"--limits " + file:                  `burst is "many"`,
		"--overrides x.yml":                 "--overrides goes with --limits",
		"--password-file missing":           "missing",
		"--socket-group no-such-group":      "no-such-group",
		"--listen " + file:                  "is there, and no socket",
		"--listen " + file + ".d/s":         "--listen " + file + ".d/s: stat " + file + ".d: no such file",
		"--listen 127.0.0.1:99999":          "--listen 127.0.0.1:99999: address 99999: invalid port",
		"--metrics " + busy.Addr().String(): "--metrics: listen tcp",
		"--metrics host":                    "--metrics: listen tcp",
		"more":                              `unknown argument "more"`,
	} {
		r := runArgs(t, append([]string{"serve", "--db", db}, strings.Fields(args)...)...)
		assert.NotZero(t, r.status, args)
		assert.Contains(t, r.stderr, want, args)
		assert.NoFileExists(t, db, args)
	}
	r := runArgs(t, "serve", "--db", db, "--password-file", write(t, "empty", "\n"))
	assert.Contains(t, r.stderr, "is empty")
	assert.NoFileExists(t, db)
}

// systemd passes sockets, and hears when the server is ready and when it ends.
func TestServeSystemd(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is of Linux")
	}
	db := serveDB(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "n"), Net: "unixgram"})
	require.NoError(t, err)
	defer notify.Close()
	hears := func() string {
		b := make([]byte, 100)
		n, err := notify.Read(b)
		require.NoError(t, err)
		return string(b[:n])
	}
	s := startServe(t, 0, func(cmd *exec.Cmd) {
		passSockets(t, cmd, l)
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+notify.LocalAddr().String())
	}, "--db", db, "--listen", "127.0.0.1:0")
	s.lineWith(t, "systemd passed 1 socket: --listen is not used")
	assert.Equal(t, "READY=1", hears())
	c := resptest.Dial(t, l.Addr().String())
	assert.Equal(t, "PONG", c.Do(t, "PING"))
	assert.NoFileExists(t, db+".resp")
	assert.Equal(t, 0, s.end(t))
	assert.Equal(t, "STOPPING=1", hears())
	_, err = os.Stat(l.Addr().String())
	assert.NoError(t, err, "the socket is systemd's")
}

// passSockets lets a command start with sockets, as systemd does.
func passSockets(t *testing.T, cmd *exec.Cmd, sockets ...interface{ File() (*os.File, error) }) {
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	script := fmt.Sprintf(`LISTEN_PID=$$ LISTEN_FDS=%d exec "$@"`, len(sockets))
	cmd.Path, cmd.Args = sh, append([]string{"sh", "-c", script, "sh"}, cmd.Args...)
	for _, l := range sockets {
		file, err := l.File()
		require.NoError(t, err)
		t.Cleanup(func() { file.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
}

// While servers end and begin, with sockets that systemd keeps, clients that
// connect for one command always get a reply, and so do those that stay on a
// Unix socket if they could send.
func TestServeRestarts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is of Linux")
	}
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	defer unix.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	db := serveDB(t)
	start := func() *servedProcess {
		return startServe(t, 2, func(cmd *exec.Cmd) { passSockets(t, cmd, unix, tcp.(*net.TCPListener)) }, "--db", db)
	}
	s := start()
	var end atomic.Bool
	var answered atomic.Int64
	var wg sync.WaitGroup
	command := resptest.Encoded("CL.THROTTLE a 800000 1 3600 0")
	ask := func(conn net.Conn, in *bufio.Reader) (sent bool, err error) {
		if _, err := io.WriteString(conn, command); err != nil {
			return false, err
		}
		for range 6 {
			if _, err := in.ReadString('\n'); err != nil {
				return true, err
			}
		}
		answered.Add(1)
		return true, nil
	}
	for i := range 9 {
		l, stays := net.Listener(unix), i%3 == 0
		if i%3 == 1 {
			l = tcp
		}
		wg.Go(func() {
			for !end.Load() {
				conn, err := net.Dial(l.Addr().Network(), l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				in := bufio.NewReader(conn)
				sent, err := ask(conn, in)
				for stays && err == nil && !end.Load() {
					sent, err = ask(conn, in)
				}
				if err != nil && (sent || !stays) {
					assert.NoError(t, err, l.Addr())
					return
				}
				conn.Close()
			}
		})
	}
	restarts := 3
	if testlength.Long {
		restarts = 40
	}
	for range restarts {
		was := answered.Load()
		eventually(t, func() bool { return answered.Load() > was+50 })
		assert.Equal(t, 0, s.end(t))
		s = start()
	}
	end.Store(true)
	wg.Wait()
}

// redis-cli and redis-benchmark work.
func TestServeRedisTools(t *testing.T) {
	for _, tool := range []string{"redis-cli", "redis-benchmark"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	db := serveDB(t)
	s := startServe(t, 1, nil, "--db", db, "--durability", "synced")
	cli := func(args ...string) string {
		var out bytes.Buffer
		cmd := exec.Command("redis-cli", append([]string{"-s", s.at[0]}, args...)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Run(), out.String())
		return out.String()
	}
	assert.Equal(t, "0\n16\n15\n-1\n2\n", cli("CL.THROTTLE", "user:1", "15", "30", "60"))
	assert.Equal(t, "1) (integer) 0\n2) (integer) 16\n3) (integer) 15\n4) (integer) -1\n5) (integer) 2\n",
		cli("--no-raw", "-3", "CL.THROTTLE", "user:2", "15", "30", "60"))
	cli("CL.THROTTLE", "user:3", "15", "24", "86400", "16")
	out, err := exec.Command("redis-benchmark", "-s", s.at[0], "-q", "-n", "2000", "-P", "16", "-c", "8", "-r", "100",
		"CL.THROTTLE", "key:__rand_int__", "15", "30", "60").CombinedOutput()
	require.NoError(t, err)
	assert.Contains(t, string(out), "requests per second")
	s.kill()
	s = startServe(t, 1, nil, "--db", db)
	assert.Regexp(t, `^1\n16\n0\n3\d\d\d\n57\d\d\d\n$`, cli("CL.THROTTLE", "user:3", "15", "24", "86400"))
}

// Clients could not name these sockets, or the server itself could not.
func TestServeLongPath(t *testing.T) {
	db := serveDB(t)
	long := filepath.Join(filepath.Dir(db), strings.Repeat("x", 80))
	require.NoError(t, os.Mkdir(long, 0o700))
	for _, path := range []string{db + strings.Repeat("x", 80), filepath.Join(long, "s")} {
		r := runArgs(t, "serve", "--db", db, "--listen", path)
		assert.NotZero(t, r.status)
		assert.Contains(t, r.stderr, "the path "+path+" is too long for a socket: name a shorter one with --listen")
		assert.NoFileExists(t, path+".lock")
	}
}

// INFO reports what operators look for, STINT.HEALTH what keeps the server from
// saving, and --metrics the counts of all limits.
func TestServeReports(t *testing.T) {
	begun := time.Now()
	s := startServe(t, 2, nil, "--db", serveDB(t), "--metrics", "127.0.0.1:0")
	slices.Sort(s.at) // the socket before http://
	url := s.at[1]
	c := resptest.Dial(t, s.at[0])
	assert.Equal(t, "OK", c.Do(t, "STINT.HEALTH"))
	c.Do(t, "CL.THROTTLE a 0 1 60\nCL.THROTTLE a 0 1 60\nCL.THROTTLE b 0 1 60")
	info := c.Do(t, "INFO")
	for _, want := range []string{
		"used_memory:", "total_commands_processed:4", "decisions_allowed:2", "decisions_denied:1", "save_errors:0",
		"buckets_resident:2",
	} {
		assert.Contains(t, info, want)
	}
	uptime := regexp.MustCompile(`\nuptime_in_seconds:(\d+)\r\n`).FindStringSubmatch(info)
	require.NotNil(t, uptime, info)
	up, err := strconv.Atoi(uptime[1])
	require.NoError(t, err)
	assert.LessOrEqual(t, time.Duration(up)*time.Second, time.Since(begun))
	answer, err := http.Get(url)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^stint_decisions_total\{.*CL\.THROTTLE.*denied.*\} 1$`, string(text))
}

// A page in a browser can send a request to a port of the same machine. Its body
// must not be read as commands.
func TestServeWeb(t *testing.T) {
	db := serveDB(t)
	s := startServe(t, 1, nil, "--db", db, "--listen", "127.0.0.1:0")
	const spent = "CL.THROTTLE user:1 2 3 86400"
	c := resptest.Dial(t, s.at[0])
	require.Equal(t, "[0 3 2 -1 28800]", c.Do(t, spent))
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\n\r\nDEL user:1\r\nQUIT\r\n",
		"GET / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\n\r\nDEL user:1\r\nQUIT\r\n",
		"put / HTTP/1.1\r\nhost: 127.0.0.1:6380\r\n\r\nDEL user:1\r\nQUIT\r\n",
	} {
		web := resptest.Dial(t, s.at[0])
		_, err := io.WriteString(web, request)
		require.NoError(t, err)
		answer, err := io.ReadAll(web.In)
		require.NoError(t, err)
		assert.Regexp(t, `^(-ERR unknown command .*\r\n)?-ERR this is not an HTTP server\r\n$`, string(answer))
	}
	replies(t, "[0 3 1 -1 57600]", c.Do(t, spent), spent)
}

// Two spellings of one address would let the server wait for itself.
func TestServeSameAddress(t *testing.T) {
	db := serveDB(t)
	dir, secret := filepath.Dir(db), write(t, "secret", "hunter2")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, twice := range [][2]string{
		{db + ".s", dir + "/./limits.db.s"},
		{db + ".s", filepath.Join(link, "limits.db.s")},
		{"127.0.0.1:6390", "127.0.0.1:06390"},
		{"127.0.0.1:6390", "0.0.0.0:6390"},
		{":6390", "127.0.0.1:6390"},
		{"[::]:6390", "127.0.0.1:6390"},
	} {
		fails(t, console.StatusUsage, "--listen "+twice[1]+": is there twice: --listen "+twice[0]+" listens there, too",
			"serve", "--db", db, "--password-file", secret, "--listen", twice[0], "--listen", twice[1])
	}
}
