//go:build unix

package main

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/resp/resptest"
)

// --socket-group lets a group in: for root one that it is no member of, and for
// another user one of the user's groups.
func TestServeGroup(t *testing.T) {
	db := serveDB(t)
	name := "" // of another group than the one that a new file gets
	var want uint32
	groups, err := os.Getgroups()
	require.NoError(t, err)
	if os.Getuid() == 0 {
		for gid := 1; gid < 1000; gid++ {
			groups = append(groups, gid)
		}
	}
	for _, gid := range groups {
		if g, err := user.LookupGroupId(strconv.Itoa(gid)); err == nil && gid != os.Getegid() {
			name, want = g.Name, uint32(gid)
			break
		}
	}
	if name == "" {
		t.Skip("the user has one group")
	}
	at := db + ".s"
	s := startServe(t, 1, nil, "--db", db, "--listen", at, "--socket-group", name)
	info, err := os.Stat(at)
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o660, info.Mode())
	assert.Equal(t, want, info.Sys().(*syscall.Stat_t).Gid, name)
	assert.Equal(t, "PONG", resptest.Dial(t, at).Do(t, "PING"))
	assert.Equal(t, 0, s.end(t))
}
