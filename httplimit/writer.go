package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// statusWriter is a ResponseWriter that tells the status before the client can see it.
type statusWriter struct {
	http.ResponseWriter
	onStatus func(status int) // nil once told
}

func (w *statusWriter) settle(status int) {
	if f := w.onStatus; f != nil {
		w.onStatus = nil
		f(status)
	}
}

func (w *statusWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.settle(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	w.settle(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// can reports whether the writer, or one that it is around, is a T: http.ResponseController finds it there.
func can[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		around, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = around.Unwrap()
	}
}

// wrapped returns the writer with those of the optional interfaces that the one below has.
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
	f.sw.settle(http.StatusOK)
	return http.NewResponseController(f.sw.ResponseWriter).Flush()
}

type hijacker struct{ sw *statusWriter }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.sw.ResponseWriter).Hijack()
	if err == nil {
		h.sw.settle(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

type readerFrom struct{ sw *statusWriter }

func (rf readerFrom) ReadFrom(src io.Reader) (n int64, err error) {
	if rf.sw.onStatus != nil { // the status is chosen by the first byte: there may be none
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
