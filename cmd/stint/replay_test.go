package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// smallLog is of two minutes. It has five requests of a, two of b, one of c,
// and two malformed lines.
const smallLog = `a - - [01/Jan/2020:00:00:00 +0000] "GET / HTTP/1.1" 200 1
a - - [01/Jan/2020:00:00:00 +0000] "GET / HTTP/1.1" 200 1
a - - [01/Jan/2020:00:00:01 +0000] "GET / HTTP/1.1" 200 1
nonsense
b - - [01/Jan/2020:00:01:05 +0000] "GET / HTTP/1.1" 200 1
a - - [01/Jan/2020:01:01:04 +0100] "GET / HTTP/1.1" 200 1
a - - [01/Jan/2020:00:01:06 +0000] "GET / HTTP/1.1" 200 1
b - - [01/Jan/2020:00:01:06 +0000] "GET / HTTP/1.1" 200 1

c - - [01/Jan/2020:00:01:06 +0000] "GET / HTTP/1.1" 200 1
`

const smallJSON = `{"requests":8,"allowed":4,"denied":4,"malformed":2,"ids":3,` +
	`"top_denied":[{"id":"a","allowed":2,"denied":3},{"id":"b","allowed":1,"denied":1}],` +
	`"busiest_minute":{"start":"2020-01-01T00:01:00Z","requests":5,"denied":2}}` + "\n"

func TestReplay(t *testing.T) {
	t.Run("output", func(t *testing.T) {
		log := write(t, "access.log", smallLog)
		skipped := func(log string) string {
			return fmt.Sprintf("stint: %s:4: skipped: %v\nstint: %[1]s:9: skipped: %[2]v\n", log,
				"does not begin with HOST IDENT USER [TIME]")
		}
		r := runArgs(t, "replay", "--limit", "1/1m", "--by", "ip", log)
		assert.Equal(t, result{0, `requests   8
allowed    4
denied     4
malformed  2
ids        3

busiest minute  2020-01-01 00:01 UTC: 5 requests, 2 denied

denied most
       3 of 5  a
       1 of 2  b
`, skipped(log)}, r)

		assert.Equal(t, result{0, smallJSON, skipped(log)}, runArgs(t, "replay", "--limit", "1/1m", "--json", log))
		assert.Equal(t, result{0, smallJSON, skipped("-")},
			runWith(t, strings.NewReader(smallLog), "replay", "--limit", "1/1m", "--json", "-"))

		var zipped bytes.Buffer
		zw := gzip.NewWriter(&zipped)
		_, _ = io.WriteString(zw, smallLog)
		require.NoError(t, zw.Close())
		gz := write(t, "access.log.1", zipped.String())
		assert.Equal(t, result{0, smallJSON, skipped(gz)}, runArgs(t, "replay", "--limit", "1/1m", "--json", gz))
		assert.Equal(t, result{0, smallJSON, skipped("-")},
			runWith(t, bytes.NewReader(zipped.Bytes()), "replay", "--limit", "1/1m", "--json", "-"))

		const none = `{"requests":0,"allowed":0,"denied":0,"malformed":0,"ids":0,"top_denied":[],"busiest_minute":null}`
		assert.Equal(t, result{0, none + "\n", ""},
			runArgs(t, "replay", "--limit", "1/1m", "--json", "-"))
	})
	t.Run("several limits side by side", func(t *testing.T) {
		log := write(t, "access.log", smallLog)
		assert.Equal(t, `requests   8
malformed  2
ids        3

busiest minute  2020-01-01 00:01 UTC: 5 requests

limit         denied  of all  ids  denied most
1/1m          4       50.0%   2    a (3 of 5), b (1 of 2)
5/1m          0       0.0%    0    nobody
1/1h burst 2  3       37.5%   1    a (3 of 5)
`, succeeds(t, "replay", "--try", "1/1m, 5/1m,1/1h burst 2", log))
		assert.Equal(t, `{"requests":8,"malformed":2,"ids":3,"tried":[`+
			`{"limit":"1/1m","allowed":4,"denied":4,"ids_denied":2,`+
			`"top_denied":[{"id":"a","allowed":2,"denied":3},{"id":"b","allowed":1,"denied":1}]},`+
			`{"limit":"5/1m","allowed":8,"denied":0,"ids_denied":0,"top_denied":[]}],`+
			`"busiest_minute":{"start":"2020-01-01T00:01:00Z","requests":5}}`+"\n",
			succeeds(t, "replay", "--try", "1/1m,5/1m", "--json", log))
	})
	t.Run("several limits at once", func(t *testing.T) {
		const log = `{"t":"2020-01-01T00:00:00Z","who":"a"}
{"t":"2020-01-01T00:00:00Z","who":"a"}
{"t":"2020-01-01T00:00:01.5Z","who":"a"}
{"t":"2020-01-01T00:00:01.999999999Z","who":"a"}
{"t":"2020-01-01T00:00:02.5Z","who":"a"}
{"level":"info"}
{"t":"2020-01-01T00:00:03.5Z","who":"a"}
`
		path := write(t, "app.log", log)
		want := []bool{true, false, true, false, true, false}
		lines := []string{"--lines", "json", "--time", "t", "--by", "who", path}
		got, out := replayed(t, append([]string{"--limit", "1/1s", "--and", "3/1h"}, lines...)...)
		assert.Equal(t, want, got)
		assert.Equal(t, map[string]any{"1/1s": 2.0, "3/1h": 1.0}, out["denied_by"])
		assert.EqualValues(t, 1, out["other"])

		limits := write(t, "limits.yml", "A: {burst: 1, count: 1, period: 1s}\nB: {burst: 3, count: 3, period: 1h}\n"+
			"C: {burst: 1, count: 1, period: 1h}\n")
		db := filepath.Join(t.TempDir(), "replay.db")
		got, out = replayed(t, append([]string{"--limits", limits, "--name", "A", "--and", "B", "--db", db}, lines...)...)
		assert.Equal(t, want, got)
		assert.Equal(t, map[string]any{"A": 2.0, "B": 1.0}, out["denied_by"])

		r := runArgs(t, append([]string{"replay", "--limit", "1/1s", "--and", "3/1h"}, lines...)...)
		assert.Equal(t, result{0, `requests   6
allowed    3
denied     3
malformed  0
other      1
ids        1

busiest minute  2020-01-01 00:00 UTC: 6 requests, 3 denied

denied by
       2  1/1s
       1  3/1h

denied most
       3 of 6  a
`, ""}, r)
	})
	t.Run("several logs", func(t *testing.T) {
		lines := strings.SplitAfter(smallLog, "\n")
		older := write(t, "access.log.1", strings.Join(lines[:5], ""))
		newer := write(t, "access.log", strings.Join(lines[5:], ""))
		assert.Equal(t, smallJSON, runArgs(t, "replay", "--limit", "1/1m", "--json", older, newer).stdout)

		future := write(t, "future.log", strings.ReplaceAll(smallLog, "2020", "2021"))
		r := runArgs(t, "replay", "--limit", "1/1m", future, older)
		assert.Equal(t, 0, r.status)
		assert.Contains(t, r.stderr, "stint: lines are up to 366d1h older than ones before them: give the oldest log first\n")
	})
	t.Run("keeps buckets", func(t *testing.T) {
		log := madeUpLog(4000)
		half := len(log)/2 + strings.IndexByte(log[len(log)/2:], '\n') + 1
		whole, first, second := write(t, "whole", log), write(t, "first", log[:half]), write(t, "second", log[half:])

		want, _ := replayed(t, "--limit", "20/1h", whole)
		db := filepath.Join(t.TempDir(), "replay.db")
		got, _ := replayed(t, "--limit", "20/1h", "--db", db, first)
		more, _ := replayed(t, "--limit", "20/1h", "--db", db, second)
		got = append(got, more...)
		require.Len(t, got, len(want))
		differ := 0
		for i := range want {
			if want[i] != got[i] {
				differ++
			}
		}
		assert.LessOrEqual(t, differ, 3, "the second replay does not know the newest line of the first")
		alone, _ := replayed(t, "--limit", "20/1h", second)
		assert.NotEqual(t, alone, more, "nothing was kept")
	})
	t.Run("overrides", func(t *testing.T) {
		defaults := write(t, "defaults.yml", "PerHour: {burst: 1, count: 1, period: 1h}\n"+
			"PerAddress: {burst: 1, count: 1, period: 1m}\n")
		overrides := write(t, "overrides.yml", "- PerAddress: {burst: 9, count: 9, period: 1m, ids: [a]}\n")
		log := write(t, "access.log", smallLog)
		db := filepath.Join(t.TempDir(), "replay.db") // its limits have other numbers
		require.Equal(t, 0, runArgs(t, "allow", "--db", db, "--limit", "1/1m", "--name", "other", "alice").status)
		for _, more := range [][]string{{}, {"--db", db}} {
			args := append([]string{"--limits", defaults, "--overrides", overrides, "--name", "PerAddress", log}, more...)
			_, out := replayed(t, args...)
			assert.EqualValues(t, 1, out["denied"], args)
		}
	})
	t.Run("the first malformed lines", func(t *testing.T) {
		log := write(t, "access.log", strings.Repeat("nonsense\n", 1000))
		r := fails(t, 2, ":5: skipped: ", "replay", "--limit", "1/1m", log)
		assert.Equal(t, 7, strings.Count(r.stderr, "\n"))
		assert.NotContains(t, r.stderr, ":6: skipped: ")
		assert.Contains(t, r.stdout, "malformed  1000\n")
	})
	t.Run("id too long", func(t *testing.T) {
		log := write(t, "access.log", strings.Repeat("x", 513)+strings.TrimPrefix(smallLog, "a"))
		_, out := replayed(t, "--limit", "1/1m", log)
		assert.EqualValues(t, 3, out["malformed"])
	})
	t.Run("interrupted in a file", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var stdout, stderr bytes.Buffer
		args := []string{"replay", "--limit", "1/1m", write(t, "access.log", smallLog)}
		status := run(ctx, args, strings.NewReader(""), &stdout, &stderr)
		assert.Equal(t, 130, status)
		assert.Equal(t, "stint: interrupted after 0 requests\n", stderr.String())
		assert.Empty(t, stdout.String())
	})
	t.Run("missing log", func(t *testing.T) {
		log, db := write(t, "access.log", smallLog), filepath.Join(t.TempDir(), "a.db")
		require.Equal(t, 2, runArgs(t, "replay", "--limit", "1/1m", "--db", db, log, "missing.log").status)
		assert.Equal(t, smallJSON, runArgs(t, "replay", "--limit", "1/1m", "--db", db, "--json", log).stdout)
	})
}

// A signal ends a replay that waits for input. The file has what it decided.
func TestReplayInterrupted(t *testing.T) {
	skipOnWindows(t, "a process cannot be sent a signal")
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		db := filepath.Join(t.TempDir(), "replay.db")
		cmd := process(t, "replay", "--limit", "1/1m", "--db", db, "-")
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		stderrPipe, err := cmd.StderrPipe()
		require.NoError(t, err)
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		require.NoError(t, cmd.Start())

		lines := strings.SplitAfter(smallLog, "\n")
		_, err = io.WriteString(stdin, strings.Join(lines[:4], ""))
		require.NoError(t, err)
		stderr := bufio.NewReader(stderrPipe)
		skipped, err := stderr.ReadString('\n') // line 4, so the lines before it are decided
		require.NoError(t, err)
		assert.Contains(t, skipped, "stint: -:4: skipped")
		require.NoError(t, cmd.Process.Signal(signal))
		rest, err := io.ReadAll(stderr)
		require.NoError(t, err)
		assert.Equal(t, "stint: interrupted after 3 requests\n", string(rest))
		_ = cmd.Wait()
		assert.Equal(t, 130, cmd.ProcessState.ExitCode())
		assert.Empty(t, stdout.String())

		got, _ := replayed(t, "--limit", "1/1m", "--db", db, write(t, "access.log", lines[2]))
		assert.Equal(t, []bool{false}, got, "what was spent before the signal is in the file")
	}
}

// Two ids that are not UTF-8 stay two.
func TestReadingInvalidUTF8(t *testing.T) {
	log := write(t, "a.log", `{"time":1400000000,"ip":"a`+"\xff\"}\n"+`{"time":1400000000,"ip":"a`+"\xfe\"}\n")
	r := runArgs(t, "replay", "--limit", "1/1h", "--lines", "json", "--json", log)
	assert.EqualValues(t, 2, object(t, r.stdout)["ids"])
}

// A log that is cut off gives the figures of its lines, and those of the other
// logs.
func TestReplayCutOff(t *testing.T) {
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(zw, strings.Repeat(accessLines("a"), 2000))
	require.NoError(t, zw.Flush())
	_, _ = io.WriteString(zw, strings.Repeat(accessLines("b"), 2000))
	flushed := zipped.Len()
	require.NoError(t, zw.Close())
	cut := write(t, "cut.gz", zipped.String()[:flushed])
	log := write(t, "access.log", accessLines("c", "c"))
	said := ": the compressed log ends too early: it may be cut off; the figures are of the lines before it\n"
	out := object(t, fails(t, 2, "stint: "+cut+said, "replay", "--limit", "1/1m", "--json", cut, log).stdout)
	assert.GreaterOrEqual(t, out["requests"], 2002.0)
	assert.LessOrEqual(t, out["requests"], 4002.0)
	assert.GreaterOrEqual(t, out["ids"], 2.0)
}

// loginLog has a login of one address in each second, with its status.
func loginLog(t *testing.T, statuses ...int) string {
	var b strings.Builder
	at := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, status := range statuses {
		fmt.Fprintf(&b, "10.0.0.1 - - [%s] \"POST /login HTTP/1.1\" %d 1\n",
			at.Format("02/Jan/2006:15:04:05 -0700"), status)
		at = at.Add(time.Second)
	}
	return write(t, "access.log", b.String())
}

// With --spend-if, failures spend, and each line is checked.
func TestReplaySpendIf(t *testing.T) {
	const failure = `/" 401 /`
	log := loginLog(t, 200, 401, 200, 200, 200, 401, 200, 401, 200)
	got, out := replayed(t, "--limit", "2/1h", "--spend-if", failure, log)
	assert.Equal(t, []bool{true, true, true, true, true, true, false, false, false}, got)
	assert.EqualValues(t, 9, out["requests"])
	assert.EqualValues(t, 6, out["checked"])
	assert.EqualValues(t, 3, out["denied"])

	got, _ = replayed(t, "--try", "1/1h,2/1h", "--spend-if", failure, loginLog(t, 401, 200, 401, 200))
	assert.Equal(t, []bool{true, true, false, true, false, true, false, false}, got)

	log = write(t, "auth.log", `Mar  1 09:00:01 h sshd[1]: Accepted password for a from 10.0.0.1 port 1
Mar  1 09:00:02 h sshd[1]: message repeated 2 times: [ Failed password for a from 10.0.0.1 port 1]
Mar  1 09:00:03 h sshd[1]: Accepted password for a from 10.0.0.1 port 1
`)
	got, _ = replayed(t, "--limit", "2/1h", "--lines", "syslog", "--spend-if", "/^Failed/", log)
	assert.Equal(t, []bool{true, true, true, false}, got)

	log = write(t, "costs.log", "1700000001 a 2 spend\n1700000002 a 2 look\n1700000003 a 2 spend\n1700000004 a 2 spend\n")
	_, out = replayed(t, "--limit", "5/1h", "--lines", `(?P<time>\d+) (?P<ip>\S+) (?P<cost>\d+)`, "--spend-if", "/spend/", log)
	assert.Equal(t, map[string]any{"asked": 6.0, "allowed": 4.0}, out["tokens"], "a look takes none")

	for _, value := range []string{"", "401", "/(/", "/401"} {
		fails(t, 2, "--spend-if", "replay", "--limit", "1/1h", "--spend-if", value, log)
	}
}

// --svg draws the requests, and those that each limit admits.
func TestReplaySVG(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.svg")
	log := longLog(t, 20_000)
	out := object(t, succeeds(t, "replay", "--try", "10/1m,20/1m", "--json", "--svg", file, log))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(svg, new(struct{ XMLName xml.Name })))
	assert.Contains(t, string(svg), fmt.Sprintf(">%v requests<", out["requests"]))
	for _, tried := range out["tried"].([]any) {
		tried := tried.(map[string]any)
		assert.Contains(t, string(svg), fmt.Sprintf(">%v  admitted<", tried["allowed"]))
		assert.Contains(t, string(svg), fmt.Sprintf(">%v<", tried["limit"]))
	}
	assert.True(t, strings.HasPrefix(succeeds(t, "replay", "--limit", "10/1m", "--svg", "-", log), "<svg "))
	assert.Equal(t, 0, runArgs(t, "replay", "--limit", "10/1m", "--svg", file, write(t, "empty.log", "")).status)
	assert.Equal(t, 2, runArgs(t, "replay", "--limit", "10/1m", "--svg", "-", "--json", log).status)
	assert.Equal(t, 2, runArgs(t, "replay", "--try", "1/1m,2/1m,3/1m,4/1m,5/1m,6/1m,7/1m", "--svg", file, log).status)
}

// A log of each server in testdata/logs is recognized, and read with the
// addresses of the clients. Each has three requests of one client, two of
// another, and one of a client with IPv6. stderr says how it is read.
func TestReplayFormats(t *testing.T) {
	for name, said := range map[string][]string{
		"alb":        {"read as --lines alb: AWS load balancers"},
		"caddy":      {"read as --lines json: an object in each line", "ip is the field request.client_ip", "time is the field ts"},
		"cloudfront": {"read as --lines w3c: IIS, CloudFront", "ip is the field c-ip"},
		"envoy": {"read as --lines envoy: Envoy's default", "of a list of addresses, such as 203.0.113.99, 192.0.2.1, " +
			"the last one is the client: --proxies names those that are none"},
		"haproxy":    {"read as --lines haproxy: HAProxy's httplog"},
		"iis":        {"read as --lines w3c: IIS, CloudFront", "ip is the field c-ip"},
		"kubernetes": nil, // the lines are those of an access log
		"nginx-json": {"read as --lines json: an object in each line", "ip is the field remote_addr", "time is the field time_iso8601"},
		"s3":         {"read as --lines s3: access logs of S3"},
		"traefik":    {"read as --lines json: an object in each line", "ip is the field ClientHost"},
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
	assert.Equal(t, "stint: -: read as --lines w3c: IIS, CloudFront\n"+
		"stint: -:1: skipped: has 1 columns, and the line #Fields: before it names 0\n"+
		"stint: -: ip is the field c-ip\n", r.stderr)
}
