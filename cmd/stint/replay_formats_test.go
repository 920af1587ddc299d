package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A log of each server in testdata/logs is recognized, and read with the
// addresses of the clients. Each has three requests of one client, two of
// another, and one of a client with IPv6. stderr says how it is read.
func TestReplayFormats(t *testing.T) {
	for name, said := range map[string][]string{
		"alb":        {"read as --lines alb"},
		"caddy":      {"read as --lines json", "time is the field ts", "ip is the field request.client_ip"},
		"cloudfront": {"read as --lines w3c"},
		"envoy":      {"read as --lines envoy"},
		"haproxy":    {"read as --lines haproxy"},
		"iis":        {"read as --lines w3c"},
		"kubernetes": nil, // the lines are those of an access log
		"nginx-json": {"read as --lines json", "time is the field time_iso8601", "ip is the field remote_addr"},
		"s3":         {"read as --lines s3"},
		"traefik":    {"read as --lines json", "ip is the field ClientHost"},
	} {
		t.Run(name, func(t *testing.T) {
			log := "testdata/logs/" + name + ".log"
			r := runArgs(t, "replay", "--limit", "1/1h", "--json", log)
			require.Equal(t, 0, r.status, r.stderr)
			want := ""
			for _, line := range said {
				want += "stint: " + log + ": " + line + "\n"
			}
			assert.Equal(t, want, r.stderr)
			out := object(t, r.stdout)
			assert.EqualValues(t, 6, out["requests"])
			assert.EqualValues(t, 0, out["malformed"])
			assert.Nil(t, out["other"])
			assert.Equal(t, []any{
				map[string]any{"id": "192.0.2.1", "allowed": 1.0, "denied": 2.0},
				map[string]any{"id": "198.51.100.7", "allowed": 1.0, "denied": 1.0},
			}, out["top_denied"])
			assert.Equal(t, "2026-03-01T10:05:00Z", out["busiest_minute"].(map[string]any)["start"])
			if name == "alb" || name == "cloudfront" || name == "envoy" || name == "haproxy" || name == "iis" || name == "kubernetes" {
				r = runArgs(t, "replay", "--limit", "1/1h", "--by", "path", "--json", log)
				assert.Contains(t, r.stdout, `"id":"/api/items","allowed":1,"denied":5`)
			}
		})
	}
	text, err := os.ReadFile("testdata/logs/iis.log")
	require.NoError(t, err)
	_, rows, _ := strings.Cut(string(text), "taken\n")
	r := runWith(t, strings.NewReader(rows), "replay", "--limit", "1/1h", "--lines", "w3c", "-")
	assert.Contains(t, r.stderr, "-:1: skipped: has 15 columns, and the line #Fields: before it names 0")
	r = runWith(t, strings.NewReader("hello\n"+string(text)), "replay", "--limit", "1/1h", "-")
	assert.Equal(t, "stint: -:1: skipped: is of no format that is recognized: name one with --lines, or describe it there\n"+
		"stint: -: read as --lines w3c\n", r.stderr)
}
