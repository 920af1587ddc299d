package httplimit

import (
	"net/http"
	"net/http/httptest"
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
