package caddylimit_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The placeholders are those of the zone that denied, also if another directive
// admitted the request before.
func TestPlaceholdersOfSeveralDirectives(t *testing.T) {
	s := newSite(t)
	s.start(s.caddyfile(`stint /api/* {
	zone outer {
		limit 100/10h
	}
}
stint {
	zone inner {
		limit 3/10h
	}
}
handle_errors 429 {
	respond "zone {http.stint.zone}: {http.stint.remaining} left, retry in {http.stint.retry_after}" 429
}
respond "{http.stint.zone} {http.stint.remaining}"`))
	for i := range 3 {
		res, body := s.get("/api/x")
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, fmt.Sprintf("inner %d", 2-i), body)
	}
	res, body := s.get("/api/x")
	require.Equal(t, 429, res.StatusCode)
	require.Regexp(t, `^zone inner: 0 left, retry in 1[12]\d\d\d$`, body)
	require.Contains(t, res.Header.Get("RateLimit-Policy"), `"inner"`)
}
