package main

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

func TestMain(m *testing.M) { subprocess.Main(m, main) }

// Two servers and the client share the file. The client also works while none
// runs, and what it does is in force when the next one starts.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	command := func(args ...string) *exec.Cmd {
		cmd := subprocess.Command(t.Context(), os.Args[0], args...)
		cmd.Env = append(os.Environ(), "SHARED_FILE="+filepath.Join(dir, "shared.db"))
		cmd.Stderr = os.Stderr
		return cmd
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := command(args...).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	start := func() (url string, stop func()) {
		cmd := command("serve", "127.0.0.1:0")
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill() })
		lines := bufio.NewScanner(stdout)
		require.True(t, lines.Scan())
		return lines.Text(), func() {
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			require.NoError(t, cmd.Wait())
		}
	}
	get := func(url string) int {
		t.Helper()
		res, err := http.Get(url)
		require.NoError(t, err)
		res.Body.Close()
		return res.StatusCode
	}
	first, stopFirst := start()
	second, stopSecond := start()
	for range 5 {
		require.Equal(t, http.StatusOK, get(first))
		require.Equal(t, http.StatusOK, get(second))
	}
	require.Contains(t, []string{"90", "91"}, run("left", "127.0.0.1")) // a token comes back in 36 seconds
	run("ban", "127.0.0.1", "1h")
	require.Equal(t, http.StatusTooManyRequests, get(first))
	stopFirst()
	require.Equal(t, http.StatusTooManyRequests, get(second), "it has taken the file over")
	run("unban", "127.0.0.1")
	require.Equal(t, http.StatusOK, get(second))
	stopSecond()
	run("ban", "127.0.0.1", "1h")
	third, stopThird := start()
	require.Equal(t, http.StatusTooManyRequests, get(third))
	stopThird()
}
