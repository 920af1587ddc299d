package httplimit

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/rules"
)

// ExampleKeyFunc shows that each finds its id.
func TestKeyFuncs(t *testing.T) {
	either := rules.FirstOf(ByHeader(everyone, "X"), ByHeader(perKey, "X-Key"))
	for name, tc := range map[string]struct {
		f            KeyFunc
		field, value string
		want         string // "" is rules.ErrNoID
	}{
		"header":         {ByHeader(perKey, "x-key"), "X-Key", "k", "k"},
		"no header":      {ByHeader(perKey, "x-key"), "X", "k", ""},
		"cookie":         {ByCookie(perKey, "c"), "Cookie", "d=x; c=k", "k"},
		"no cookie":      {ByCookie(perKey, "c"), "Cookie", "d=x", ""},
		"two cookies":    {ByCookie(perKey, "c"), "Cookie", "c=x; c=k", ""},
		"no user":        {ByBasicAuthUser(perKey), "X", "k", ""},
		"no name":        {ByBasicAuthUser(perKey), "Authorization", "Basic OnNlY3JldA==", ""}, // ":secret"
		"no path value":  {ByPathValue(perKey, "id"), "X", "k", ""},
		"first of two":   {either, "X-Key", "k", "k"},
		"first of none":  {either, "Y", "k", ""},
		"first that has": {rules.FirstOf(ByIP(perKey), ByHeader(everyone, "X")), "X", "k", "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set(tc.field, tc.value)
			key, err := tc.f(r)
			if tc.want == "" {
				require.ErrorIs(t, err, rules.ErrNoID)
				return
			}
			require.NoError(t, err)
			require.Equal(t, perKey.Key(tc.want), key)
		})
	}
}
