package serve

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/dbfile"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/resp/resptest"
)

// The transcripts of redis-cell are in testdata. The clock stands still.
func TestServeTranscript(t *testing.T) {
	clock := modeltest.NewClock()
	c := &serveConn{server: newTestServer(t, clock, nil), known: true}
	text, err := os.ReadFile("testdata/throttle.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		words, want, _ := strings.Cut(line, " => ")
		if wait, ok := strings.CutPrefix(words, "wait "); ok {
			d, err := time.ParseDuration(wait)
			require.NoError(t, err)
			clock.Advance(d)
			continue
		}
		var command [][]byte
		for _, word := range strings.Fields(words) {
			command = append(command, []byte(strings.Trim(word, `"`)))
		}
		c.do(command)
		c.decide()
		require.Equal(t, strings.ReplaceAll(want, `\r\n`, "\r\n"), string(c.out.Buf), words)
		c.out.Buf = c.out.Buf[:0]
	}
}

// A key whose page is damaged fails alone, also among other keys of a pipeline.
func TestServePipelineDamage(t *testing.T) {
	clock := modeltest.NewClock()
	path := filepath.Join(t.TempDir(), "limits.db")
	s := newTestServerAt(t, path, clock, nil)
	for i := range 1000 {
		require.Len(t, throttled(t, s, fmt.Sprintf("key:%04d", i)), 1)
	}
	require.NoError(t, s.limiter.Close())
	store, err := dbfile.Open(path, nil, nil)
	require.NoError(t, err)
	require.NoError(t, errors.Join(store.Compact(), store.Close()))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	damaged := 0
	for at := range len(content) / 4096 {
		if page := content[at*4096:][:4096]; bytes.Contains(page, []byte("key:0500")) {
			copy(page[8:], []byte{0xff, 0xff}) // what kind of page it is
			damaged++
		}
	}
	require.Positive(t, damaged)
	require.NoError(t, os.WriteFile(path, content, 0o600))

	owner := newTestServerAt(t, path, clock, nil)
	guest := newTestServerAt(t, path, clock, nil)
	require.Equal(t, hostlimit.RoleGuest, guest.limiter.Role())
	for i, s := range []*server{owner, guest} {
		sound := fmt.Sprintf("[0 10 %d -1 %d]", 8-i, 86400*(2+i))
		got := throttled(t, s, "key:0001", "key:0500", "key:0002", "key:0501", "key:0999")
		for _, at := range []int{0, 2, 4} {
			assert.Equal(t, sound, got[at], s.limiter.Role())
		}
		assert.Regexp(t, "^-Cell error: load 1:key:0500: .*corrupt", got[1], s.limiter.Role())
		assert.Regexp(t, "^-Cell error: load 1:key:0501: .*corrupt", got[3], s.limiter.Role())
	}
}

// A command that fails leaves those that came with it alone, and a key that comes
// twice is spent from twice.
func TestServeEachForItself(t *testing.T) {
	clock := modeltest.NewClock()
	path := filepath.Join(t.TempDir(), "limits.db")
	owner := newTestServerAt(t, path, clock, nil)
	guest := newTestServerAt(t, path, clock, nil)
	for i, s := range []*server{owner, guest} {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		assert.Equal(t, []string{
			"[0 10 9 -1 86400]",
			"-Cell error: burst is 10000000001, want a bucket that refills within 100 years",
			"[1 10 9 -1 86400]", // more than a full bucket has
			"[0 10 8 -1 172800]",
			"-Cell error: burst is 10000000001, want a bucket that refills within 100 years",
			"[0 10 9 -1 86400]",
		}, piped(t, s, a+" 9 1 86400", a+" 10000000000 1 1", a+" 9 1 86400 11", a+" 9 1 86400", b+" 10000000000 1 1",
			b+" 9 1 86400"), s.limiter.Role())
	}
}

// throttled sends a pipeline that spends one of ten tokens of each key, and
// returns the replies.
func throttled(t *testing.T, s *server, keys ...string) (replies []string) {
	t.Helper()
	for i, key := range keys {
		keys[i] = key + " 9 1 86400"
	}
	return piped(t, s, keys...)
}

// piped sends a pipeline of CL.THROTTLEs with these arguments, and returns the
// replies.
func piped(t *testing.T, s *server, args ...string) (replies []string) {
	t.Helper()
	c := &serveConn{server: s, known: true}
	for _, of := range args {
		c.do(bytes.Fields([]byte("CL.THROTTLE " + of)))
	}
	c.decide()
	in := resptest.Client{In: bufio.NewReader(bytes.NewReader(c.out.Buf))}
	for range args {
		replies = append(replies, in.Reply(t))
	}
	return replies
}

// The times of a Blocked limit have no end, and are -1. The longest hold is a
// number.
func TestServeBlocked(t *testing.T) {
	clock := modeltest.NewClock()
	clock.Set(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	names := stint.Names{
		2: {Label: "Blocked", Limit: stint.Blocked},
		3: {Label: "Free", Limit: stint.Unlimited},
		4: {Label: "Rate", Limit: stint.PerHour(2)},
	}
	path := filepath.Join(t.TempDir(), "limits.db")
	owner, guest := newTestServerAt(t, path, clock, names), newTestServerAt(t, path, clock, names)
	for _, s := range []*server{owner, guest} {
		c := &serveConn{server: s, known: true}
		for _, step := range [][2]string{
			{"STINT.SPEND Blocked a 1", "[1 0 0 -1 -1 Blocked]"},
			{"STINT.CHECK Blocked a 0", "[1 0 0 -1 -1 Blocked]"},
			{"STINT.SPEND Rate a 1 Blocked a 1", "[1 0 0 -1 -1 Blocked]"},
			{"STINT.REFUND Blocked a 1", "[0 0 0 -1 0 Blocked]"},
			{"STINT.SPEND Free a 1", "[0 0 9223372036854775807 -1 0 Free]"},
			{"STINT.HOLD Rate a 9223372036", "OK"},
			{"STINT.SPEND Rate a 1", "[1 2 2 4300386437 0 Rate]"}, // until the year 2162
		} {
			c.do(bytes.Fields([]byte(step[0])))
			reply := resptest.Client{In: bufio.NewReader(bytes.NewReader(c.out.Buf))}
			assert.Equal(t, step[1], reply.Reply(t), "%s, %v", step[0], s.limiter.Role())
			c.out.Buf = c.out.Buf[:0]
		}
	}
}

// A wait leaves nothing behind in the context that lives as long as the server.
func TestServeWaitForgets(t *testing.T) {
	s := newTestServer(t, modeltest.NewClock(), stint.Names{2: {Label: "Rate", Limit: stint.PerHour(2)}})
	ending := &countedContext{Context: t.Context(), done: make(chan struct{})}
	s.ending = ending
	ours, its := net.Pipe()
	defer ours.Close()
	c := newServeConn(s, its, 1)
	for _, seconds := range []string{"0", "5"} {
		c.do(bytes.Fields([]byte("STINT.WAIT Rate a 1 " + seconds)))
		assert.Equal(t, ":1\r\n", string(c.out.Buf), seconds)
		assert.Zero(t, ending.children.Load(), seconds)
		c.out.Buf = c.out.Buf[:0]
	}
}

// countedContext counts the contexts that depend on it.
type countedContext struct {
	context.Context
	done     chan struct{}
	children atomic.Int64
}

func (c *countedContext) Done() <-chan struct{} { return c.done }

// AfterFunc is what package context calls for each child, if there is one. The
// child calls stop when it ends.
func (c *countedContext) AfterFunc(func()) (stop func() bool) {
	c.children.Add(1)
	return func() bool {
		c.children.Add(-1)
		return true
	}
}

func TestSameAddress(t *testing.T) {
	assert.True(t, sameAddress("localhost:6390", "localhost:6390"))
	for _, two := range [][2]string{
		{"127.0.0.1:0", "localhost:0"}, {"127.0.0.1:6390", "127.0.0.1:6391"}, {"0.0.0.0:6390", "127.0.0.1:6391"},
		{"0.0.0.0:6390", "[::1]:6390"}, {"a", "b"}, {"a", "127.0.0.1:6390"},
	} {
		assert.False(t, sameAddress(two[0], two[1]), two)
	}
}
