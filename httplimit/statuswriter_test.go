package httplimit

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// waiting is middleware that wraps the ResponseWriter.
func waiting(lim *stint.Limiter) func(http.Handler) http.Handler {
	return New(lim, nil, Rule{Key: ByIP(failures), CountStatus: func(status int) bool { return status != 200 }})
}

func TestFlush(t *testing.T) {
	for name, flush := range map[string]func(http.ResponseWriter){
		"Flusher":            func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"ResponseController": func(w http.ResponseWriter) { require.NoError(t, http.NewResponseController(w).Flush()) },
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			arrived := make(chan struct{})
			srv := serve(t, waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "first")
				flush(w)
				<-arrived // deadlocks if it has not gone out
				io.WriteString(w, "second")
			})))
			res, err := http.Get(srv.URL)
			require.NoError(t, err)
			defer res.Body.Close()
			first := make([]byte, 5)
			_, err = io.ReadFull(res.Body, first)
			require.NoError(t, err)
			close(arrived)
			rest, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, "second", string(rest))
		})
	}
}

func TestHijack(t *testing.T) {
	for name, hijack := range map[string]func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error){
		"Hijacker": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) { return w.(http.Hijacker).Hijack() },
		"ResponseController": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			return http.NewResponseController(w).Hijack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			srv := serve(t, waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, rw, err := hijack(w)
				require.NoError(t, err)
				defer conn.Close()
				rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
				rw.Flush()
			})))
			require.Equal(t, "hi", get(t, srv.URL).body)
			require.EqualValues(t, 4, left(t, lim, local[failures]), "counted as 101")
		})
	}
}

type unwrapping struct{ http.ResponseWriter }

func (w unwrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestHijackThroughUnwrap: a writer below that can only by what it is around.
func TestHijackThroughUnwrap(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	h := waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		require.NoError(t, err)
		defer conn.Close()
		rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
		rw.Flush()
	}))
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(unwrapping{w}, r) }))
	require.Equal(t, "hi", get(t, srv.URL).body)
	require.EqualValues(t, 4, left(t, lim, local[failures]), "counted as 101")
}

// TestFlushNotSupported: the status is the one that the handler answers with then.
func TestFlushNotSupported(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	h := New(lim, nil, Rule{Key: ByIP(perAddress), RefundStatus: ServerError})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).Flush(); err != nil {
			http.Error(w, "no streaming", http.StatusInternalServerError)
		}
	}))
	srv := serve(t, http.TimeoutHandler(h, time.Minute, "late")) // whose writer cannot
	require.Equal(t, 500, get(t, srv.URL).StatusCode)
	require.EqualValues(t, 5, left(t, lim, local[perAddress]), "500 is given back")
}

// TestReadFromNothing: a source that fails before its first byte leaves the status to the handler.
func TestReadFromNothing(t *testing.T) {
	for _, code := range []int{401, 502} {
		lim, _ := newLimiter(t, nil)
		srv := serve(t, New(lim, nil, Rule{Key: ByIP(failures), CountStatus: AuthFailed}, Rule{Key: ByIP(perAddress), RefundStatus: ServerError})(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, err := io.Copy(w, iotest.ErrReader(errors.New("upstream is down")))
				require.Error(t, err)
				require.Zero(t, n)
				w.WriteHeader(code)
			})))
		require.Equal(t, code, get(t, srv.URL).StatusCode)
		wantCounted, wantKept := int64(4), int64(4)
		if code == 502 {
			wantCounted, wantKept = 5, 5
		}
		require.Equal(t, wantCounted, left(t, lim, local[failures]), code)
		require.Equal(t, wantKept, left(t, lim, local[perAddress]), code)
	}
}

func TestReadFrom(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("all of it"))
		require.NoError(t, err)
		require.EqualValues(t, 9, n)
	})))
	require.Equal(t, "all of it", get(t, srv.URL).body)
	require.EqualValues(t, 5, left(t, lim, local[failures]), "counted as 200")

	long := strings.Repeat("x", 5000)
	srv = serve(t, waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(w, strings.NewReader(long))
		require.NoError(t, err)
		require.EqualValues(t, len(long), n)
	})))
	require.Equal(t, long, get(t, srv.URL).body)
}

func TestDeadlinesThroughResponseController(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Time{}))
	})))
	require.Equal(t, 200, get(t, srv.URL).StatusCode)
}

func TestHTTP2(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	var pushable bool
	srv := httptest.NewUnstartedServer(waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pushable = w.(http.Pusher)
		w.(http.Flusher).Flush()
		io.WriteString(w, r.Proto)
	})))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	res, err := srv.Client().Get(srv.URL)
	require.NoError(t, err)
	require.Equal(t, "HTTP/2.0", read(t, res))
	require.True(t, pushable)
	require.IsType(t, &tls.ConnectionState{}, res.TLS)
}

// What the writer below cannot do, the one around it does not say that it can.
func TestPlainWriter(t *testing.T) {
	for name, tc := range map[string]struct {
		below         http.ResponseWriter
		flush, hijack bool
	}{
		"neither": {struct{ http.ResponseWriter }{httptest.NewRecorder()}, false, false},
		"flush":   {httptest.NewRecorder(), true, false},
		"hijack": {struct {
			http.ResponseWriter
			http.Hijacker
		}{httptest.NewRecorder(), nil}, false, true},
		"both": {struct {
			http.ResponseWriter
			http.Hijacker
			http.Flusher
		}{httptest.NewRecorder(), nil, nil}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := (&statusWriter{ResponseWriter: tc.below}).wrapped()
			_, flush := w.(http.Flusher)
			_, hijack := w.(http.Hijacker)
			_, readFrom := w.(io.ReaderFrom)
			require.Equal(t, [3]bool{tc.flush, tc.hijack, false}, [3]bool{flush, hijack, readFrom})
			require.Equal(t, tc.below, w.(interface{ Unwrap() http.ResponseWriter }).Unwrap())
		})
	}
}

func TestInformationalStatusIsNotTheStatus(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
		w.WriteHeader(http.StatusForbidden) // superfluous
	})))
	require.Equal(t, 200, get(t, srv.URL).StatusCode)
	require.EqualValues(t, 5, left(t, lim, local[failures]))
}

func TestSwitchingProtocolsIsTheStatus(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	w := httptest.NewRecorder()
	waiting(lim)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusSwitchingProtocols)
		require.EqualValues(t, 4, left(t, lim, failures.Key("192.0.2.1")), "before the client can see it")
		w.Write(nil)
	})).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.EqualValues(t, 4, left(t, lim, failures.Key("192.0.2.1")))
}

func TestHandlerThatDoesNothing(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	srv := serve(t, New(lim, nil, Rule{Key: ByIP(failures), CountStatus: Status(200)})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	require.Equal(t, `"login";r=4;t=12`, get(t, srv.URL).Header.Get("RateLimit"))
}

func TestPanic(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	again := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				require.Equal(t, "oops", recover())
				w.WriteHeader(http.StatusInternalServerError)
			}()
			next.ServeHTTP(w, r)
		})
	}
	srv := serve(t, again(New(lim, nil,
		Rule{Key: ByIP(failures), CountStatus: ServerError},
		Rule{Key: ByIP(perAddress), RefundStatus: ServerError},
	)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") }))))
	res := get(t, srv.URL)
	require.Equal(t, 500, res.StatusCode)
	require.Equal(t, `"login";r=4;t=12, "address";r=5`, res.Header.Get("RateLimit"))
	require.EqualValues(t, 4, left(t, lim, local[failures]))
	require.EqualValues(t, 5, left(t, lim, local[perAddress]))
}

// A handler that is still running when http.TimeoutHandler has answered for it settles by itself.
func TestTimeoutHandler(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	done, over := make(chan struct{}), make(chan struct{})
	inner := New(lim, nil, Rule{Key: ByIP(failures), CountStatus: AuthFailed})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.WriteHeader(http.StatusForbidden)
			<-over
		}))
	signalled := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { defer close(done); inner.ServeHTTP(w, r) })
	outer := New(lim, nil, Rule{Key: ByIP(perAddress), RefundStatus: ServerError})(http.TimeoutHandler(signalled, time.Millisecond, "late"))
	srv := serve(t, outer)
	require.Equal(t, 503, get(t, srv.URL).StatusCode)
	close(over)
	<-done
	require.EqualValues(t, 5, left(t, lim, local[perAddress]))
	require.EqualValues(t, 4, left(t, lim, local[failures]))
}

// The answer to a request that is late does not wait for the disk, which what is nested waits for.
func TestTimeoutHandlerWithStalledDisk(t *testing.T) {
	outer, _ := newLimiter(t, nil)
	store := &stalled{MemStore: stint.NewMemStore(), release: make(chan struct{})}
	lim, err := stint.New(store, testLimits(t, nil), &stint.Options{Durability: stint.Synced, CommitTimeout: time.Hour})
	require.NoError(t, err)
	defer lim.Close()
	release := sync.OnceFunc(func() { close(store.release) })
	defer release()
	done := make(chan struct{})
	inner := New(lim, nil, Rule{Key: ByIP(failures)})(http.HandlerFunc(status))
	signalled := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { defer close(done); inner.ServeHTTP(w, r) })
	srv := serve(t, New(outer, nil, Rule{Key: ByIP(perAddress), RefundStatus: ServerError})(
		http.TimeoutHandler(signalled, time.Millisecond, "late")))
	res := get(t, srv.URL) // deadlocks if it waits for the commit
	require.Equal(t, 503, res.StatusCode)
	require.Equal(t, `"address";r=5`, res.Header.Get("RateLimit"))
	release()
	<-done
	require.EqualValues(t, 4, left(t, lim, local[failures]))
}

// stalled is a store that saves nothing until it is released.
type stalled struct {
	*stint.MemStore
	release chan struct{}
}

func (s *stalled) Save(changes []stint.Change) error {
	<-s.release
	return s.MemStore.Save(changes)
}
