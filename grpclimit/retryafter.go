package grpclimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// RetryAfter returns the time that the RetryInfo of a status asks to wait, in a
// client or in a gateway. It returns false if err is not a status with RetryInfo.
func RetryAfter(err error) (wait time.Duration, ok bool) {
	st, is := status.FromError(err)
	if !is {
		return 0, false
	}
	for _, detail := range st.Details() {
		if retry, is := detail.(*errdetails.RetryInfo); is {
			wait, ok = max(wait, retry.GetRetryDelay().AsDuration()), true
		}
	}
	return wait, ok
}

// SetRetryAfter sets Retry-After in the response of an HTTP gateway, in seconds,
// rounded up, and at least 1. Without RetryInfo it sets nothing.
func SetRetryAfter(h http.Header, err error) {
	if wait, ok := RetryAfter(err); ok {
		seconds := int64((max(wait, 1)-1)/time.Second) + 1
		h.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
}

// RetryAfterHandler adds Retry-After to the responses of an HTTP handler that
// translates denials of gRPC, such as a transcoder for the Connect protocol. It
// adds the field to a response with the status 429 whose header has the pushback
// of a denial, as Connect writes trailers of unary calls.
func RetryAfterHandler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&retryAfterWriter{ResponseWriter: w}, r)
	})
}

type retryAfterWriter struct{ http.ResponseWriter }

func (w *retryAfterWriter) WriteHeader(code int) {
	if h := w.Header(); code == http.StatusTooManyRequests && h.Get("Retry-After") == "" {
		for field, values := range h { // transcoders do not write it as Header.Get expects
			if len(values) != 1 || !strings.HasSuffix(strings.ToLower(field), "trailer-"+pushbackKey) {
				continue
			}
			if ms, err := strconv.ParseInt(values[0], 10, 64); err == nil && ms >= 0 {
				h.Set("Retry-After", strconv.FormatInt(max(1, (ms+999)/1000), 10))
				break
			}
		}
	}
	w.ResponseWriter.WriteHeader(code)
}

// Flush is for handlers of streams, which look for it.
func (w *retryAfterWriter) Flush() { http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (w *retryAfterWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
