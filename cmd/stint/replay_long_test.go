package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
