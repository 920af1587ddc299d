package httplimit

import (
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// route tells whether a request matches one pattern. Its nil matches every request.
type route struct {
	mux     *http.ServeMux
	method  string // "" is any
	literal string // how the pattern's path begins, up to its first wildcard; "" where a host comes first
	whole   bool   // literal is all there is to it
	wild    bool   // it has wildcards to read
}

// newRoute panics, as http.ServeMux does, where the pattern is none.
func newRoute(pattern string) *route {
	if pattern == "" {
		return nil
	}
	ro := &route{mux: http.NewServeMux()}
	rest := pattern
	if i := strings.IndexAny(pattern, " \t"); i >= 0 {
		ro.method, rest = pattern[:i], strings.TrimLeft(pattern[i:], " \t")
	}
	host := max(0, strings.IndexByte(rest, '/'))
	ro.mux.Handle(pattern[:len(pattern)-len(rest)]+plainHost(rest[:host])+rest[host:], reached{})
	ro.wild = strings.Contains(strings.TrimSuffix(rest, "{$}"), "{")
	if strings.HasPrefix(rest, "/") && !strings.Contains(rest, "%") {
		wild := false
		ro.literal, _, wild = strings.Cut(rest, "{")
		ro.whole = !wild
	}
	return ro
}

// reached is the handler that a route leads to.
type reached struct{}

func (reached) ServeHTTP(http.ResponseWriter, *http.Request) {}

// match reports whether the pattern matches, and returns a request that has the values of its wildcards. Paths and hosts that
// routers treat alike are matched alike: a rule must not be got around by "//login", "/login/" or "/x%2F..%2Flogin".
func (ro *route) match(r *http.Request) (*http.Request, bool) {
	if ro == nil {
		return r, true
	}
	if ok, sure := ro.quick(r); sure {
		return r, ok
	}
	matched := *r // Pattern and the values are set on this one, and not for the handler to see
	matched.Host = plainHost(r.Host)
	if !ro.leads(&matched) && !ro.leadsAlike(&matched) {
		return nil, false
	}
	if !ro.wild {
		return r, true // it may have those of the pattern that led here
	}
	matched.RequestURI = "/" // for "*", ServeMux would answer by itself
	ro.mux.ServeHTTP(nil, &matched)
	matched.RequestURI, matched.URL, matched.Host = r.RequestURI, r.URL, r.Host
	return &matched, true
}

// quick answers for most requests: those whose path is spelled as plainly as the pattern's.
func (ro *route) quick(r *http.Request) (ok, sure bool) {
	if ro.method != "" && ro.method != r.Method && !(ro.method == http.MethodGet && r.Method == http.MethodHead) {
		return false, true
	}
	p := r.URL.Path
	if ro.literal == "" || r.URL.RawPath != "" || !strings.HasPrefix(p, "/") || strings.Contains(p, "//") || strings.Contains(p, "/.") {
		return false, false
	}
	bare := strings.TrimSuffix(ro.literal, "/")
	rest, begins := strings.CutPrefix(p, bare)
	switch {
	case !begins:
		return false, true
	case !ro.whole:
		return false, false
	case rest == "" || rest == "/":
		return true, true
	}
	return ro.literal != bare && rest[0] == '/', true
}

func (ro *route) leads(r *http.Request) bool {
	h, _ := ro.mux.Handler(r)
	_, ok := h.(reached)
	return ok
}

// leadsAlike gives the request the first of the paths it might as well have that the pattern matches: there are routers that go by
// the path as it was sent, and others, http.FileServer among them, that decode it first.
func (ro *route) leadsAlike(r *http.Request) bool {
	as := *r.URL
	escaped := as.EscapedPath()
	for _, p := range alike(escaped) {
		if p == escaped {
			continue
		}
		u := as
		var err error
		if u.Path, err = url.PathUnescape(p); err != nil {
			return false
		}
		u.RawPath = p
		if r.URL = &u; ro.leads(r) {
			return true
		}
	}
	if as.RawPath == "" { // what would be decoded was spelled plainly
		return false
	}
	for _, p := range alike(as.Path) {
		u := as
		u.Path, u.RawPath = p, ""
		if r.URL = &u; ro.leads(r) {
			return true
		}
	}
	return false
}

// alike returns a path as it is when it is cleaned, and with a slash at its end.
func alike(p string) [2]string {
	bare := path.Clean("/" + p)
	return [2]string{bare, strings.TrimSuffix(bare, "/") + "/"}
}

// plainHost returns a host as all its spellings have it, without its port.
func plainHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
