package main

import (
	"fmt"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Logs as people have them are read without flags, or stderr says which flags read
// them.
func TestReplayLogs(t *testing.T) {
	logs, err := txtar.ParseFile("testdata/logs/people.txtar")
	require.NoError(t, err)
	paths := map[string]string{}
	for _, log := range logs.Files {
		paths[log.Name] = write(t, log.Name, string(log.Data))
	}
	type ids = map[string]int // requests
	for i, c := range []struct {
		log             string
		flags           []string
		requests, other int
		ids             ids
		said            string
	}{
		{"apache-port", nil, 4, 0, ids{"203.0.113.1": 2, "2001:db8::/64": 2}, ""},
		{"apache-error", nil, 2, 1, ids{"203.0.113.4": 2}, "read as --lines apache-error"},
		{"apache-error", []string{"--by", `/client ([^\]]+)/`}, 2, 1, ids{"203.0.113.4": 2}, ""},
		{"apache-error", []string{"--lines", `^\[(?P<time>[^\]]+)\].*client (?P<who>[^\]]+)`, "--by", "who"}, 2, 1, ids{"203.0.113.4": 2}, ""},
		{"traefik-list", nil, 2, 0, ids{"147.161.153.113": 2}, "of a list of addresses, such as 203.0.113.77,147.161.153.113, the last one is the client: --proxies"},
		{"traefik-list", []string{"--proxies", "147.161.0.0/16"}, 2, 0, ids{"203.0.113.77": 2}, ""},
		{"cloudfront-list", []string{"--by", "x-forwarded-for", "--proxies", "198.51.100.0/24", "--proxies", "2001:db8:9::/48"}, 2, 1, ids{"203.0.113.77": 2}, "read as --lines w3c"},
		{"envoy-list", []string{"--proxies", "198.51.100.0/24"}, 2, 0, ids{"203.0.113.77": 2}, ""},
		{"apache-list", []string{"--proxies", "198.51.100.0/24"}, 2, 0, ids{"203.0.113.77": 2}, ""},
		{"nginx-error", nil, 3, 2, ids{"203.0.113.210": 2, "203.0.113.211": 1}, "read as --lines nginx-error"},
		{"nginx-error", []string{"--time-format", "2006/01/02 15:04:05"}, 3, 2, ids{"203.0.113.210": 2, "203.0.113.211": 1}, ""},
		{"nginx-error", []string{"--by", "path"}, 3, 2, ids{"/api/items": 1, "/": 2}, ""},
		{"fail2ban", nil, 2, 2, ids{"203.0.113.9": 2}, "read as --lines fail2ban"},
		{"own", nil, 0, 3, nil, "no line has an id (--by ip) and a time (--time time): the lines have msg, when, who.addr; name others with --by"},
		{"own", []string{"--by", "who.addr"}, 0, 0, nil, "the lines have msg, when, who.addr; name others with --by"},
		{"own", []string{"--by", "who.addr", "--time", "when"}, 3, 0, ids{"203.0.113.9": 3}, ""},
		{"docker", nil, 2, 0, ids{"203.0.113.9": 2}, ""},
		{"logpush", nil, 2, 0, ids{"203.0.113.9": 1, "2001:db8::/64": 1}, "time is the field EdgeStartTimestamp"},
		{"journal", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines syslog"},
		{"journal", []string{"--by", "program"}, 2, 0, ids{"sshd": 2}, ""},
		{"golog", nil, 3, 1, ids{"203.0.113.9": 3}, "read as --lines text"},
		{"gin", nil, 2, 0, ids{"203.0.113.9": 1, "2001:db8::/64": 1}, "read as --lines text"},
		{"gitea", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"rfc5424", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines syslog"},
		{"shortfull", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines syslog"},
		{"vhost", nil, 2, 0, ids{"203.0.113.9": 2}, ""},
		{"vhost", []string{"--by", "user"}, 1, 1, ids{"frank": 1}, ""},
		{"logfmt", nil, 2, 0, ids{"203.0.113.9": 2}, "ip is the field remote"},

		{"haproxy-notices", nil, 2, 2, ids{"203.0.113.9": 2}, "read as --lines haproxy"},
		{"postgres", nil, 2, 1, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"squid", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"postfix", nil, 2, 1, ids{"203.0.113.9": 1, "2001:db8::/64": 1}, "read as --lines syslog"},
		{"exim", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"bind", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"kong", nil, 2, 0, ids{"203.0.113.9": 2}, "time is the field started_at"},
		{"apigee", nil, 0, 2, nil, "the lines have client.ip, client.received.start.timestamp, organization"},
		{"apigee", []string{"--by", "client.ip", "--time", "client.received.start.timestamp"}, 2, 0, ids{"203.0.113.9": 2}, ""},
		{"slog", nil, 2, 0, ids{"203.0.113.9": 1, "2001:db8::/64": 1}, "ip is the field remote_addr"},
		{"compose", nil, 2, 0, ids{"203.0.113.9": 2}, ""},
		{"cri", nil, 2, 0, ids{"203.0.113.9": 2}, "ip is the field remote_addr"},
		{"pino", nil, 2, 1, ids{"203.0.113.9": 2}, "ip is the field req.remoteAddress"},
		{"werkzeug", nil, 2, 0, ids{"203.0.113.9": 2}, "1: skipped: does not begin with HOST IDENT USER [TIME]"},
		{"tomcat", nil, 2, 0, ids{"203.0.113.9": 2}, ""},
		{"mysql", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"elb", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"istio", nil, 2, 0, ids{"203.0.113.9": 1, "2001:db8::/64": 1}, "ip is the field downstream_remote_address"},
		{"waf", nil, 1, 0, ids{"203.0.113.9": 1}, "ip is the field httpRequest.clientIp"},
		{"heroku", nil, 2, 0, ids{"203.0.113.9": 2}, "read as --lines text"},
		{"ufw", nil, 0, 2, nil, "the lines have host, ip, program, time; name others with --by, which may be a /REGEXP/"},
		{"ufw", []string{"--by", `/SRC=(\S+)/`}, 2, 0, ids{"203.0.113.9": 2}, ""},
		{"rails", nil, 0, 0, nil, "describe the lines with a regular expression, as in --lines '^(?P<time>"},
		{"rails", []string{"--lines", `^Started (?P<method>\S+) .* for (?P<ip>\S+) at (?P<time>.+)`}, 2, 2, ids{"203.0.113.9": 2}, ""},
		{"uvicorn", nil, 0, 0, nil, "no line could be read: none is recognized"},
	} {
		t.Run(fmt.Sprintf("%s %d", c.log, i), func(t *testing.T) {
			require.NotEmpty(t, paths[c.log])
			args := []string{"replay", "--limit", "1/1000h", "--json", "--top", "9"}
			r := runArgs(t, append(append(args, c.flags...), paths[c.log])...)
			status := 0
			if c.requests == 0 {
				status = 2
			}
			require.Equal(t, status, r.status, r.stderr)
			out := object(t, r.stdout)
			assert.EqualValues(t, c.requests, out["requests"], r.stderr)
			other, _ := out["other"].(float64)
			assert.EqualValues(t, c.other, other)
			assert.EqualValues(t, len(c.ids), out["ids"])
			for _, top := range out["top_denied"].([]any) {
				id := top.(map[string]any)
				assert.EqualValues(t, c.ids[id["id"].(string)], id["denied"].(float64)+1, id)
				delete(c.ids, id["id"].(string))
			}
			for id, n := range c.ids { // none denied
				assert.Equal(t, 1, n, id)
			}
			if c.said == "" {
				assert.NotContains(t, r.stderr, "skipped")
			}
			assert.Contains(t, r.stderr, c.said)
		})
	}
}
