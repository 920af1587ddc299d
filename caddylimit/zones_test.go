package caddylimit_test

import (
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The placeholders are those of the zone that denied, also if another directive
// admitted the request before.
func TestPlaceholdersOfSeveralDirectives(t *testing.T) {
	s := newSite(t)
	s.start(s.caddyfile(`stint /api/* {
	zone outer {
		limit 100/10h
	}
}
stint {
	zone inner {
		limit 3/10h
	}
}
handle_errors 429 {
	respond "zone {http.stint.zone}: {http.stint.remaining} left, retry in {http.stint.retry_after}" 429
}
respond "{http.stint.zone} {http.stint.remaining}"`))
	for i := range 3 {
		res, body := s.get("/api/x")
		require.Equal(t, 200, res.StatusCode)
		require.Equal(t, fmt.Sprintf("inner %d", 2-i), body)
	}
	res, body := s.get("/api/x")
	require.Equal(t, 429, res.StatusCode)
	require.Regexp(t, `^zone inner: 0 left, retry in 1[12]\d\d\d$`, body)
	require.Contains(t, res.Header.Get("RateLimit-Policy"), `"inner"`)
}

// A zone whose limit changes keeps its buckets: of the larger limit they have
// what it has more, and they are not full.
func TestReloadChangesLimit(t *testing.T) {
	s := newSite(t)
	config := func(limit string) string {
		return s.caddyfile("stint {\n\tzone all {\n\t\tlimit " + limit + "\n\t}\n}\nrespond ok")
	}
	s.start(config("4/10h"))
	for range 4 {
		require.Equal(t, 200, s.status("/"))
	}
	for _, step := range []struct {
		limit string
		want  []int
	}{
		{"6/15h", []int{200, 200, 429}}, // the same rate
		{"2/5h", []int{429}},
		{"2/5h burst 1", []int{429}},
	} {
		status, says := s.reload(config(step.limit))
		require.Equal(t, 200, status, says)
		for _, want := range step.want {
			require.Equal(t, want, s.status("/"), step.limit)
		}
	}
}

// Two sites with one zone share its buckets. A zone that would have two meanings
// is a config error.
func TestTwoSites(t *testing.T) {
	s, other := newSite(t), newSite(t)
	zone := func(lines string) string { return "stint {\n\tzone all {\n\t\t" + lines + "\n\t}\n}\nrespond ok" }
	sites := func(lines string) string {
		return s.caddyfile(zone("limit 2/10h")) + other.url + " {\n" + zone(lines) + "\n}\n"
	}
	s.start(sites("limit 2/10h"))
	require.Equal(t, 200, s.status("/"))
	require.Equal(t, 200, other.status("/"))
	require.Equal(t, 429, s.status("/"))
	require.Equal(t, 429, other.status("/"))
	for lines, field := range map[string]string{
		"limit 3/10h":                           "limit",
		"limit 2/10h\n\t\tdurability leased":    "durability",
		"limit 2/10h\n\t\tipv6_prefix 48":       "ipv6_prefix",
		"limit 2/10h\n\t\toverride a unlimited": "override",
		"limit 2/10h\n\t\toverrides plans.yml":  "override files",
	} {
		status, says := s.reload(sites(lines))
		require.Equal(t, 400, status)
		require.Contains(t, says, "zone all has two meanings: its "+field+" differs")
	}
	status, says := s.reload(s.caddyfile("stint {\n\tzone all {\n\t\tlimit 2/10h\n\t}\n\tzone all {\n\t\tlimit 2/10h\n\t}\n}"))
	require.Equal(t, 400, status)
	require.Contains(t, says, "zone all stands twice in one place")
	require.Equal(t, 429, other.status("/"))
}

// The default key is the client that Caddy's trusted_proxies find. An IPv6 client
// is its network.
func TestTrustedProxies(t *testing.T) {
	s := newSite(t)
	const site = "stint {\n\tzone all {\n\t\tlimit 1/10h\n\t}\n}\nrespond ok"
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
		s.start(s.caddyfile(site, global))
		for _, step := range steps {
			require.Equal(t, step.want, s.status("/", "X-Forwarded-For", step.from), "%s%s", global, step.from)
		}
		s.end(syscall.SIGTERM)
	}
}

// What the other subdirectives of a zone do to requests.
func TestSubdirectives(t *testing.T) {
	s := newSite(t)
	zone := func(name, lines string) string {
		return fmt.Sprintf("stint /%s {\n\tzone %[1]s {\n\t\tkey {header.X-Api-Key}\n\t\tlimit 1/10h\n%s\n\t}\n}\n", name, lines)
	}
	s.start(s.caddyfile(zone("optional", "optional") + zone("shadow", "shadow") + zone("free", "override ada unlimited") +
		zone("refund", "refund_status 500") + zone("count", "count_status 500") + `error /refund 500
error /count 500
respond ok`))
	for _, step := range []struct {
		path, key string
		want      []int
	}{
		{"/optional", "", []int{200, 200}},
		{"/optional", "ada", []int{200, 429}},
		{"/shadow", "ada", []int{200, 200, 200}},
		{"/shadow", "", []int{200, 200}},
		{"/free", "", []int{400}},
		{"/free", "ada", []int{200, 200, 200}},
		{"/free", "bob", []int{200, 429}},
		{"/refund", "ada", []int{500, 500, 500}},
		{"/count", "ada", []int{500, 429}},
	} {
		for i, want := range step.want {
			require.Equal(t, want, s.status(step.path, "X-Api-Key", step.key), "%s %s, request %d", step.path, step.key, i+1)
		}
	}
	metrics := s.metrics()
	for _, line := range []string{
		`{result="allowed",zone="shadow"} 1`, `{result="denied in shadow",zone="shadow"} 2`, `{result="allowed",zone="optional"} 1`,
		`{result="denied",zone="optional"} 1`, `{result="error",zone=""} `,
		`{result="allowed",zone="count"} 1`, `{result="denied",zone="count"} 1`,
	} {
		require.Contains(t, metrics, "caddy_stint_requests_total"+line)
	}
}

// metrics returns the metrics of Caddy.
func (s *site) metrics() string {
	s.t.Helper()
	res, err := http.Get("http://" + s.admin + "/metrics")
	require.NoError(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return string(text)
}

// Two directives are independent: a request that both hold to one zone spends
// twice and is counted twice, and the placeholder says what is left, also if
// the zone bounds requests in flight.
func TestNestedInFlight(t *testing.T) {
	s := newSite(t)
	const zone = "stint {\n\tzone all {\n\t\tlimit 5/10h\n\t\tin_flight 3\n\t}\n}\n"
	s.start(s.caddyfile("route {\n" + zone + zone + "respond {http.stint.remaining}\n}"))
	_, left := s.get("/")
	require.Equal(t, "3", left)
	require.Contains(t, s.metrics(), `caddy_stint_requests_total{result="allowed",zone="all"} 2`)
}
