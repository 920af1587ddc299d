package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// verify prints the findings of fsck, and has an exit status for them.
func TestVerify(t *testing.T) {
	t.Setenv(runMain, "1") // for the process that verify starts
	path := filepath.Join(t.TempDir(), "stint.db")
	store, err := stint.OpenBolt(path, stint.Names{1: {Label: "Orders"}}, nil)
	require.NoError(t, err)
	var changes []stint.Change
	for i := range 200 {
		changes = append(changes, stint.Change{Key: stint.Name(1).Key(fmt.Sprint("account-", i)), TAT: 1<<60 + int64(i)})
	}
	require.NoError(t, store.Save(changes))
	require.NoError(t, store.Close())
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Regexp(t, `^sound  \S+  200 buckets, 0 entries in the journal\n$`, runArgs(t, "verify", path).stdout)
	at := bytes.LastIndex(sound, []byte("account-77")) + len("account-77")
	for i := range 8 {
		damaged := bytes.Clone(sound)
		damaged[at+i] ^= 1 << i
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		res := runArgs(t, "verify", path)
		require.Equal(t, statusFailed, res.status)
		require.Contains(t, res.stderr, "is not sound: 1 finding")
		require.Regexp(t, `^wrong  .*does not come to its sum`, res.stdout)
	}
}

// Only bbolt's own check finds some damage, and it may end its process.
func TestVerifyAsksBbolt(t *testing.T) {
	t.Setenv(runMain, "1")
	path := filepath.Join(t.TempDir(), "stint.db")
	require.NoError(t, runArgsErr(t, "allow", "--limit", "3/1h", "alice", "--db", path))
	require.NoError(t, askBbolt(t.Context(), path))
	garbage := write(t, "garbage.db", strings.Repeat("not a bbolt file\n", 1000))
	err := askBbolt(t.Context(), garbage)
	require.ErrorIs(t, err, stint.ErrCorrupt)
	require.ErrorContains(t, err, "bbolt's check ended with exit status")
}
