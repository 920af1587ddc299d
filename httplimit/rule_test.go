package httplimit

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestKeyFuncs(t *testing.T) {
	request := func(change func(*http.Request)) *http.Request {
		r := httptest.NewRequest("GET", "/", nil)
		change(r)
		return r
	}
	plain := request(func(*http.Request) {})
	for name, tc := range map[string]struct {
		f    KeyFunc
		r    *http.Request
		want string // "" is ErrNoID
	}{
		"header":         {ByHeader(perKey, "x-key"), request(func(r *http.Request) { r.Header.Set("X-Key", "k") }), "k"},
		"no header":      {ByHeader(perKey, "x-key"), plain, ""},
		"cookie":         {ByCookie(perKey, "c"), request(func(r *http.Request) { r.Header.Set("Cookie", "d=x; c=k") }), "k"},
		"no cookie":      {ByCookie(perKey, "c"), plain, ""},
		"two cookies":    {ByCookie(perKey, "c"), request(func(r *http.Request) { r.Header.Set("Cookie", "c=x; c=k") }), ""},
		"user":           {ByBasicAuthUser(perKey), request(func(r *http.Request) { r.SetBasicAuth("k", "secret") }), "k"},
		"no user":        {ByBasicAuthUser(perKey), plain, ""},
		"no name":        {ByBasicAuthUser(perKey), request(func(r *http.Request) { r.SetBasicAuth("", "secret") }), ""},
		"path value":     {ByPathValue(perKey, "id"), request(func(r *http.Request) { r.SetPathValue("id", "k") }), "k"},
		"no path value":  {ByPathValue(perKey, "id"), plain, ""},
		"first of two":   {FirstOf(ByHeader(everyone, "X"), ByHeader(perKey, "K")), request(func(r *http.Request) { r.Header.Set("K", "k") }), "k"},
		"first of none":  {FirstOf(ByHeader(everyone, "X"), ByHeader(perKey, "K")), plain, ""},
		"first that has": {FirstOf(ByIP(perKey), ByHeader(everyone, "K")), request(func(r *http.Request) { r.Header.Set("K", "k") }), "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := tc.f(tc.r)
			if tc.want == "" {
				require.ErrorIs(t, err, ErrNoID)
				return
			}
			require.NoError(t, err)
			require.Equal(t, perKey.Key(tc.want), key)
		})
	}
	key, err := Shared(everyone)(plain)
	require.NoError(t, err)
	require.Equal(t, stint.Key{Name: everyone}, key)
}

func TestStatusFuncs(t *testing.T) {
	for status, want := range map[int][3]bool{
		200: {false, false, false}, 401: {true, false, false}, 403: {true, false, true}, 404: {false, false, true},
		499: {false, false, false}, 500: {false, true, false}, 503: {false, true, false},
	} {
		require.Equal(t, want, [3]bool{AuthFailed(status), ServerError(status), Status(403, 404)(status)}, status)
	}
}

func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, method, target string
		want                    bool
	}{
		{"POST /login", "POST", "/login", true},
		{"POST /login", "GET", "/login", false},
		{"POST /login", "POST", "/logins", false},
		{"POST /login", "POST", "//login", true},
		{"POST /login", "POST", "/./x/..//login", true},
		{"POST /login", "POST", "/login/", true},
		{"POST /login", "POST", "/%6cogin", true},
		{"POST /login", "POST", "/login/?a=b", true},
		{"/login", "DELETE", "/login", true},
		{"GET /login", "HEAD", "/login", true},
		{"/api/", "GET", "/api/v1/x", true},
		{"/api/", "GET", "/api", true},
		{"/api/", "GET", "//api", true},
		{"/api/", "GET", "/apis", false},
		{"/{$}", "GET", "/", true},
		{"/{$}", "GET", "/x", false},
		{"/users/{id}", "GET", "/users/7", true},
		{"/users/{id}", "GET", "//users//7/", true},
		{"/users/{id}", "GET", "/users/7/posts", false},
		{"/users/{id}/", "GET", "/users/7", true},
		{"api.example/x", "GET", "http://api.example/x", true},
		{"api.example/x", "GET", "http://www.example/x", false},
		{"api.example/x", "GET", "http://API.example/x", true},
		{"api.example/x", "GET", "http://api.example.:8080/x", true},
		{"GET API.Example./x", "GET", "http://api.example/x", true},
		{"api.example/x", "GET", "http://API.example//x/", true},
		{"/downloads/", "GET", "/downloads%2Fbig.iso", true},
		{"/downloads/", "GET", "/x%2f..%2Fdownloads/big.iso", true},
		{"/downloads/", "GET", "/downloads%252Fbig.iso", false},
		{"POST /admin/login", "POST", "/admin%2Flogin", true},
		{"POST /login", "POST", "/x/%2e%2e/login", true},
		{"/users/{id}", "GET", "/users%2F7", true},
		{"/users/{id}/", "GET", "/users%2F7", true},
		{"/login/{$}", "GET", "/x%2F..%2Flogin", true},
		{"", "GET", "/anything", true},
	} {
		r := httptest.NewRequest(tc.method, tc.target, nil)
		before, path := *r, *r.URL
		matched, ok := newRoute(tc.pattern).match(r)
		require.Equal(t, tc.want, ok, "%+v", tc)
		require.Equal(t, before.Pattern, r.Pattern)
		require.Equal(t, path, *r.URL)
		if ok {
			require.Equal(t, r.URL, matched.URL)
			require.Equal(t, r.Host, matched.Host)
			if strings.Contains(tc.pattern, "{id}") {
				require.Equal(t, "7", matched.PathValue("id"))
			}
		}
	}
	star := httptest.NewRequest("GET", "/", nil)
	star.RequestURI, star.URL.Path = "*", "*"
	matched, ok := newRoute("/").match(star)
	require.True(t, ok)
	require.Equal(t, "*", matched.RequestURI)
}

// A pattern without wildcards leaves those of the pattern that led to the handler, however the path is spelled: else who encodes a
// byte of it has no id, and where that is optional no limit.
func TestPathValueOfTheOuterPattern(t *testing.T) {
	for _, pattern := range []string{"GET /users/", "127.0.0.1/users/"} {
		lim, _ := newLimiter(t, nil)
		mux := http.NewServeMux()
		rule := Rule{Pattern: pattern, Key: ByPathValue(perKey, "user"), Optional: true}
		mux.Handle("/users/{user}/", New(lim, nil, rule)(http.HandlerFunc(status)))
		srv := serve(t, mux)
		require.Equal(t, "200 200 200 200 200 429", statuses(t, 6, srv.URL+"/users/7/a%2Fb"), pattern)
	}
}

// A rule with a pattern, around a whole mux, and one without, around one of its routes, both see the wildcards.
func TestPathValueEitherWay(t *testing.T) {
	for name, build := range map[string]func(lim *stint.Limiter) http.Handler{
		"around the mux": func(lim *stint.Limiter) http.Handler {
			mux := http.NewServeMux()
			mux.HandleFunc("/users/{user}", func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte(r.Pattern + " " + r.PathValue("user") + r.PathValue("id")))
			})
			return New(lim, nil, Rule{Pattern: "/users/{id}", Key: ByPathValue(perKey, "id")})(mux)
		},
		"around a route": func(lim *stint.Limiter) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/users/{user}", New(lim, nil, Rule{Key: ByPathValue(perKey, "user")})(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Write([]byte(r.Pattern + " " + r.PathValue("user")))
				})))
			return mux
		},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			srv := serve(t, build(lim))
			require.Equal(t, "/users/{user} 7", get(t, srv.URL+"/users/7").body)
			require.Equal(t, "200 200 200 200 429", statuses(t, 5, srv.URL+"/users/7"))
			require.Equal(t, "200", statuses(t, 1, srv.URL+"/users/8"))
			require.Equal(t, "404", statuses(t, 1, srv.URL+"/other"))
		})
	}
}

// The short way through a route leads where the long one does.
func FuzzRoute(f *testing.F) {
	patterns := []string{
		"/", "/login", "POST /login", "GET /api/", "/api/", "/{$}", "/users/{id}", "/users/{id}/", "/users/{rest...}", "/a/{x}/b",
	}
	f.Add(uint8(1), "GET", "/login/")
	f.Add(uint8(3), "HEAD", "/api")
	f.Add(uint8(7), "GET", "/users/7/x")
	f.Fuzz(func(t *testing.T, pattern uint8, method, path string) {
		r, err := http.NewRequest(method, "http://x"+path, nil)
		if err != nil || r.Host != "x" || r.URL.Path == "" {
			return
		}
		ro := newRoute(patterns[int(pattern)%len(patterns)])
		_, short := ro.match(r)
		ro.literal, ro.method = "", ""
		_, long := ro.match(r)
		require.Equal(t, long, short, "%s %s", method, path)
	})
}
