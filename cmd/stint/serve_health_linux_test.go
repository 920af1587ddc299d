package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stint-go/stint/internal/resp/resptest"
)

// A server that cannot save says so to STINT.HEALTH, and in INFO.
func TestServeUnhealthy(t *testing.T) {
	s := startServe(t, 1, nil, "--db", serveDB(t), "--durability", "synced")
	c := resptest.Dial(t, s.at[0])
	require.NoError(t, unix.Prlimit(s.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{}, nil))
	assert.Contains(t, c.Do(t, "CL.THROTTLE a 0 1 60"), "-Cell error: ")
	assert.Contains(t, c.Do(t, "STINT.HEALTH"), "-ERR ")
	assert.NotContains(t, c.Do(t, "INFO"), "save_errors:0")
}
