//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package boltfile

import (
	"os/exec"
	"sync"
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
	end := make(chan struct{})
	defer close(end)
	starts.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				exec.Command("true").Run()
			}
		}
	})
	for range 1000 {
		f, err := Open(f.Path, Options{LockTimeout: time.Nanosecond})
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
}
