package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/resp/resptest"
	"github.com/stint-go/stint/internal/testlength"
)

// foreignClient is a program of testdata/serve, with a client of its language. The
// tests skip a client that the machine does not have.
type foreignClient struct {
	language, has    string // has ends with status 0 if the client is there
	command, program string // what runs programs, and how their names end
}

var foreignClients = []foreignClient{
	{"PHP", "php -r 'new Redis();'", "php", ".php"},
	{"Python", "/usr/bin/python3 -c 'import redis'", "/usr/bin/python3", ".py"},
	{"Ruby", "ruby -e 'require \"redis\"'", "ruby", ".rb"},
	{"Node", "node -v", "node", ".mjs"},
}

// withClients runs a test in parallel for each language that has a program of
// this name in testdata/serve, without the tag long for Python alone. command
// returns the program, as a client of a server.
func withClients(t *testing.T, name string, test func(t *testing.T, command func(*servedProcess) *exec.Cmd)) {
	t.Parallel()
	require.FileExists(t, filepath.Join("testdata/serve", name+".py"))
	for _, c := range foreignClients {
		_, err := os.Stat(filepath.Join("testdata/serve", name+c.program))
		if err != nil || !testlength.Long && c.language != "Python" {
			continue
		}
		t.Run(c.language, func(t *testing.T) {
			t.Parallel()
			path := c.path(t, name+c.program)
			test(t, func(s *servedProcess) *exec.Cmd {
				cmd := exec.Command(c.command, path)
				cmd.Env = append(os.Environ(), "STINT="+s.at[0])
				return cmd
			})
		})
	}
}

// path returns the path of a program of testdata/serve.
func (c foreignClient) path(t *testing.T, name string) string {
	t.Helper()
	if out, err := exec.Command("sh", "-c", c.has).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	path, err := filepath.Abs(filepath.Join("testdata/serve", name))
	require.NoError(t, err)
	if c.language != "Node" {
		return path
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	dir := t.TempDir() // Node looks for ioredis in node_modules beside the program
	require.NoError(t, os.Symlink(nodeModules(t), filepath.Join(dir, "node_modules")))
	path = filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// nodeModules returns a directory node_modules that has ioredis: that of
// $STINT_TEST_NODE, or npm's global one.
func nodeModules(t *testing.T) string {
	t.Helper()
	var dirs []string
	if dir := os.Getenv("STINT_TEST_NODE"); dir != "" {
		dirs = append(dirs, filepath.Join(dir, "node_modules"))
	}
	if out, err := exec.Command("npm", "root", "--global").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "ioredis", "package.json")); err == nil {
			return dir
		}
	}
	t.Skipf("no ioredis in %q: npm install --global ioredis, or set STINT_TEST_NODE to a directory that has it", dirs)
	return ""
}

// The programs in docs/serve.md work with default options, also after a restart.
func TestServeLanguages(t *testing.T) {
	withClients(t, "throttle", func(t *testing.T, command func(*servedProcess) *exec.Cmd) {
		db := serveDB(t)
		run := func(s *servedProcess) string {
			out, err := command(s).CombinedOutput()
			require.NoError(t, err, "%s", out)
			return string(out)
		}
		s := startServe(t, 1, nil, "--db", db, "--durability", "synced")
		assert.Equal(t, "99 of 100 left\n", run(s))
		s.kill()
		s = startServe(t, 1, nil, "--db", db)
		assert.Equal(t, "98 of 100 left\n", run(s))
		client := resptest.Dial(t, s.at[0])
		assert.Contains(t, client.Do(t, "CL.THROTTLE user:1 99 100 86400 98"), "[0 100 0 -1 ")
		assert.Regexp(t, `^retry in 8\d\ds\n$`, run(s))
	})
}

// Clients send MULTI and EXEC for what their languages call a transaction, and one
// of them sends GCRA.
func TestServeTransactions(t *testing.T) {
	withClients(t, "transaction", func(t *testing.T, command func(*servedProcess) *exec.Cmd) {
		out, err := command(startServe(t, 1, nil, "--db", serveDB(t))).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
}

// Worker processes share one limit, exactly.
func TestServeWorkers(t *testing.T) {
	workers := 3
	if testlength.Long {
		workers = 8
	}
	withClients(t, "workers", func(t *testing.T, command func(*servedProcess) *exec.Cmd) {
		s := startServe(t, 1, nil, "--db", serveDB(t))
		var started []*exec.Cmd
		var begin []io.Closer
		outs := make([]bytes.Buffer, workers)
		for i := range outs {
			cmd := command(s)
			cmd.Stdout, cmd.Stderr = &outs[i], &outs[i]
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			started, begin = append(started, cmd), append(begin, stdin)
		}
		for _, stdin := range begin {
			require.NoError(t, stdin.Close())
		}
		admitted := 0
		for i, cmd := range started {
			require.NoError(t, cmd.Wait(), outs[i].String())
			var n int
			_, err := fmt.Sscan(strings.TrimSpace(outs[i].String()), &n)
			require.NoError(t, err, outs[i].String())
			admitted += n
		}
		assert.Equal(t, 1000, admitted, "of %d requests", 400*workers)
	})
}

// One client of redis-py, and one of ioredis, goes on after the server was killed
// and started again.
func TestServeReconnects(t *testing.T) {
	withClients(t, "reconnect", func(t *testing.T, command func(*servedProcess) *exec.Cmd) {
		db := serveDB(t)
		s := startServe(t, 1, nil, "--db", db, "--durability", "synced")
		cmd := command(s)
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		lines := bufio.NewReader(stdout)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "99\n", line)
		s.kill()
		startServe(t, 1, nil, "--db", db)
		_, err = io.WriteString(stdin, "\n")
		require.NoError(t, err)
		line, err = lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "98\n", line)
	})
}
