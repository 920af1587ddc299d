package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

const question = `{"messages":[{"role":"user","content":"Count to five"}],"max_tokens":5}`

// newServer returns the URL of a proxy in front of an API, and its Limiter.
func newServer(t *testing.T, api http.HandlerFunc) (string, *stint.Limiter) {
	upstream := httptest.NewServer(api)
	t.Cleanup(upstream.Close)
	to, err := url.Parse(upstream.URL)
	require.NoError(t, err)
	ls, err := limits()
	require.NoError(t, err)
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	lim, err := stint.Open(filepath.Join(t.TempDir(), "q.db"), ls, &stint.Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	proxy := httptest.NewServer(newProxy(lim, to))
	t.Cleanup(proxy.Close)
	return proxy.URL, lim
}

func ask(t *testing.T, to, key, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", to+"/v1/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// requireUsed waits until both limits of an account have spent so many tokens.
// An answer is settled when the proxy has sent it.
func requireUsed(t *testing.T, lim *stint.Limiter, id string, want int64) {
	t.Helper()
	used := func(name stint.Name) int64 {
		b, err := lim.Bucket(name.Key(id))
		require.NoError(t, err)
		return b.Limit.Burst - b.Remaining
	}
	require.Eventually(t, func() bool { return used(perMinute) == want && used(perMonth) == want },
		10*time.Second, time.Millisecond, "%d and %d used", used(perMinute), used(perMonth))
}

func TestProxy(t *testing.T) {
	t.Run("usage", func(t *testing.T) {
		to, lim := newServer(t, fake)
		for i, body := range []string{question, strings.Replace(question, "{", `{"stream":true,`, 1)} {
			res := ask(t, to, "sk-alice", body)
			require.Equal(t, 200, res.StatusCode)
			text, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Contains(t, string(text), `"total_tokens":8`)
			requireUsed(t, lim, "alice", 8*int64(i+1))
		}
		requireUsed(t, lim, "bob", 0)
	})
	t.Run("refused", func(t *testing.T) {
		to, lim := newServer(t, fake)
		require.Equal(t, 401, ask(t, to, "sk-mallory", question).StatusCode)
		require.Equal(t, 400, ask(t, to, "sk-alice", "{").StatusCode)
		require.Equal(t, 400, ask(t, to, "sk-alice", `{"max_tokens":20001}`).StatusCode, "more than a minute has")
		requireUsed(t, lim, "alice", 0)
	})
	t.Run("several answers", func(t *testing.T) {
		to, lim := newServer(t, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Contains(t, string(body), `"max_tokens":5`)
			io.WriteString(w, `{"usage":{"total_tokens":18}}`)
		})
		res := ask(t, to, "sk-alice", strings.Replace(question, "{", `{"n":3,`, 1))
		require.Equal(t, 200, res.StatusCode)
		bound := len(question) + len(`"n":3,`) + 3*5
		require.Contains(t, res.Header.Get("RateLimit"), fmt.Sprintf("r=%d;", 20_000-bound))
		requireUsed(t, lim, "alice", 18)
		require.Equal(t, 400, ask(t, to, "sk-alice", `{"n":4001,"max_tokens":5}`).StatusCode, "more than a minute has")
		require.Equal(t, 400, ask(t, to, "sk-alice", `{"n":9000000000000000000,"max_tokens":5}`).StatusCode)
		require.Equal(t, 400, ask(t, to, "sk-alice", `{"n":2,"max_tokens":9000000000000000000}`).StatusCode)
		requireUsed(t, lim, "alice", 18)
	})
	t.Run("the API fails", func(t *testing.T) {
		to, lim := newServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
		require.Equal(t, 503, ask(t, to, "sk-alice", question).StatusCode)
		requireUsed(t, lim, "alice", 0)
	})
	t.Run("used up", func(t *testing.T) {
		to, lim := newServer(t, fake)
		_, err := lim.Spend(perMinute.Key("alice"), 20_000-8)
		require.NoError(t, err)
		res := ask(t, to, "sk-alice", question)
		require.Equal(t, 429, res.StatusCode, "the bound is not there")
	})
	t.Run("a client that disconnects", func(t *testing.T) {
		to, lim := newServer(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				io.WriteString(w, "data: {}\n\n")
			}
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		body := strings.Replace(question, "{", `{"stream":true,`, 1)
		res := ask(t, to, "sk-alice", body)
		_, err := io.ReadFull(res.Body, make([]byte, 3*len("data: {}\n\n")))
		require.NoError(t, err)
		res.Body.Close()
		requireUsed(t, lim, "alice", int64(len(body))/4+3)
	})
	t.Run("in flight", func(t *testing.T) {
		entered, release := make(chan bool, inFlight), make(chan bool)
		to, lim := newServer(t, func(w http.ResponseWriter, r *http.Request) {
			entered <- true
			<-release
			fake(w, r)
		})
		answers := make(chan *http.Response, inFlight)
		for range inFlight {
			go func() {
				req, _ := http.NewRequest("POST", to, strings.NewReader(question))
				req.Header.Set("Authorization", "Bearer sk-alice")
				res, _ := http.DefaultClient.Do(req)
				answers <- res
			}()
			<-entered
		}
		requireAnswer(t, 1, ask(t, to, "sk-alice", question))
		close(release)
		require.Equal(t, 200, ask(t, to, "sk-bob", question).StatusCode)
		for range inFlight {
			res := <-answers
			require.NotNil(t, res)
			require.Equal(t, 200, res.StatusCode)
			res.Body.Close()
		}
		requireUsed(t, lim, "alice", 8*inFlight)
	})
}

// requireAnswer requires that a response is as block n of the README has it.
func requireAnswer(t *testing.T, n int, res *http.Response) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```text\n(.*?)```").FindAllSubmatch(readme, -1)[n][1]
	head, body, _ := strings.Cut(string(block), "\n\n")
	lines := strings.Split(strings.TrimSpace(head), "\n")
	require.Equal(t, lines[0], res.Proto+" "+res.Status)
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		require.Equal(t, value, res.Header.Get(name), name)
	}
	if body != "" {
		got, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, body, string(got))
	}
}

// The curl of the README gets the answer of the README.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.True(t, bytes.Contains(readme, []byte("-d '"+question+"'")))
	to, _ := newServer(t, fake)
	requireAnswer(t, 0, ask(t, to, "sk-alice", question))
}
