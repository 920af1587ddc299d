//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package boltfile

import (
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that is being started has the files of its parent until it executes
// its program. The lock of Open's first look must not stay with it.
func TestOpenWhileStartingProcesses(t *testing.T) {
	f, _ := openNew(t)
	require.NoError(t, f.Close())
	var starts sync.WaitGroup
	defer starts.Wait()
	var end atomic.Bool
	defer end.Store(true)
	starts.Go(func() {
		for !end.Load() {
			exec.Command("true").Run()
		}
	})
	for range 1000 {
		f, err := Open(f.Path, Options{LockTimeout: time.Nanosecond})
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
}
