package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
