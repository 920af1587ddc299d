package httplimit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/rules"
)

// waiting returns middleware that acts on the status. It counts each status
// except 200, and refunds server errors.
func waiting(lim limiter) func(http.Handler) http.Handler {
	return Middleware(lim, nil,
		Rule{Key: ByIP(failures), Count: func(status int) bool { return status != 200 }},
		Rule{Key: ByIP(perAddress), Refund: ServerError})
}

// unwrapping can only do what the writer that it wraps can do.
type unwrapping struct{ http.ResponseWriter }

func (w unwrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestStatusWriter(t *testing.T) {
	unwrapped := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(unwrapping{w}, r) })
	}
	noFlush := func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "late") }
	hijack := func(conn net.Conn, rw *bufio.ReadWriter, err error) {
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
		rw.Flush()
	}
	fails := func(status int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			if n, err := io.Copy(w, iotest.ErrReader(errors.New("upstream is down"))); n == 0 && err != nil {
				w.WriteHeader(status)
			}
		}
	}
	control := http.NewResponseController
	hijacks := func(w http.ResponseWriter) { hijack(control(w).Hijack()) }
	text, long := strings.NewReader("all of it"), strings.Repeat("x", 5000)
	for name, tc := range map[string]struct {
		around func(http.Handler) http.Handler
		f      func(w http.ResponseWriter)
		status int // for the client
		body   string
		counts bool
		refund bool
	}{
		"nothing":  {nil, func(http.ResponseWriter) {}, 200, "", false, false},
		"Hijacker": {nil, func(w http.ResponseWriter) { hijack(w.(http.Hijacker).Hijack()) }, 200, "hi", true, false},

		"ResponseController.Hijack": {nil, hijacks, 200, "hi", true, false},
		"Hijack through Unwrap":     {unwrapped, hijacks, 200, "hi", true, false},
		"Flush is not supported": {noFlush, func(w http.ResponseWriter) {
			if err := control(w).Flush(); err != nil {
				http.Error(w, "no streaming", 500)
			}
		}, 500, "no streaming\n", true, true},
		"ReadFrom": {nil, func(w http.ResponseWriter) { io.Copy(w, text) }, 200, "all of it", false, false},
		"ReadFrom, long": {nil, func(w http.ResponseWriter) {
			w.(io.ReaderFrom).ReadFrom(iotest.OneByteReader(strings.NewReader(long)))
		}, 200, long, false, false},
		"ReadFrom fails before the first byte, 401": {nil, fails(401), 401, "", true, false},
		"ReadFrom fails before the first byte, 502": {nil, fails(502), 502, "", true, true},
		"informational, and superfluous": {nil, func(w http.ResponseWriter) {
			for _, status := range []int{http.StatusEarlyHints, http.StatusOK, http.StatusForbidden} {
				w.WriteHeader(status)
			}
		}, 200, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			h := waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { tc.f(w) }))
			if tc.around != nil {
				h = tc.around(h)
			}
			srv := httptest.NewUnstartedServer(h)
			srv.Config.ErrorLog = quiet // of the superfluous call
			srv.Start()
			defer srv.Close()
			res := get(t, srv.URL)
			require.Equal(t, tc.status, res.StatusCode)
			require.Equal(t, tc.body, res.body)
			require.Equal(t, tc.counts, left(t, lim, local[failures]) == 4)
			require.Equal(t, tc.refund, left(t, lim, local[perAddress]) == 5)
		})
	}

	for _, http2 := range []bool{false, true} {
		for name, flush := range map[string]func(http.ResponseWriter) error{
			"Flusher":                  func(w http.ResponseWriter) error { w.(http.Flusher).Flush(); return nil },
			"ResponseController.Flush": func(w http.ResponseWriter) error { return control(w).Flush() },
		} {
			t.Run(fmt.Sprint(name, ", HTTP/2 ", http2), func(t *testing.T) {
				lim, _ := newLimiter(t, nil)
				arrived := make(chan struct{})
				srv := httptest.NewUnstartedServer(waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					io.WriteString(w, r.Proto)
					require.NoError(t, flush(w))
					<-arrived // a deadlock if it is not sent
					io.WriteString(w, "second")
				})))
				srv.EnableHTTP2 = http2
				srv.StartTLS()
				defer srv.Close()
				res, err := srv.Client().Get(srv.URL)
				require.NoError(t, err)
				first := make([]byte, len("HTTP/1.1"))
				_, err = io.ReadFull(res.Body, first)
				require.NoError(t, err)
				require.Equal(t, http2, string(first) == "HTTP/2.0")
				close(arrived)
				require.Equal(t, "second", read(t, res))
			})
		}
	}
	for name, f := range map[string]func(http.ResponseWriter){
		"ReadFrom": func(w http.ResponseWriter) { io.Copy(w, strings.NewReader("x")) },
		"Write":    func(w http.ResponseWriter) { io.WriteString(w, "x") },
		"Flush":    func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
	} {
		t.Run(name+" writes the header", func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			w := answerTo(Middleware(lim, nil, Rule{Key: ByIP(failures), Refund: rules.OneOf(200)})(http.HandlerFunc(
				func(w http.ResponseWriter, _ *http.Request) { f(w) })), withKey(""))
			require.Equal(t, `"login";r=5;t=12`, w.Result().Header.Get("RateLimit"), "refunded before the client can see it")
		})
	}
	t.Run("switching protocols", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		key := failures.Key("192.0.2.1")
		answerTo(waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
			require.EqualValues(t, 4, left(t, lim, key), "before the client can see it")
			w.Write(nil)
		})), withKey(""))
		require.EqualValues(t, 4, left(t, lim, key))
	})
	t.Run("panic", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		h := waiting(lim)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") }))
		res := get(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				require.Equal(t, "oops", recover())
				w.WriteHeader(http.StatusInternalServerError)
			}()
			h.ServeHTTP(w, r)
		})).URL)
		require.Equal(t, 500, res.StatusCode)
		require.Equal(t, `"login";r=4;t=12, "address";r=5;t=12`, res.Header.Get("RateLimit"))
	})
}

// After http.TimeoutHandler has answered, nested middleware continues in its
// own goroutine, and the answer does not wait for it.
func TestTimeoutHandler(t *testing.T) {
	outer, _ := newLimiter(t, nil)
	disk, end := newSlowLimiter(t, nil)
	memory, _ := newLimiter(t, nil)
	answered := make(chan struct{})
	for _, tc := range []struct {
		name    string
		lim     limiter
		rule    Rule
		handler http.HandlerFunc
		end     func()
	}{
		{"commit", disk, Rule{Key: ByIP(failures)}, status, end},
		{"handler", memory, Rule{Key: ByIP(failures), Count: AuthFailed}, func(w http.ResponseWriter, r *http.Request) {
			<-answered // the end of the context may come before the answer
			w.WriteHeader(http.StatusForbidden)
		}, func() { close(answered) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			done := make(chan struct{})
			inner := Middleware(tc.lim, nil, tc.rule)(tc.handler)
			signalled := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(done)
				inner.ServeHTTP(w, r)
			})
			url := serve(t, Middleware(outer, nil, Rule{Key: ByIP(perAddress), Refund: ServerError})(
				http.TimeoutHandler(signalled, time.Millisecond, "late"))).URL
			res := get(t, url) // a deadlock if it waits for the inner middleware
			require.Equal(t, 503, res.StatusCode)
			require.True(t, strings.HasPrefix(res.Header.Get("RateLimit"), `"address";r=5;t=12`))
			tc.end()
			<-done
			require.EqualValues(t, 4, left(t, tc.lim, local[failures]))
		})
	}
}
