package httplimit

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoute(t *testing.T) {
	for pattern, tc := range map[string][2][]string{ // matching, and not matching
		"POST /login": {{
			"POST /login", "POST //login", "POST /./x/..//login", "POST /login/", "POST /%6cogin",
			"POST /login/?a=b", "POST /x/%2e%2e/login",
		}, {"GET /login", "POST /logins"}},
		"/login":       {{"DELETE /login"}, nil},
		"GET /login":   {{"HEAD /login"}, nil},
		"/api/":        {{"GET /api/v1/x", "GET /api", "GET //api"}, {"GET /apis"}},
		"/{$}":         {{"GET /"}, {"GET /x"}},
		"/users/{id}":  {{"GET /users/7", "GET //users//7/", "GET /users%2F7"}, {"GET /users/7/posts"}},
		"/users/{id}/": {{"GET /users/7", "GET /users%2F7"}, nil},
		"api.example/x": {{
			"GET http://api.example/x", "GET http://API.example/x",
			"GET http://api.example.:8080/x", "GET http://API.example//x/",
		}, {"GET http://www.example/x"}},
		"GET API.Example./x": {{"GET http://api.example/x"}, nil},
		"/downloads/": {{"GET /downloads%2Fbig.iso", "GET /x%2f..%2Fdownloads/big.iso"},
			{"GET /downloads%252Fbig.iso"}},
		"POST /admin/login": {{"POST /admin%2Flogin"}, nil},
		"/login/{$}":        {{"GET /x%2F..%2Flogin"}, nil},
		"":                  {{"GET /anything"}, nil},
	} {
		for i, request := range append(tc[0], tc[1]...) {
			method, target, _ := strings.Cut(request, " ")
			r := httptest.NewRequest(method, target, nil)
			before, path := *r, *r.URL
			matched, ok := newRoute(pattern).match(r)
			require.Equal(t, i < len(tc[0]), ok, "%s: %s", pattern, request)
			require.Equal(t, before.Pattern, r.Pattern)
			require.Equal(t, path, *r.URL)
			if ok {
				require.Equal(t, r.URL, matched.URL)
				require.Equal(t, r.Host, matched.Host)
				if strings.Contains(pattern, "{id}") {
					require.Equal(t, "7", matched.PathValue("id"))
				}
			}
		}
	}
	star := httptest.NewRequest("GET", "/", nil)
	star.RequestURI, star.URL.Path = "*", "*"
	matched, ok := newRoute("/").match(star)
	require.True(t, ok)
	require.Equal(t, "*", matched.RequestURI)
}

// A rule around a mux sees the wildcards of its own pattern. A rule around a
// handler sees those of the mux's pattern, even if its own pattern has none and
// the path is encoded. Otherwise a client could evade the rule with an encoded
// byte.
func TestRouteWildcards(t *testing.T) {
	byUser := ByPathValue(perKey, "user")
	for name, tc := range map[string]struct {
		outer, inner []Rule // around the mux, around the handler
		path         string
	}{
		"around the mux":     {[]Rule{{Pattern: "/users/{id}/", Key: ByPathValue(perKey, "id")}}, nil, "/users/7/a"},
		"around the handler": {nil, []Rule{{Key: byUser}}, "/users/7/a"},
		"path, encoded":      {nil, []Rule{{Pattern: "GET /users/", Key: byUser, Optional: true}}, "/users/7/a%2Fb"},
		"with host, encoded": {nil, []Rule{{Pattern: "127.0.0.1/users/", Key: byUser, Optional: true}}, "/users/7/a%2Fb"},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			mux := http.NewServeMux()
			values := func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte(r.Pattern + " " + r.PathValue("user") + r.PathValue("id")))
			}
			mux.Handle("/users/{user}/", Middleware(lim, nil, tc.inner...)(http.HandlerFunc(values)))
			url := serve(t, Middleware(lim, nil, tc.outer...)(mux)).URL
			require.Equal(t, "/users/{user}/ 7", get(t, url+tc.path).body, "the handler sees its own")
			require.Equal(t, "200 200 200 200 429", statuses(t, 5, url+tc.path))
			require.Equal(t, "200", statuses(t, 1, url+"/users/8/"))
			require.Equal(t, "404", statuses(t, 1, url+"/other"))
		})
	}
}

// route.quick agrees with the mux.
func FuzzRoute(f *testing.F) {
	patterns := []string{
		"/", "/login", "POST /login", "GET /api/", "/api/", "/{$}", "/users/{id}", "/users/{id}/", "/users/{rest...}",
		"/a/{x}/b",
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
