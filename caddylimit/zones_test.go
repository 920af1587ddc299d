package caddylimit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The placeholders are those of the zone that denied, also if another directive
// admitted the request before.
func TestPlaceholdersOfSeveralDirectives(t *testing.T) {
	s := newSite(t)
	s.start(s.caddyfile(directive("/api/*", zone("outer", "limit 7/10h")) +
		directive("", zone("inner", "limit 3/10h")) + handleDenials + "\nrespond \"{http.stint.zone} {http.stint.remaining}\""))
	for i := range 3 {
		res, body := s.get("/api/x")
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, fmt.Sprintf("inner %d", 2-i), body)
	}
	res, body := s.get("/api/x")
	require.Equal(t, 429, res.StatusCode)
	require.Regexp(t, `^zone inner: 0 left, retry in 1[12]\d\d\d$`, body)
	require.Equal(t, `"outer";q=7;w=36000, "inner";q=3;w=36000`, res.Header.Get("RateLimit-Policy"))
}

// A zone whose limit changes keeps its buckets: of the larger limit they have
// what it has more, and they are not full.
func TestReloadChangesLimit(t *testing.T) {
	s := newSite(t)
	config := func(limit string) string { return s.caddyfile(allOf("limit " + limit)) }
	s.start(config("4/10h"))
	s.requires("/", "", 200, 200, 200, 200)
	for _, step := range []struct {
		limit string
		want  []int
	}{
		{"6/15h", []int{200, 200, 429}}, // the same rate
		{"2/5h", []int{429}},
		{"2/5h burst 1", []int{429}},
	} {
		s.reloads(config(step.limit))
		s.requires("/", "", step.want...)
	}
}

// Two sites with one zone share its buckets. A zone that would have two meanings
// is a config error.
func TestTwoSites(t *testing.T) {
	s, other := newSite(t), newSite(t)
	sites := func(lines string) string {
		return s.caddyfile(allOf("limit 2/10h")) + other.url + " {\n" + allOf(lines) + "\n}\n"
	}
	s.start(sites("limit 2/10h"))
	require.Equal(t, 200, s.status("/"))
	require.Equal(t, 200, other.status("/"))
	require.Equal(t, 429, s.status("/"))
	require.Equal(t, 429, other.status("/"))
	plans := filepath.Join(s.dir, "plans.yml")
	require.NoError(t, os.WriteFile(plans, []byte("[]"), 0o600))
	for lines, field := range map[string]string{
		"limit 3/10h":                       "limit",
		"limit 2/10h\ndurability leased":    "durability",
		"limit 2/10h\nipv4_prefix 24":       "ipv4_prefix",
		"limit 2/10h\nipv6_prefix 48":       "ipv6_prefix",
		"limit 2/10h\noverride a unlimited": "override",
		"limit 2/10h\noverrides " + plans:   "override files",
	} {
		status, says := s.reload(sites(lines))
		require.Equal(t, 400, status)
		require.Contains(t, says, "zone all has two meanings: its "+field+" differs")
	}
	status, says := s.reload(s.caddyfile(directive("", zone("all", "limit 2/10h"), zone("all", "limit 2/10h"))))
	require.Equal(t, 400, status)
	require.Contains(t, says, "zone all stands twice in one place")
	require.Equal(t, 429, other.status("/"))
}

// The default key is the client that Caddy's trusted_proxies find. An IPv6 client
// is its network.
func TestTrustedProxies(t *testing.T) {
	s := newSite(t)
	for global, steps := range map[string][]struct {
		from string
		want int
	}{
		"servers {\n\ttrusted_proxies static 127.0.0.1/8\n}": {
			{"203.0.113.7", 200}, {"203.0.113.7", 429}, {"::ffff:203.0.113.7", 429}, {"203.0.113.8", 200},
			{"2001:db8:0:1::1", 200}, {"2001:db8:0:1::2", 429}, {"2001:db8:0:2::1", 200},
		},
		"": {{"198.51.100.1", 200}, {"198.51.100.2", 429}}, // all of them are 127.0.0.1
	} {
		s.start(s.caddyfile(allOf("limit 1/10h"), global))
		for _, step := range steps {
			require.Equal(t, step.want, s.status("/", "X-Forwarded-For", step.from), "%s%s", global, step.from)
		}
		s.end(syscall.SIGTERM)
	}
}

// What the other subdirectives of a zone do to requests.
func TestSubdirectives(t *testing.T) {
	s := newSite(t)
	with := func(name, line string) string {
		return directive("/"+name, zone(name, "key {header.X-Api-Key}", "limit 1/10h", line))
	}
	s.start(s.caddyfile(with("optional", "optional") + with("shadow", "shadow") +
		with("free", "override ada unlimited") + with("refund", "refund_status 500") + with("count", "count_status 500") +
		"error /refund 500\nerror /count 500\nrespond ok"))
	s.requires("/optional", "", 200, 200)
	s.requires("/optional", "ada", 200, 429)
	s.requires("/shadow", "ada", 200, 200, 200)
	s.requires("/shadow", "", 200, 200)
	s.requires("/free", "", 400)
	s.requires("/free", "ada", 200, 200, 200)
	s.requires("/free", "bob", 200, 429)
	s.requires("/refund", "ada", 500, 500, 500)
	s.requires("/count", "ada", 500, 429)
	metrics := s.metrics()
	for _, line := range []string{
		`{result="allowed",zone="shadow"} 1`, `{result="denied in shadow",zone="shadow"} 2`, `{result="allowed",zone="optional"} 1`,
		`{result="denied",zone="optional"} 1`, `{result="error",zone=""} `,
		`{result="allowed",zone="count"} 1`, `{result="denied",zone="count"} 1`,
	} {
		require.Contains(t, metrics, "caddy_stint_requests_total"+line)
	}
}

// Two directives are independent: a request that both hold to one zone spends
// twice and is counted twice, and the placeholder says what is left, also if
// the zone bounds requests in flight.
func TestNestedInFlight(t *testing.T) {
	s := newSite(t)
	all := directive("", zone("all", "limit 5/10h", "in_flight 3"))
	s.start(s.caddyfile("route {\n" + all + all + "respond {http.stint.remaining}\n}"))
	_, left := s.get("/")
	require.Equal(t, "3", left)
	require.Contains(t, s.metrics(), `caddy_stint_requests_total{result="allowed",zone="all"} 2`)
}
