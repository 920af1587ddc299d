//go:build unix

package caddylimit_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Y2: a second Caddy, such as an upgrade that starts before the old one has
// stopped, shares the file. When one ends, the other one goes on with all
// buckets.
func TestTwoCaddys(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "kill -9": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, next := newSite(t), newSite(t)
			next.shared = old.file()
			zones := func(names ...string) (lines string) {
				for _, name := range names {
					lines += directive("/"+name, zone(name, "limit 4/10h", "durability leased"))
				}
				return lines + "respond ok"
			}
			old.start(old.caddyfile(zones("a", "b")))
			old.requires("/a", "", 200, 200)
			next.start(next.caddyfile(zones("c", "a")))
			next.requires("/a", "", 200)
			old.requires("/a", "", 200, 429)
			next.requires("/a", "", 429)

			// Each of them gets a zone that the other one has not seen.
			require.Equal(t, 200, next.status("/c"))
			old.reloads(old.caddyfile(zones("a", "b", "d")))
			require.Equal(t, 200, old.status("/d"))
			next.reloads(next.caddyfile(zones("e", "c", "d", "a")))
			next.requires("/d", "", 200, 200, 200, 429)
			require.Equal(t, 200, next.status("/e"))
			require.Equal(t, 200, next.status("/c"))

			old.end(signal)
			for zone, want := range map[string]int{"a": 429, "d": 429, "c": 200, "e": 200} {
				require.Equal(t, want, next.decided("/"+zone), zone)
			}
			old.start(old.caddyfile(zones("a", "b", "d", "c")))
			for zone, want := range map[string]int{"a": 429, "d": 429, "c": 200, "b": 200} {
				require.Equal(t, want, old.status("/"+zone), zone)
			}
			require.Equal(t, 429, next.status("/c"))
		})
	}
}

// If the file fails while Caddy runs, requests get 503 or, with fail_open, pass,
// and the log says so. Here the process that has the file is stopped.
func TestFileFails(t *testing.T) {
	owner, s := newSite(t), newSite(t)
	s.shared = owner.file()
	owner.start(owner.caddyfile(hundred))
	s.start(s.caddyfile(directive("/closed", zone("closed", "limit 1000000/10h")) +
		directive("/open", zone("open", "limit 1/10h"), "fail_open") + "respond ok"))
	s.requires("/closed", "", 200, 200)
	s.requires("/open", "", 200, 429)
	require.NoError(t, owner.cmd.Process.Signal(syscall.SIGSTOP))
	for s.status("/closed") == 200 { // until the signal arrives
	}
	require.Equal(t, 503, s.status("/closed"))
	require.Equal(t, 200, s.status("/open"))
	require.NoError(t, owner.cmd.Process.Signal(syscall.SIGCONT))
	require.Equal(t, 200, s.decided("/closed"))
	require.Equal(t, 429, s.status("/open"))
	s.end(syscall.SIGTERM)
	require.Contains(t, s.log.String(), "the processes that share the file changed")
}
