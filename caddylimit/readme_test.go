package caddylimit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
)

// blocks returns the fenced blocks of a document in a language.
func blocks(t *testing.T, path, language string) (blocks []string) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, part := range strings.Split(string(text), "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block+"\n")
	}
	return blocks
}

// Y8: the commands of the README, as printed, except the first one, which needs
// a published version. They go on after a restart.
func TestReadme(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	commands, want := blocks(t, "README.md", "sh")[0], blocks(t, "README.md", "text")[0]
	install, rest, _ := strings.Cut(commands, "\n")
	require.Equal(t, "xcaddy build --with github.com/stint-go/stint/caddylimit", install)
	require.Equal(t, 3, strings.Count(rest, "\n"))

	dir, home, address, admin := t.TempDir(), t.TempDir(), subprocess.FreeAddress(t), subprocess.FreeAddress(t)
	require.NoError(t, subprocess.Install(filepath.Join(dir, "caddy"), os.Args[0]))
	sh := func(script string) string {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+home,
			"XDG_CONFIG_HOME="+home, "CADDY_ADMIN="+admin)
		// A file, because Caddy in the background would keep a pipe open.
		out, err := os.Create(filepath.Join(dir, "out"))
		require.NoError(t, err)
		defer out.Close()
		cmd.Stdout = out
		require.NoError(t, cmd.Run())
		text, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		return regexp.MustCompile(`pid=\d+`).ReplaceAllString(string(text), "pid=4711")
	}
	defer sh("./caddy stop")
	rest = strings.ReplaceAll(rest, "localhost:8080", strings.Replace(address, "127.0.0.1", "localhost", 1))
	require.Equal(t, want, sh(rest))
	sh("./caddy stop")
	_, rest, _ = strings.Cut(rest, "\n") // the Caddyfile is there
	require.Equal(t, strings.ReplaceAll(want, "200", "429"), sh(rest))
}

// The Caddyfiles of the documents are adapted without an error.
func TestCaddyfiles(t *testing.T) {
	all := blocks(t, "../docs/caddy.md", "caddy")
	require.Len(t, all, 4)
	for _, text := range all {
		_, err := adapt(t, text)
		require.NoError(t, err, text)
	}
}
