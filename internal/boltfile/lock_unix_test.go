//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package boltfile

import (
	"encoding/binary"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/format"
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

// Open checks the file that it opens: what another process did before it gave up the
// lock does not go unseen.
func TestOpenChecksWhenLocked(t *testing.T) {
	f, _ := openNew(t)
	for range 3 { // pages become free
		require.NoError(t, f.Update(func(*bolt.Tx) error { return nil }))
	}
	require.NoError(t, f.Close())
	other, err := os.OpenFile(f.Path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer other.Close()
	m, err := bboltpage.ReadMeta(other)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(other.Fd()), syscall.LOCK_SH))

	opened := make(chan error)
	go func() {
		_, err := Open(f.Path, Options{LockTimeout: time.Minute})
		opened <- err
	}()
	require.NoError(t, exec.Command("true").Run()) // takes longer than a look at the file
	root := binary.NativeEndian.AppendUint64(nil, m.Root)
	_, err = other.WriteAt(root, int64(m.Freelist)*bboltpage.Size+16) // the first free page
	require.NoError(t, err)
	unlock(other)
	require.ErrorIs(t, <-opened, format.ErrCorrupt)
}

// Open sleeps while it waits for the lock, for all of LockTimeout and no longer.
func TestOpenWaits(t *testing.T) {
	const timeout = 10*lockRetry + lockRetry/2
	for _, readOnly := range []bool{false, true} {
		f, _ := openNew(t)
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			_, err := Open(f.Path, Options{LockTimeout: timeout, ReadOnly: readOnly})
			require.ErrorIs(t, err, ErrLocked)
			require.Equal(t, timeout, time.Since(begun))

			begun = time.Now()
			time.AfterFunc(timeout/2, func() { f.Close() })
			g, err := Open(f.Path, Options{LockTimeout: timeout, ReadOnly: readOnly})
			require.NoError(t, err)
			require.Equal(t, 6*lockRetry, time.Since(begun))
			require.NoError(t, g.Close())
		})
	}
}
