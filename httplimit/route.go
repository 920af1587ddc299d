package httplimit

import (
	"net/http"
	"net/url"
	"path"
	"strings"
)

// route tells whether a request matches one pattern. Its nil matches every request.
type route struct {
	mux *http.ServeMux
}

// newRoute panics, as http.ServeMux does, where the pattern is none.
func newRoute(pattern string) *route {
	if pattern == "" {
		return nil
	}
	ro := &route{http.NewServeMux()}
	ro.mux.Handle(pattern, reached{})
	return ro
}

// reached is the handler that a route leads to.
type reached struct{}

func (reached) ServeHTTP(http.ResponseWriter, *http.Request) {}

// match reports whether the pattern matches, and returns a request that has the values of its wildcards. Paths that
// routers treat alike are matched alike: a rule must not be got around by "//login" or "/login/".
func (ro *route) match(r *http.Request) (*http.Request, bool) {
	if ro == nil {
		return r, true
	}
	matched := *r // Pattern and the values are set on this one, and not for the handler to see
	if !ro.leads(&matched) && !ro.leadsAlike(&matched) {
		return nil, false
	}
	matched.RequestURI = "/" // for "*", ServeMux would answer by itself
	ro.mux.ServeHTTP(nil, &matched)
	matched.RequestURI, matched.URL = r.RequestURI, r.URL
	return &matched, true
}

func (ro *route) leads(r *http.Request) bool {
	h, _ := ro.mux.Handler(r)
	_, ok := h.(reached)
	return ok
}

// leadsAlike gives the request the first of the paths it might as well have that the pattern matches.
func (ro *route) leadsAlike(r *http.Request) bool {
	escaped := r.URL.EscapedPath()
	bare := path.Clean("/" + escaped)
	for _, p := range [...]string{bare, strings.TrimSuffix(bare, "/") + "/"} {
		if p == escaped {
			continue
		}
		u := *r.URL
		var err error
		if u.Path, err = url.PathUnescape(p); err != nil {
			return false
		}
		u.RawPath = p
		r.URL = &u
		if ro.leads(r) {
			return true
		}
	}
	return false
}
