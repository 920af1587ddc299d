package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/subprocess"
)

func TestMain(m *testing.M) { subprocess.Main(m, main) }

// runs starts a process, and returns its output and exit status.
func runs(t *testing.T, args ...string) (said string, code int) {
	t.Helper()
	out, err := subprocess.Command(t.Context(), os.Args[0], args...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(out), 0
}

// threeAnHour is a server that allows three requests an hour, and counts those
// that reach it.
func threeAnHour(t *testing.T) (url string, seen *atomic.Int64) {
	t.Helper()
	limits, err := stint.NewLimits(stint.Names{1: {Label: "hourly", Limit: stint.PerHour(3)}})
	require.NoError(t, err)
	lim, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(t, err)
	seen = new(atomic.Int64)
	limited := httplimit.Middleware(lim, nil, httplimit.Rule{Key: httplimit.ByIP(1)})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("answer\n")) }))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		limited.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.Close()
		lim.Close()
	})
	return srv.URL, seen
}

// Five processes ask a server that allows three requests an hour. Three get an
// answer. Two send nothing, and say how long to wait: the client knows the
// quota, or the server has said that nothing is left.
func TestFiveProcesses(t *testing.T) {
	for name, flags := range map[string][]string{
		"knows the quota": {"-quota", "3/1h"}, "is told by the server": {"-quota", "1000/1d"},
		"the wait is too long": {"-quota", "3/1h", "-wait", "1m"},
	} {
		t.Run(name, func(t *testing.T) {
			url, seen := threeAnHour(t)
			args := append(flags, "-file", filepath.Join(t.TempDir(), "client.db"), url)
			for i := range 5 {
				said, code := runs(t, args...)
				t.Logf("run %d: exit status %d: %s", i+1, code, strings.TrimSpace(said))
				if i < 3 {
					require.Equal(t, "answer\n", said)
					require.Zero(t, code)
					continue
				}
				require.Regexp(t, regexp.MustCompile(`^not sent: the quota is used up, try again in (19m|20m)\d+s\n$`), said)
				require.Equal(t, 75, code)
			}
			require.EqualValues(t, 3, seen.Load())
		})
	}
}

// The file is beside the user's settings. The directory need not exist.
func TestDefaultFile(t *testing.T) {
	config := filepath.Join(t.TempDir(), "not", "there")
	t.Setenv("XDG_CONFIG_HOME", config)
	t.Setenv("HOME", config)
	t.Setenv("AppData", config)
	url, seen := threeAnHour(t)
	for i, want := range []string{"answer\n", "not sent"} {
		said, _ := runs(t, "-quota", "1/1h", url)
		require.Contains(t, said, want, i)
	}
	require.EqualValues(t, 1, seen.Load())
	file, err := defaultFile()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(file, config))
	info, err := os.Stat(filepath.Dir(file))
	require.NoError(t, err)
	if runtime.GOOS != "windows" {
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	}
	_, err = os.Stat(file)
	require.NoError(t, err)
}

func TestOtherAnswers(t *testing.T) {
	for after, want := range map[string]string{
		"":                              "the server says 404 Not Found\n",
		"Wed, 21 Oct 2015 07:28:00 GMT": "the server says 404 Not Found; Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\n",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if after != "" {
				w.Header().Set("Retry-After", after)
			}
			http.NotFound(w, r)
		}))
		defer srv.Close()
		said, code := runs(t, "-file", filepath.Join(t.TempDir(), "client.db"), srv.URL)
		require.Equal(t, want, said)
		require.Equal(t, 1, code)
	}
}

// Twenty processes at once use exactly the quota, and none waits for another
// to end.
func TestParallelProcesses(t *testing.T) {
	if subprocess.Emulated() {
		t.Skip("twenty emulated processes take more than a second to start, and a client waits only a second")
	}
	var seen atomic.Int64
	all := make(chan struct{}) // closed when all requests have arrived, so no process waited for another
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) == 20 {
			close(all)
		}
		<-all
		w.Write([]byte("answer\n"))
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "client.db")
	var together sync.WaitGroup
	for range 20 {
		together.Go(func() {
			said, code := runs(t, "-file", file, "-quota", "20/1h", srv.URL)
			assert.Equal(t, "answer\n", said)
			assert.Zero(t, code)
		})
	}
	together.Wait()
	said, code := runs(t, "-file", file, "-quota", "20/1h", srv.URL)
	require.Equal(t, 75, code, said)
	require.EqualValues(t, 20, seen.Load())
}

// An API asks one run for an hour of rest. No later run sends a request, also
// if six of them run at the same time.
func TestCooldown(t *testing.T) {
	var seen atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "client.db")
	said, code := runs(t, "-file", file, srv.URL)
	require.Equal(t, "the server says 429 Too Many Requests; Retry-After: 3600\n", said)
	require.Equal(t, 1, code)

	laterRun := func() {
		said, code := runs(t, "-file", file, srv.URL)
		assert.Regexp(t, `^not sent: the quota is used up, try again in (59m\d+|1h0m0)s\n$`, said)
		assert.Equal(t, 75, code)
	}
	for range 6 {
		laterRun()
	}
	var together sync.WaitGroup
	for range 6 {
		together.Go(laterRun)
	}
	together.Wait()
	require.EqualValues(t, 1, seen.Load())
}
