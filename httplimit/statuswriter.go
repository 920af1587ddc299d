package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// statusWriter is a ResponseWriter that reports the status once the handler has
// chosen it, and before the client can see it.
type statusWriter struct {
	http.ResponseWriter
	onStatus func(status int) // nil after its one call
}

func (w *statusWriter) choose(status int) {
	if f := w.onStatus; f != nil {
		w.onStatus = nil
		f(status)
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

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// can reports whether the writer is a T, or one that it wraps. That is how
// http.ResponseController looks for it.
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

// wrapped returns the writer with the optional interfaces that the wrapped one
// has.
func (w *statusWriter) wrapped() http.ResponseWriter {
	flush := can[http.Flusher](w.ResponseWriter) || can[interface{ FlushError() error }](w.ResponseWriter)
	hijack := can[http.Hijacker](w.ResponseWriter)
	_, readFrom := w.ResponseWriter.(io.ReaderFrom)
	_, push := w.ResponseWriter.(http.Pusher)
	f, h, rf, p := flusher{w}, hijacker{w}, readerFrom{w}, pusher{w}
	switch {
	case flush && hijack && readFrom: // HTTP/1
		return struct {
			*statusWriter
			flusher
			hijacker
			readerFrom
		}{w, f, h, rf}
	case flush && push: // HTTP/2
		return struct {
			*statusWriter
			flusher
			pusher
		}{w, f, p}
	case flush && hijack:
		return struct {
			*statusWriter
			flusher
			hijacker
		}{w, f, h}
	case flush:
		return struct {
			*statusWriter
			flusher
		}{w, f}
	case hijack:
		return struct {
			*statusWriter
			hijacker
		}{w, h}
	}
	return w
}

type flusher struct{ sw *statusWriter }

func (f flusher) Flush() { f.FlushError() }

// FlushError is Flush for http.ResponseController.
func (f flusher) FlushError() error {
	f.sw.choose(http.StatusOK)
	return http.NewResponseController(f.sw.ResponseWriter).Flush()
}

type hijacker struct{ sw *statusWriter }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.sw.ResponseWriter).Hijack()
	if err == nil {
		h.sw.choose(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

type readerFrom struct{ sw *statusWriter }

func (rf readerFrom) ReadFrom(src io.Reader) (n int64, err error) {
	if rf.sw.onStatus != nil { // the first byte chooses the status, if there is one
		if n, err = io.CopyN(rf.sw, src, 512); err != nil {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
	}
	rest, err := rf.sw.ResponseWriter.(io.ReaderFrom).ReadFrom(src)
	return n + rest, err
}

type pusher struct{ sw *statusWriter }

func (p pusher) Push(target string, opts *http.PushOptions) error {
	return p.sw.ResponseWriter.(http.Pusher).Push(target, opts)
}
