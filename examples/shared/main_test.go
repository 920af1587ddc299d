package main

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

func TestMain(m *testing.M) { subprocess.Main(m, main) }

// Two servers and the client share the file. The client also works while none
// runs, and what it does is in force when the next one starts.
func TestShared(t *testing.T) {
	t.Setenv("SHARED_FILE", filepath.Join(t.TempDir(), "shared.db"))
	run := func(args ...string) string {
		t.Helper()
		p := subprocess.Begin(t, subprocess.Self(t.Context(), args...))
		p.Lines.Scan()
		p.Finish(t)
		return p.Lines.Text()
	}
	start := func() (url string, stop func()) {
		p := subprocess.Begin(t, subprocess.Self(t.Context(), "serve", "127.0.0.1:0"))
		return p.ReadLine(t), func() {
			require.NoError(t, p.Cmd.Process.Signal(os.Interrupt))
			require.NoError(t, p.Cmd.Wait())
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
