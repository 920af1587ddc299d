package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/filecopy"
)

// A file that a command refuses keeps each of its bytes, also what a crash left in
// its log, whether the command only reads it or would have changed it.
func TestRefusedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "live.db")
	s, err := stint.OpenBolt(path, stint.Names{1: {Label: "A"}}, nil)
	require.NoError(t, err)
	for i := range 40 {
		key := stint.Name(1).Key(strings.Repeat("x", i+1))
		if i == 20 {
			key = stint.Unknown.Key("no key") // a hold on nothing
		}
		require.NoError(t, s.Save([]stint.Change{{Key: key, TAT: time.Now().Add(time.Hour).UnixNano()}}))
	}
	require.NoError(t, s.(stint.FileStore).SaveClock([]byte("no record")))
	content := filecopy.Read(t, path)
	require.NoError(t, s.Close())
	for _, args := range []string{
		"list", "show x", "stat", "names", "hold", "verify", "export", "check --limit 3/1m x", // read
		"allow --limit 3/1m x", "spend --limit 3/1m x", "run --limit 3/1m x -- true", "hold --for 1m --name A x", "reset --name A --all",
	} {
		t.Run(args, func(t *testing.T) {
			path := filecopy.New(t, content)
			words := strings.Fields(args)
			r := runArgs(t, append([]string{words[0], "--db", path}, words[1:]...)...)
			require.True(t, r.status == 3 || words[0] == "names", r) // which reads nothing that is damaged
			require.True(t, bytes.Equal(content, filecopy.Read(t, path)))
		})
	}
}
