package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rs/cors"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/httplimit"
)

// forPages lets the pages of an origin call an API, and read how long they must
// wait.
func forPages(origin string, limit func(http.Handler) http.Handler, api http.Handler) http.Handler {
	return cors.New(cors.Options{
		AllowedOrigins: []string{origin},
		AllowedMethods: []string{"GET", "POST", "PUT", "DELETE"},
		AllowedHeaders: []string{"Authorization", "Content-Type"},
		ExposedHeaders: []string{"Retry-After", "RateLimit", "RateLimit-Policy"},
		MaxAge:         600, // the browser asks once in ten minutes
	}).Handler(limit(api))
}

// patiently is what a page calls.
const patiently = `
async function patiently(input, init) {
  for (;;) {
    const res = await fetch(input, init)
    const seconds = res.headers.get('Retry-After')
    if (res.status !== 429 || seconds === null) return res
    await new Promise(done => setTimeout(done, seconds * 1000))
  }
}
`

// order puts CORS and the limit around an API.
type order func(origin string, limit func(http.Handler) http.Handler, api http.Handler) http.Handler

// pagesAndAPI starts a server with a page, and an API on another origin. What the
// page posts to /seen comes out of seen. left returns how many tokens the API has.
func pagesAndAPI(t *testing.T, lim *stint.Limiter, o order, page string) (
	pages *httptest.Server, api string, seen chan string, left func() int64,
) {
	seen = make(chan string, 1)
	mux := http.NewServeMux()
	pages = httptest.NewServer(mux)
	t.Cleanup(pages.Close)
	limit := httplimit.Middleware(lim, nil, httplimit.Rule{Key: httplimit.ClientAddress{}.ByIP(1)})
	api = serve(t, o(pages.URL, limit, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Method, r.Header.Get("Authorization"))
	})))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<!DOCTYPE html><script>const api = '"+api+"/'\n"+patiently+page+"</script>")
	})
	mux.HandleFunc("POST /seen", func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		seen <- string(text)
	})
	left = func() int64 {
		b, err := lim.Bucket(stint.Name(1).Key("127.0.0.1"))
		require.NoError(t, err)
		return b.Remaining
	}
	return pages, api, seen, left
}

func fromPage(t *testing.T, method, url, origin string, fields ...string) *http.Response {
	r, err := http.NewRequest(method, url, nil)
	require.NoError(t, err)
	r.Header.Set("Origin", origin)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	res.Body.Close()
	return res
}

// CORS around the limits: a preflight spends nothing, and a page may read a
// denial. The other way round, both fail.
func TestCORS(t *testing.T) {
	preflight := []string{"Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "authorization"}
	perSecond := func(int) stint.Limit { return stint.PerSecond(1).WithBurst(2) }
	pages, api, _, left := pagesAndAPI(t, limiter(t, perSecond), forPages, "")
	for range 5 {
		res := fromPage(t, "OPTIONS", api, pages.URL, preflight...)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Empty(t, res.Header.Get("RateLimit"))
		require.Equal(t, pages.URL, res.Header.Get("Access-Control-Allow-Origin"))
		require.Equal(t, "PUT", res.Header.Get("Access-Control-Allow-Methods"))
		require.Equal(t, "600", res.Header.Get("Access-Control-Max-Age"))
	}
	require.EqualValues(t, 2, left(), "a preflight spends nothing")
	for _, status := range []int{200, 200, 429} {
		res := fromPage(t, "GET", api, pages.URL)
		require.Equal(t, status, res.StatusCode)
		require.Equal(t, pages.URL, res.Header.Get("Access-Control-Allow-Origin"))
		exposed := strings.ToLower(res.Header.Get("Access-Control-Expose-Headers"))
		for _, field := range []string{"RateLimit", "RateLimit-Policy"} {
			require.NotEmpty(t, res.Header.Get(field))
			require.Contains(t, exposed, strings.ToLower(field))
		}
		if status == 429 {
			require.Equal(t, "1", res.Header.Get("Retry-After"))
			require.Contains(t, exposed, "retry-after")
		}
	}

	inside := func(origin string, limit func(http.Handler) http.Handler, api http.Handler) http.Handler {
		return limit(forPages(origin, func(h http.Handler) http.Handler { return h }, api))
	}
	pages, api, _, left = pagesAndAPI(t, limiter(t, perSecond), inside, "")
	require.Equal(t, http.StatusNoContent, fromPage(t, "OPTIONS", api, pages.URL, preflight...).StatusCode)
	require.EqualValues(t, 1, left(), "a preflight spends a token")
	fromPage(t, "GET", api, pages.URL)
	res := fromPage(t, "GET", api, pages.URL)
	require.Equal(t, 429, res.StatusCode)
	require.Empty(t, res.Header.Get("Access-Control-Allow-Origin"), "the page sees a network error")
}

// A page in Chromium reads Retry-After, and waits. It sends Authorization, so
// that Chromium asks for permission first.
func TestBrowser(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium")
	}
	limits, err := stint.NewLimits(stint.Names{1: {Label: "pages", Limit: stint.Limit{Burst: 2, Count: 1, Period: 3 * time.Second}}})
	require.NoError(t, err)
	lim, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer lim.Close()
	pages, _, seen, _ := pagesAndAPI(t, lim, forPages, `
	const init = { headers: { Authorization: 'Bearer x' } }
	const say = text => fetch('/seen', { method: 'POST', body: text })
	;(async () => {
	  let denied
	  while ((denied = await fetch(api, init)).status === 200);
	  const fields = ['Retry-After', 'RateLimit-Policy', 'X-Unexposed'].map(f => denied.headers.get(f))
	  const res = await patiently(api, init)
	  await say(JSON.stringify([denied.status, ...fields, res.status, await res.text()]))
	})().catch(err => say(String(err)))
	`)
	profile, err := os.MkdirTemp("", "chromium")
	require.NoError(t, err)
	defer os.RemoveAll(profile) // as far as its processes let it
	ctx, cancel := context.WithCancel(t.Context())
	browser := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-background-networking", "--user-data-dir="+profile, "--remote-debugging-port=0", pages.URL)
	var complaints bytes.Buffer
	browser.Stderr = &complaints
	require.NoError(t, browser.Start())
	defer browser.Wait()
	defer cancel()
	select {
	case got := <-seen:
		require.Regexp(t, `^\[429,"[123]","\\"pages\\";q=2;w=6",null,200,"GET Bearer x"\]$`, got)
	case <-time.After(2 * time.Minute):
		cancel()
		browser.Wait()
		t.Fatalf("the page has said nothing, and Chromium %s", &complaints)
	}
}
