package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// stopwatch measures for wrk.sh how long requests are in a middleware, without
// the handler.
type stopwatch struct {
	mu   sync.Mutex
	took map[bool][]time.Duration // by whether they reached the handler
}

// timed is a response that is on its way through the middleware.
type timed struct {
	http.ResponseWriter
	begun   time.Time
	reached bool
	inside  time.Duration // in the handler
}

// around returns the middleware around the handler. A nil stopwatch measures nothing.
func (s *stopwatch) around(middleware func(http.Handler) http.Handler, h http.Handler) http.Handler {
	if s == nil {
		return middleware(h)
	}
	measured := middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, ok := w.(*timed)
		if !ok {
			h.ServeHTTP(w, r)
			return
		}
		begun := time.Now()
		h.ServeHTTP(t.ResponseWriter, r)
		t.inside, t.reached = time.Since(begun), true
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := timed{ResponseWriter: w, begun: time.Now()}
		measured.ServeHTTP(&t, r)
		took := time.Since(t.begun) - t.inside
		s.mu.Lock()
		s.took[t.reached] = append(s.took[t.reached], took)
		s.mu.Unlock()
	})
}

func (s *stopwatch) print(w io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for reached, what := range map[bool]string{true: "allowed", false: "denied"} {
		if took := s.took[reached]; len(took) > 0 {
			slices.Sort(took)
			fmt.Fprintf(w, "in the limiter: %d requests, %s: half took at most %v, nine of ten at most %v\n",
				len(took), what, took[len(took)/2], took[len(took)*9/10])
		}
	}
}
