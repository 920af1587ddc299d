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

// FlushError is Flush for http.ResponseController.
func (w *statusWriter) FlushError() error {
	w.settle(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// wrapped returns the writer with those of the optional interfaces that the one below has.
func (w *statusWriter) wrapped() http.ResponseWriter {
	_, flush := w.ResponseWriter.(http.Flusher)
	_, hijack := w.ResponseWriter.(http.Hijacker)
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

func (f flusher) Flush() { f.sw.FlushError() }

type hijacker struct{ sw *statusWriter }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := h.sw.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil {
		h.sw.settle(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

type readerFrom struct{ sw *statusWriter }

func (rf readerFrom) ReadFrom(src io.Reader) (int64, error) {
	rf.sw.settle(http.StatusOK)
	return rf.sw.ResponseWriter.(io.ReaderFrom).ReadFrom(src)
}

type pusher struct{ sw *statusWriter }

func (p pusher) Push(target string, opts *http.PushOptions) error {
	return p.sw.ResponseWriter.(http.Pusher).Push(target, opts)
}
