package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A page in a browser can send a request to a port of the same machine. Its body
// must not be read as commands.
func TestServeWeb(t *testing.T) {
	db := serveDB(t)
	s := startServe(t, 1, nil, "--db", db, "--listen", "127.0.0.1:0")
	const spent = "CL.THROTTLE user:1 2 3 86400"
	c := dialResp(t, s.at[0])
	require.Equal(t, "[0 3 2 -1 28800]", c.do(t, spent))
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\n\r\nDEL user:1\r\nQUIT\r\n",
		"GET / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\n\r\nDEL user:1\r\nQUIT\r\n",
		"put / HTTP/1.1\r\nhost: 127.0.0.1:6380\r\n\r\nDEL user:1\r\nQUIT\r\n",
	} {
		web := dialResp(t, s.at[0])
		_, err := io.WriteString(web, request)
		require.NoError(t, err)
		answer, err := io.ReadAll(web.in)
		require.NoError(t, err)
		assert.Regexp(t, `^(-ERR unknown command .*\r\n)?-ERR this is not an HTTP server\r\n$`, string(answer))
	}
	replies(t, "[0 3 1 -1 57600]", c.do(t, spent), spent)
}
