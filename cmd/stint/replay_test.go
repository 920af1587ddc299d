package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// model is a replay written once more, by what a token bucket is: a number of tokens, a fraction, that grows with time.
type model struct {
	burst, interval *big.Rat // tokens; nanoseconds a token takes
	buckets         map[string]*modelBucket
	newest          time.Time
	malformed       int
}

type modelBucket struct {
	tokens *big.Rat
	at     time.Time
}

var modelLine = regexp.MustCompile(`^([^ ]+) [^ ]+ [^ ]+ \[([^\]]*)\] "(?:[^"\\]|\\.)*" [0-9]{3} (?:[0-9]+|-)(?: .*)?$`)

// newModel returns the model of a limit. Of the period, rounding takes no more than a nanosecond from each token.
func newModel(burst, count int64, period time.Duration) *model {
	interval := new(big.Int).Add(big.NewInt(int64(period)), big.NewInt(count-1))
	return &model{
		burst:    new(big.Rat).SetInt64(burst),
		interval: new(big.Rat).SetInt(interval.Div(interval, big.NewInt(count))),
		buckets:  map[string]*modelBucket{},
	}
}

// read returns what becomes of each request of a log.
func (m *model) read(t *testing.T, log io.Reader) (allowed []bool) {
	in := bufio.NewReader(log)
	for {
		line, err := in.ReadString('\n')
		if line == "" {
			require.ErrorIs(t, err, io.EOF)
			return allowed
		}
		match := modelLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if match == nil {
			m.malformed++
			continue
		}
		at, err := time.Parse("02/Jan/2006:15:04:05 -0700", match[2])
		if err != nil {
			m.malformed++
			continue
		}
		id := match[1]
		if ip := net.ParseIP(id); ip != nil {
			id = ip.String()
		}
		allowed = append(allowed, m.spend(id, at))
	}
}

func (m *model) spend(id string, at time.Time) bool {
	if at.Before(m.newest) {
		at = m.newest
	}
	m.newest = at
	b := m.buckets[id]
	if b == nil {
		b = &modelBucket{tokens: new(big.Rat).Set(m.burst), at: at}
		m.buckets[id] = b
	}
	gained := new(big.Rat).SetInt64(int64(at.Sub(b.at)))
	b.tokens.Add(b.tokens, gained.Quo(gained, m.interval))
	b.at = at
	if b.tokens.Cmp(m.burst) > 0 {
		b.tokens.Set(m.burst)
	}
	one := big.NewRat(1, 1)
	if b.tokens.Cmp(one) < 0 {
		return false
	}
	b.tokens.Sub(b.tokens, one)
	return true
}

// replayed returns what the command did with each request of its logs, and its summary.
func replayed(t *testing.T, args ...string) (allowed []bool, out map[string]any) {
	t.Helper()
	cmd := newReplay(func(ok []bool) { allowed = append(allowed, ok...) })
	var stdout bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append(args, "--json"))
	require.NoError(t, cmd.Execute())
	return allowed, object(t, stdout.String())
}

func compareWithModel(t *testing.T, log string, burst, count int64, period time.Duration) {
	t.Helper()
	file, err := os.Open(log)
	require.NoError(t, err)
	defer file.Close()
	m := newModel(burst, count, period)
	want := m.read(t, file)

	limit := fmt.Sprintf("%d/%s", count, period)
	for _, db := range []string{"", filepath.Join(t.TempDir(), "replay.db")} {
		args := []string{"--limit", limit, "--burst", strconv.FormatInt(burst, 10), log}
		if db != "" {
			args = append(args, "--db", db)
		}
		got, out := replayed(t, args...)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i], got[i], "request %d of %d", i+1, len(want))
		}
		var denied int
		for _, ok := range want {
			if !ok {
				denied++
			}
		}
		assert.NotZero(t, denied, "a limit that denies nothing compares nothing")
		assert.EqualValues(t, len(want), out["requests"])
		assert.EqualValues(t, len(want)-denied, out["allowed"])
		assert.EqualValues(t, denied, out["denied"])
		assert.EqualValues(t, m.malformed, out["malformed"])
		assert.EqualValues(t, len(m.buckets), out["ids"])
	}
}

func TestReplayAgreesWithModel(t *testing.T) {
	t.Run("shared", func(t *testing.T) {
		log := filepath.Join("..", "..", "..", "shared", "data", "access.log")
		if _, err := os.Stat(log); err != nil {
			t.Skip("for developers and CI only: ", err)
		}
		compareWithModel(t, log, 20, 20, time.Minute)
		compareWithModel(t, log, 3, 7, time.Minute)
		compareWithModel(t, log, 1, 1, 24*time.Hour)
	})
	t.Run("made up", func(t *testing.T) {
		log := write(t, "access.log", madeUpLog(20_000))
		compareWithModel(t, log, 11, 7, time.Minute)
		compareWithModel(t, log, 1, 60, time.Minute)
	})
}

// TestReplayTriedAgreesWithModels: of each limit that is tried, what a model of its own decides.
func TestReplayTriedAgreesWithModels(t *testing.T) {
	logs := []string{write(t, "access.log", madeUpLog(5000))}
	if shared := filepath.Join("..", "..", "..", "shared", "data", "access.log"); !missing(shared) {
		logs = append(logs, shared)
	}
	tried := []struct {
		limit        string
		burst, count int64
		period       time.Duration
	}{{"10/1m", 10, 10, time.Minute}, {"7/1m burst 3", 3, 7, time.Minute}, {"60/1m", 60, 60, time.Minute}, {"1/1d", 1, 1, 24 * time.Hour}}
	for _, log := range logs {
		args, want := []string{log}, make([][]bool, len(tried))
		for i, l := range tried {
			file, err := os.Open(log)
			require.NoError(t, err)
			want[i] = newModel(l.burst, l.count, l.period).read(t, file)
			require.NoError(t, file.Close())
			args = append(args, "--try", l.limit)
		}
		got, out := replayed(t, args...)
		require.Len(t, got, len(tried)*len(want[0]))
		for i, ok := range got {
			require.Equal(t, want[i%len(tried)][i/len(tried)], ok, "request %d at %s", i/len(tried)+1, tried[i%len(tried)].limit)
		}
		for i, l := range out["tried"].([]any) {
			denied := len(slices.DeleteFunc(want[i], func(ok bool) bool { return ok }))
			assert.EqualValues(t, denied, l.(map[string]any)["denied"])
		}
	}
}

// TestReplayOfSeveralLimits: all have to admit, and what one denies costs the others nothing.
func TestReplayOfSeveralLimits(t *testing.T) {
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

	limits := write(t, "limits.yml", "A: {burst: 1, count: 1, period: 1s}\nB: {burst: 3, count: 3, period: 1h}\nC: {burst: 1, count: 1, period: 1h}\n")
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
}

func TestReplayTriedOutput(t *testing.T) {
	log := write(t, "access.log", smallLog)
	r := runArgs(t, "replay", "--try", "1/1m, 5/1m,1/1h burst 2", log)
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Equal(t, `requests   8
malformed  2
ids        3

busiest minute  2020-01-01 00:01 UTC: 5 requests

limit         denied  of all  ids  denied most
1/1m          4       50.0%   2    a (3 of 5), b (1 of 2)
5/1m          0       0.0%    0    nobody
1/1h burst 2  3       37.5%   1    a (3 of 5)
`, r.stdout)
	r = runArgs(t, "replay", "--try", "1/1m,5/1m", "--json", log)
	assert.Equal(t, `{"requests":8,"malformed":2,"ids":3,"tried":[`+
		`{"limit":"1/1m","allowed":4,"denied":4,"ids_denied":2,"top_denied":[{"id":"a","allowed":2,"denied":3},{"id":"b","allowed":1,"denied":1}]},`+
		`{"limit":"5/1m","allowed":8,"denied":0,"ids_denied":0,"top_denied":[]}],`+
		`"busiest_minute":{"start":"2020-01-01T00:01:00Z","requests":5}}`+"\n", r.stdout)
	for args, want := range map[string]string{
		"--try 1/1m --limit 1/1m": "--try and --limit exclude each other", "--try 1/1m --db x": "--try and --db exclude each other",
		"--try 1/1m,1/60s": "given twice", "--try=": "no limit in --try", "--try 1": `"1"`, "--limit 1/1m --and x": `"x"`,
	} {
		r := runArgs(t, append(strings.Fields("replay "+args), log)...)
		assert.Equal(t, 2, r.status)
		assert.Contains(t, r.stderr, want)
	}
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return err != nil
}

// gzipLines is how long the log of TestReplayOfManyLines is: -lines 5000000 takes half a minute.
var gzipLines = flag.Int("lines", 200_000, "of the log of TestReplayOfManyLines")

// manyLines writes a gzipped log of n lines: the shared one if it is there, or a made-up one, again and again, each time later.
func manyLines(t testing.TB, n int) string {
	t.Helper()
	log := madeUpLog(10_000)
	if shared, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "data", "access.log")); err == nil {
		log = string(shared)
	}
	stamp := regexp.MustCompile(`\d\d/[A-Z][a-z]{2}/\d{4}`)
	days := map[string]int{}
	path := filepath.Join(t.TempDir(), "access.log.gz")
	file, err := os.Create(path)
	require.NoError(t, err)
	zw, err := gzip.NewWriterLevel(file, gzip.BestSpeed)
	require.NoError(t, err)
	out := bufio.NewWriter(zw)
	for day := 0; n > 0; day += 30 {
		for line := range strings.Lines(log) {
			if n--; n < 0 {
				break
			}
			if at := stamp.FindStringIndex(line); at != nil {
				from := line[at[0]:at[1]]
				if _, ok := days[from]; !ok {
					when, err := time.Parse("02/Jan/2006", from)
					require.NoError(t, err)
					days[from] = int(when.Unix() / 86400)
				}
				line = line[:at[0]] + time.Unix(int64(days[from]+day)*86400, 0).UTC().Format("02/Jan/2006") + line[at[1]:]
			}
			_, err := out.WriteString(line)
			require.NoError(t, err)
		}
	}
	require.NoError(t, out.Flush())
	require.NoError(t, zw.Close())
	require.NoError(t, file.Close())
	return path
}

// TestReplayOfManyLines: the memory that a replay takes does not go by the length of the log.
func TestReplayOfManyLines(t *testing.T) {
	if testing.Short() {
		t.Skip("reads a long log")
	}
	replayOf := func(lines int) (peak int64) {
		cmd := process(t, "replay", "--try", "10/1m,20/1m,60/1m", "--json", manyLines(t, lines))
		var stdout bytes.Buffer
		cmd.Stdout = &stdout
		require.NoError(t, cmd.Run())
		out := object(t, stdout.String())
		assert.EqualValues(t, lines, out["requests"].(float64)+out["malformed"].(float64))
		assert.NotZero(t, out["tried"].([]any)[0].(map[string]any)["denied"])
		return peakMemory(cmd.ProcessState)
	}
	few, many := replayOf(10_000), replayOf(*gzipLines)
	t.Logf("%d MiB for 10,000 lines, %d MiB for %d", few>>20, many>>20, *gzipLines)
	assert.LessOrEqual(t, many, 2*few)
}

// madeUpLog returns a log with what real ones have: bursts, lines out of order, zones, spellings of one address, lines
// that are none.
func madeUpLog(lines int) string {
	random := rand.New(rand.NewPCG(1, 2))
	hosts := []string{
		"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "2001:db8::1", "2001:DB8:0:0:0:0:0:1", "crawler.example", "Crawler.example", "10.0.0.256",
	}
	zones := []*time.Location{time.UTC, time.FixedZone("", 5*3600+1800), time.FixedZone("", -8*3600)}
	at := time.Date(2015, 12, 31, 23, 30, 0, 0, time.UTC)
	var b strings.Builder
	for range lines {
		if random.IntN(3) == 0 {
			at = at.Add(time.Duration(random.IntN(4)) * time.Second)
		}
		if random.IntN(500) == 0 {
			at = at.Add(time.Duration(random.IntN(600)) * time.Second)
		}
		stamp := at.Add(-time.Duration(max(0, random.IntN(60)-50)) * time.Second).In(zones[random.IntN(len(zones))])
		line := fmt.Sprintf(`%s - - [%s] "GET /\"%d HTTP/1.1" 200 %d "-" "agent"`, hosts[random.IntN(len(hosts))],
			stamp.Format("02/Jan/2006:15:04:05 -0700"), random.IntN(100), random.IntN(1e6))
		if random.IntN(100) == 0 {
			line = line[:random.IntN(len(line)-len(` "-" "agent"`)-8)]
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// smallLog is of two minutes: five requests of a, two of b, one of c, and two lines that are none.
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

func TestReplayOutput(t *testing.T) {
	log := write(t, "access.log", smallLog)
	skipped := func(log string) string {
		return "stint: " + log + ":4: skipped: " + errNoFields.Error() + "\nstint: " + log + ":9: skipped: " + errNoFields.Error() + "\n"
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

	cut := write(t, "cut.gz", zipped.String()[:zipped.Len()-3])
	r = runArgs(t, "replay", "--limit", "1/1m", cut)
	assert.Equal(t, 2, r.status)
	assert.Empty(t, r.stdout)
	assert.Contains(t, r.stderr, "stint: "+cut+": unexpected EOF\n")

	assert.Equal(t, result{0, `{"requests":0,"allowed":0,"denied":0,"malformed":0,"ids":0,"top_denied":[],"busiest_minute":null}` + "\n", ""},
		runArgs(t, "replay", "--limit", "1/1m", "--json", "-"))
}

func TestReplayOfSeveralLogs(t *testing.T) {
	lines := strings.SplitAfter(smallLog, "\n")
	older, newer := write(t, "access.log.1", strings.Join(lines[:5], "")), write(t, "access.log", strings.Join(lines[5:], ""))
	assert.Equal(t, smallJSON, runArgs(t, "replay", "--limit", "1/1m", "--json", older, newer).stdout)

	future := write(t, "future.log", strings.ReplaceAll(smallLog, "2020", "2021"))
	r := runArgs(t, "replay", "--limit", "1/1m", future, older)
	assert.Equal(t, 0, r.status)
	assert.Contains(t, r.stderr, "stint: lines are up to 366d1h older than ones before them: give the oldest log first\n")
}

// TestReplayKeepsBuckets: two replays on one file are the replay of both.
func TestReplayKeepsBuckets(t *testing.T) {
	log := madeUpLog(4000)
	half := len(log)/2 + strings.IndexByte(log[len(log)/2:], '\n') + 1
	whole, first, second := write(t, "whole", log), write(t, "first", log[:half]), write(t, "second", log[half:])

	want, _ := replayed(t, "--limit", "20/1h", whole)
	db := filepath.Join(t.TempDir(), "replay.db")
	got, _ := replayed(t, "--limit", "20/1h", "--db", db, first)
	more, _ := replayed(t, "--limit", "20/1h", "--db", db, second)
	got = append(got, more...)
	// The second replay does not know how late the first had become: it may be a little late in its first lines.
	require.Equal(t, len(want), len(got))
	differ := 0
	for i := range want {
		if want[i] != got[i] {
			differ++
		}
	}
	assert.LessOrEqual(t, differ, 3)
	alone, _ := replayed(t, "--limit", "20/1h", second)
	assert.NotEqual(t, alone, more, "nothing was kept")
}

func TestReplayWithOverrides(t *testing.T) {
	defaults := write(t, "defaults.yml", "PerHour: {burst: 1, count: 1, period: 1h}\nPerAddress: {burst: 1, count: 1, period: 1m}\n")
	overrides := write(t, "overrides.yml", "- PerAddress: {burst: 9, count: 9, period: 1m, ids: [a]}\n")
	log := write(t, "access.log", smallLog)
	db := filepath.Join(t.TempDir(), "replay.db") // in which the limits have other numbers than in the files
	require.Equal(t, 0, runArgs(t, "allow", "--db", db, "--limit", "1/1m", "--name", "other", "alice").status)
	for _, more := range [][]string{{}, {"--db", db}} {
		args := append([]string{"--limits", defaults, "--overrides", overrides, "--name", "PerAddress", log}, more...)
		_, out := replayed(t, args...)
		assert.EqualValues(t, 1, out["denied"], args)
	}
}

func TestReplayReportsTheFirstMalformedLines(t *testing.T) {
	log := write(t, "access.log", strings.Repeat("nonsense\n", 1000))
	r := runArgs(t, "replay", "--limit", "1/1m", log)
	assert.Equal(t, 2, r.status)
	assert.Equal(t, 7, strings.Count(r.stderr, "\n"))
	assert.Contains(t, r.stderr, ":5: skipped: ")
	assert.NotContains(t, r.stderr, ":6: skipped: ")
	assert.Contains(t, r.stdout, "malformed  1000\n")
}

func TestReplayIDTooLong(t *testing.T) {
	log := write(t, "access.log", strings.Repeat("x", 513)+strings.TrimPrefix(smallLog, "a"))
	_, out := replayed(t, "--limit", "1/1m", log)
	assert.EqualValues(t, 3, out["malformed"])
}

// TestReplayInterrupted: a signal ends a replay that waits for input, and what it decided is in the file.
func TestReplayInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot be sent a signal")
	}
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
		skipped, err := stderr.ReadString('\n') // of line 4: those before it are decided
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

func TestReplayInterruptedInAFile(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, []string{"replay", "--limit", "1/1m", write(t, "access.log", smallLog)}, strings.NewReader(""), &stdout, &stderr)
	assert.Equal(t, 130, status)
	assert.Equal(t, "stint: interrupted after 0 requests\n", stderr.String())
	assert.Empty(t, stdout.String())
}

func TestSummary(t *testing.T) {
	r := &replay{byID: map[string]*tally{}, byMinute: map[int64]*counts{}, columns: make([]column, 1)}
	for i := range 20 {
		r.byID[fmt.Sprintf("id%02d", i)] = &tally{columns: []counts{{allowed: 1, denied: int64(i / 2)}}}
	}
	s := r.summary()
	assert.Len(t, s.TopDenied, 10)
	for i, want := range []idSummary{{idJSON{"id18", false}, 1, 9, "id18"}, {idJSON{"id19", false}, 1, 9, "id19"}, {idJSON{"id16", false}, 1, 8, "id16"}} {
		assert.Equal(t, want, s.TopDenied[i])
	}

	for minute := range int64(50) {
		r.byMinute[minute] = &counts{allowed: minute / 40}
	}
	assert.Equal(t, &minuteSummary{time.Unix(40*60, 0).UTC(), 1, new(int64)}, r.summary().BusiestMinute, "the first of them")
	assert.False(t, slices.ContainsFunc(s.TopDenied, func(i idSummary) bool { return i.Denied == 0 }))
}

// BenchmarkReplayGzip is of three limits tried on a gzipped log.
func BenchmarkReplayGzip(b *testing.B) {
	const lines = 200_000
	log := manyLines(b, lines)
	for b.Loop() {
		cmd := newReplay(nil)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"--try", "10/1m,20/1m,60/1m", log})
		require.NoError(b, cmd.Execute())
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}

func BenchmarkReplay(b *testing.B) {
	log := filepath.Join(b.TempDir(), "access.log")
	const lines = 100_000
	require.NoError(b, os.WriteFile(log, []byte(madeUpLog(lines)), 0o600))
	for b.Loop() {
		cmd := newReplay(nil)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"--limit", "20/1m", log})
		require.NoError(b, cmd.Execute())
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}

// TestReadingAllocatesNothing: of an access log, line for line.
func TestReadingAllocatesNothing(t *testing.T) {
	line := []byte(`10.0.0.1 - alice [01/Jan/2020:00:00:00 +0000] "GET /a?b HTTP/1.1" 200 1`)
	for _, by := range []string{"ip", "user", "method", "path"} {
		read, err := (&lineFlags{format: "access", by: by}).reading()
		require.NoError(t, err)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if _, _, err := read(line); err != nil {
				t.Error(err)
			}
		}), by)
	}
}

// TestReplayOfAMissingLog: nothing is spent of the file for the logs before it, or the next try would spend it again.
func TestReplayOfAMissingLog(t *testing.T) {
	log, db := write(t, "access.log", smallLog), filepath.Join(t.TempDir(), "a.db")
	require.Equal(t, 2, runArgs(t, "replay", "--limit", "1/1m", "--db", db, log, "missing.log").status)
	assert.Equal(t, smallJSON, runArgs(t, "replay", "--limit", "1/1m", "--db", db, "--json", log).stdout)
}
