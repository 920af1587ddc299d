// Package resptest is a client for tests, which speaks the protocol by hand.
package resptest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Client is a client that speaks the protocol by hand.
type Client struct {
	net.Conn
	In *bufio.Reader
}

// Dial connects to HOST:PORT or to the path of a socket.
func Dial(t *testing.T, address string) *Client {
	t.Helper()
	network := "tcp"
	if strings.ContainsAny(address, `/\`) {
		network = "unix"
	}
	conn, err := net.Dial(network, address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &Client{conn, bufio.NewReader(conn)}
}

// Encoded returns commands as a client sends them, one in each line.
func Encoded(commands string) string {
	var b strings.Builder
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		fmt.Fprintf(&b, "*%d\r\n", len(words))
		for _, word := range words {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	return b.String()
}

// Do sends commands in one write, and returns the replies, one in each line.
func (c *Client) Do(t *testing.T, commands string) string {
	t.Helper()
	_, err := io.WriteString(c, Encoded(commands))
	require.NoError(t, err)
	var replies []string
	for range strings.Count(strings.TrimSpace(commands), "\n") + 1 {
		replies = append(replies, c.Reply(t))
	}
	return strings.Join(replies, "\n")
}

// Reply reads one reply: "[0 16 15 -1 2]".
func (c *Client) Reply(t *testing.T) string {
	t.Helper()
	line, err := c.In.ReadString('\n')
	require.NoError(t, err)
	line = strings.TrimSuffix(line, "\r\n")
	n, _ := strconv.Atoi(line[1:])
	switch line[0] {
	case '+', ':', '_':
		return line[1:]
	case '$':
		if n < 0 {
			return "nil"
		}
		b := make([]byte, n+2)
		_, err := io.ReadFull(c.In, b)
		require.NoError(t, err)
		return string(b[:n])
	case '*', '%':
		if line[0] == '%' {
			n *= 2
		}
		parts := []string{}
		for range n {
			parts = append(parts, c.Reply(t))
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return line
}
