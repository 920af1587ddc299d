package httplimit

import (
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// route matches requests to one pattern. A nil route matches every request.
type route struct {
	mux     *http.ServeMux
	method  string // "" is any
	literal string // path up to the first wildcard; "" with a host or %
	whole   bool   // literal is the whole path
	wild    bool   // has wildcards
}

// newRoute panics on a pattern that http.ServeMux refuses.
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

// reached is the handler of a route's pattern.
type reached struct{}

func (reached) ServeHTTP(http.ResponseWriter, *http.Request) {}

// match reports whether the pattern matches, and returns a request with the
// values of its wildcards. Spellings of a path or a host that routers treat
// alike all match, so "//login", "/login/" and "/x%2F..%2Flogin" do not evade a
// rule.
func (ro *route) match(r *http.Request) (*http.Request, bool) {
	if ro == nil {
		return r, true
	}
	if ok, sure := ro.quick(r); sure {
		return r, ok
	}
	matched := *r // a copy, so that the handler does not see its Pattern and values
	matched.Host = plainHost(r.Host)
	if !ro.leads(&matched) && !ro.leadsAlike(&matched) {
		return nil, false
	}
	if !ro.wild {
		return r, true // with the values of the pattern that led here
	}
	matched.RequestURI = "/" // ServeMux does not route "*"
	ro.mux.ServeHTTP(nil, &matched)
	matched.RequestURI, matched.URL, matched.Host = r.RequestURI, r.URL, r.Host
	return &matched, true
}

// quick decides most requests without the mux: those with a plain path. If it
// is not sure, the caller must ask the mux.
func (ro *route) quick(r *http.Request) (ok, sure bool) {
	if ro.method != "" && ro.method != r.Method &&
		!(ro.method == http.MethodGet && r.Method == http.MethodHead) {
		return false, true
	}
	p := r.URL.Path
	if ro.literal == "" || r.URL.RawPath != "" ||
		!strings.HasPrefix(p, "/") || strings.Contains(p, "//") || strings.Contains(p, "/.") {
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

// leadsAlike reports whether the pattern matches another spelling of the path,
// and sets that path. Some routers match the path as it was sent. Others, such
// as http.FileServer, decode it first.
func (ro *route) leadsAlike(r *http.Request) bool {
	as, escaped := *r.URL, r.URL.EscapedPath()
	try := func(decoded, raw string) bool {
		u := as
		u.Path, u.RawPath = decoded, raw
		r.URL = &u
		return ro.leads(r)
	}
	for _, raw := range alike(escaped) {
		decoded, err := url.PathUnescape(raw)
		if raw != escaped && err == nil && try(decoded, raw) {
			return true
		}
	}
	for _, decoded := range alike(as.Path) {
		if as.RawPath != "" && try(decoded, "") { // otherwise decoding changes nothing
			return true
		}
	}
	return false
}

// alike returns two spellings of a path: as path.Clean writes it, and with a
// slash at the end.
func alike(p string) [2]string {
	bare := path.Clean("/" + p)
	return [2]string{bare, strings.TrimSuffix(bare, "/") + "/"}
}

// plainHost returns a host in lower case, without its port and final dot.
func plainHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
