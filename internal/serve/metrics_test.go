package serve

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The counts are served as net/http would.
func TestAnswer(t *testing.T) {
	ask := func(request string) (answered string, waited time.Duration) { // synctest, because of the deadline
		var got []byte
		synctest.Test(t, func(t *testing.T) {
			client, server := net.Pipe()
			go answer(server, func(w io.Writer) error {
				_, err := io.WriteString(w, "stint_healthy 1\n")
				return err
			})
			go io.WriteString(client, request)
			begun := time.Now()
			got, _ = io.ReadAll(client)
			waited = time.Since(begun)
			client.Close()
		})
		return string(got), waited
	}
	for request, status := range map[string]int{
		"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n": 200,
		"GET /metrics?name=x HTTP/1.0\r\n\r\n":                              200,
		"GET /metrics HTTP/1.1\n\n":                                         200,
		"GET http://a/metrics HTTP/1.1\r\nHost: a\r\n\r\n":                  200,
		"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n":                         200,
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n":                                 404,
		"GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n":                         404,
		"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n":                         405,
		"get /metrics HTTP/1.1\r\nHost: a\r\n\r\n":                          405,
		"GET metrics HTTP/1.1\r\nHost: a\r\n\r\n":                           400,
		"GET /metrics HTTP/2.0\r\nHost: a\r\n\r\n":                          400,
		"GET /metrics\r\n\r\n":                                              400,
		"\r\n":                                                              400,
		"":                                                                  0, // until the deadline
		"GET /metrics HTTP/1.1\r\nHost: a\r\n":                              0,
		"GET /metrics HTTP/1.1\r\n" + strings.Repeat("A: a\r\n", mostHead):  0,
		strings.Repeat("A", 2*mostHead):                                     0,
	} {
		got, waited := ask(request)
		if status == 0 {
			assert.Empty(t, got, request)
			assert.Equal(t, len(request) < mostHead, waited == metricsTimeout, request)
			continue
		}
		method, _, _ := strings.Cut(request, " ")
		res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), &http.Request{Method: method})
		require.NoError(t, err, "%q: %q", request, got)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		assert.Equal(t, status, res.StatusCode, request)
		assert.True(t, res.Close)
		_, err = http.ParseTime(res.Header.Get("Date"))
		assert.NoError(t, err)
		assert.Equal(t, status == 200 && method == "GET", string(body) == "stint_healthy 1\n", request)
		assert.Equal(t, len(body) == 0, strings.HasSuffix(got, "\r\n\r\n"), request)
		assert.Equal(t, status == 200, res.ContentLength == 16, request)
		assert.Equal(t, status == 405, res.Header.Get("Allow") == "GET, HEAD", request)
	}
}
