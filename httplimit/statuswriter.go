package httplimit

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/stint-go/stint/rules"
)

// statusWriter is a ResponseWriter that ends a pass once the handler has chosen
// the status, and before the client can see it.
type statusWriter struct {
	http.ResponseWriter
	by     *middleware
	pass   *pass
	told   bool        // before is set
	before []string    // fields of the middleware when the request arrived
	once   sync.Once   // ends the pass
	chosen atomic.Bool // the pass has ended, or was denied
}

// choose ends the pass, or waits for another goroutine that does: SetStatus may
// run in the goroutine of http.TimeoutHandler, and the end changes the header.
func (w *statusWriter) choose(status int) {
	if !w.chosen.Load() {
		w.once.Do(func() {
			if w.pass.End(status) {
				w.by.writeFields(w.Header(), w.pass)
			}
			w.chosen.Store(true)
		})
	}
}

func (w *statusWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.choose(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	w.choose(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// ReadFrom lets net/http send a file by sendfile. The first byte, if there is
// one, chooses the status 200.
func (w *statusWriter) ReadFrom(src io.Reader) (n int64, err error) {
	if !w.chosen.Load() {
		if n, err = io.CopyN(struct{ io.Writer }{w}, src, 512); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
	rest, err := io.Copy(w.ResponseWriter, src)
	return n + rest, err
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// can reports whether the writer is a T, or wraps a writer that is a T. It
// unwraps as http.ResponseController does.
func can[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = outer.Unwrap()
	}
}

// wrapped returns the writer with Flush, or with Flush and Hijack, if the wrapped
// one has them.
func (w *statusWriter) wrapped() http.ResponseWriter {
	flush := can[http.Flusher](w.ResponseWriter) || can[interface{ FlushError() error }](w.ResponseWriter)
	hijack := can[http.Hijacker](w.ResponseWriter)
	switch {
	case flush && hijack: // HTTP/1
		return hijacker{flusher{w}}
	case flush: // HTTP/2
		return flusher{w}
	}
	return w
}

type flusher struct{ *statusWriter }

func (w flusher) Flush() { w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w flusher) FlushError() error {
	w.choose(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

type hijacker struct{ flusher }

func (w hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.choose(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// SetStatus tells the rules of a request which status the client will get, if
// code around the middleware writes it. It is for frameworks whose handlers return
// an error, and which write the status of that error only after the middleware has
// returned: call it in the adapter between the middleware and the framework. The
// first status counts, whether SetStatus or the handler chooses it. A status
// below 200, except 101, is ignored. An Observer must not call SetStatus: it may
// run while the rules act on a status, and would wait for itself.
func SetStatus(r *http.Request, status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	for p := passOf(r.Context()); p != nil; p = p.Outer() {
		if w, ok := p.Data.(*statusWriter); ok {
			w.choose(status)
		}
	}
}

func passOf(ctx context.Context) *pass { return rules.PassOf[*http.Request, int](ctx) }
