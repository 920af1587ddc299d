package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
)

// model is a replay written a second time, on buckets of rational numbers.
type model struct {
	limit     stint.Limit
	buckets   map[string]*modeltest.Tokens
	newest    int64
	malformed int
}

var modelLine = regexp.MustCompile(`^([^ ]+) [^ ]+ [^ ]+ \[([^\]]*)\] "(?:[^"\\]|\\.)*" [0-9]{3} (?:[0-9]+|-)(?: .*)?$`)

func newModel(t *testing.T, text string) *model {
	limit, err := stint.ParseLimit(text)
	require.NoError(t, err)
	return &model{limit: limit, buckets: map[string]*modeltest.Tokens{}}
}

// read returns what becomes of each request of a log.
func (m *model) read(log string) (allowed []bool) {
	for line := range strings.Lines(log) {
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
		if ip := net.ParseIP(id); ip != nil && ip.To4() == nil { // 64 bits are one client
			id = ip.Mask(net.CIDRMask(64, 128)).String() + "/64"
		} else if ip != nil {
			id = ip.String()
		}
		allowed = append(allowed, m.spend(id, at.UnixNano(), 1))
	}
	return allowed
}

func (m *model) spend(id string, at, cost int64) bool {
	m.newest = max(m.newest, at)
	if m.buckets[id] == nil {
		m.buckets[id] = modeltest.NewTokens(m.limit.Burst, m.limit.Count, int64(m.limit.Period))
	}
	return cost <= m.limit.Burst && m.buckets[id].Spend(m.newest, cost, 0) == 0
}

// replayed returns the command's decisions on its logs, and its summary.
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

func denials(allowed []bool) (n int) {
	for _, ok := range allowed {
		if !ok {
			n++
		}
	}
	return n
}

// A replay decides as the model does: in memory, with a file, and with several
// limits side by side.
func TestReplayAgainstModel(t *testing.T) {
	logs := map[string]string{"made up": madeUpLog(4_000)}
	shared, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "data", "access.log"))
	if err == nil {
		logs["shared"] = string(shared) // for developers and CI only
	}
	limits := []string{"20/1m", "7/1m burst 3", "7/1m burst 11", "60/1m burst 1", "1/24h"}
	for name, log := range logs {
		t.Run(name, func(t *testing.T) {
			path := write(t, "access.log", log)
			want := make([][]bool, len(limits))
			for i, text := range limits {
				m := newModel(t, text)
				want[i] = m.read(log)
				denied := denials(want[i])
				for _, db := range [][]string{nil, {"--db", filepath.Join(t.TempDir(), "replay.db")}} {
					got, out := replayed(t, append([]string{"--limit", text, path}, db...)...)
					require.Equal(t, want[i], got, text)
					assert.EqualValues(t, len(got), out["requests"])
					assert.EqualValues(t, len(got)-denied, out["allowed"])
					assert.EqualValues(t, denied, out["denied"])
					assert.EqualValues(t, m.malformed, out["malformed"])
					assert.EqualValues(t, len(m.buckets), out["ids"])
				}
			}
			got, out := replayed(t, append([]string{path}, "--try", strings.Join(limits, ","))...)
			require.Len(t, got, len(limits)*len(want[0]))
			for i, tried := range out["tried"].([]any) {
				for j, ok := range want[i] {
					if got[j*len(limits)+i] != ok {
						t.Fatalf("request %d at %s: %v", j+1, limits[i], !ok)
					}
				}
				assert.EqualValues(t, denials(want[i]), tried.(map[string]any)["denied"])
				assert.True(t, i == 0 || denials(want[i]) > 0, "a limit that denies nothing compares nothing")
			}
		})
	}
}

// makeUpLog writes a log with what real ones have: bursts, lines out of order,
// zones, spellings of one address, and malformed lines.
func makeUpLog(w io.Writer, lines int) {
	random := rand.New(rand.NewPCG(1, 2))
	hosts := []string{"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "2001:db8::1", "2001:DB8:0:0:0:0:0:1",
		"crawler.example", "Crawler.example", "10.0.0.256"}
	zones := []*time.Location{time.UTC, time.FixedZone("", 5*3600+1800), time.FixedZone("", -8*3600)}
	at := time.Date(2015, 12, 31, 23, 30, 0, 0, time.UTC)
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
		fmt.Fprintln(w, line)
	}
}

func madeUpLog(lines int) string {
	var b strings.Builder
	makeUpLog(&b, lines)
	return b.String()
}

// longLog makes up a gzipped log.
func longLog(t testing.TB, lines int) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "access.log.gz"))
	require.NoError(t, err)
	zipped, err := gzip.NewWriterLevel(file, gzip.BestSpeed)
	require.NoError(t, err)
	out := bufio.NewWriter(zipped)
	makeUpLog(out, lines)
	require.NoError(t, out.Flush())
	require.NoError(t, zipped.Close())
	require.NoError(t, file.Close())
	return file.Name()
}

// A replay allocates no memory for a line, only for ids and minutes.
func TestReplayMemory(t *testing.T) {
	if testlength.Race {
		t.Skip("the race detector makes package regexp allocate")
	}
	lines := 100_000
	if testlength.Long {
		lines = 5_000_000
	}
	allocated := func(lines int) uint64 {
		log := longLog(t, lines)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := runArgs(t, "replay", "--try", "10/1m,20/1m,60/1m", "--json", log)
		runtime.ReadMemStats(&after)
		out := object(t, r.stdout)
		assert.EqualValues(t, lines, out["requests"].(float64)+out["malformed"].(float64))
		assert.NotZero(t, out["tried"].([]any)[0].(map[string]any)["denied"])
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := allocated(10_000), allocated(lines)
	t.Logf("%d KiB for 10,000 lines, %d KiB for %d", few>>10, many>>10, lines)
	assert.LessOrEqual(t, many, few+16*uint64(lines))
}

// BenchmarkReplay is three limits tried on a gzipped log.
func BenchmarkReplay(b *testing.B) {
	const lines = 200_000
	log := longLog(b, lines)
	for b.Loop() {
		cmd := newReplay(nil)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"--try", "10/1m,20/1m,60/1m", log})
		require.NoError(b, cmd.Execute())
	}
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
