package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/liveheap"
	"github.com/stint-go/stint/internal/testlength"
)

// What import, export, verify and compact hold does not grow with the file.
func TestMaintenanceMemory(t *testing.T) {
	if testlength.Race {
		t.Skip("the race detector takes memory, too")
	}
	t.Setenv(runMain, "1") // verify asks bbolt in another process
	// For ten times the buckets: what bbolt knows of free pages. All buckets would take 14 MB.
	const more = 4 << 20
	few, many := maintained(t, 20_000), maintained(t, 200_000)
	for command, held := range many {
		t.Logf("%s: %d KiB for 20,000 buckets, %d KiB for 200,000", command, few[command]>>10, held>>10)
		assert.LessOrEqual(t, held, few[command]+more, command)
	}
}

// maintained returns how much memory each command held.
func maintained(t *testing.T, buckets int) map[string]int64 {
	dir := t.TempDir()
	path, keys, db := filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "keys"), filepath.Join(dir, "a.db")
	full := time.Now().Add(time.Hour).UnixNano()
	lines := func(path, first string, line func(i int) string) {
		file, err := os.Create(path)
		require.NoError(t, err)
		w := bufio.NewWriter(file)
		_, _ = w.WriteString(first)
		for i := range buckets {
			_, _ = w.WriteString(line(i))
		}
		require.NoError(t, w.Flush())
		require.NoError(t, file.Close())
	}
	lines(path, `{"stint":1,"names":{"6":"Orders"}}`+"\n", func(i int) string {
		return fmt.Sprintf(`{"name":"Orders","id":"id%08d","tat":%d}`+"\n", i, full+int64(i))
	})
	lines(keys, "", func(i int) string { // in no order
		return fmt.Sprintf("6:id%08d\t%d\n", i*7919%buckets, full+int64(i))
	})
	held := map[string]int64{}
	for _, c := range []struct{ args, stdin string }{
		{"import --db " + db + " " + path, ""}, {"import --db " + db + ".pipe -", path}, {"export --db " + db, ""},
		{"verify " + db, ""}, {"migrate redis --db " + db + ".redis 6=Orders", keys}, {"compact " + db, ""},
	} {
		var stdin io.Reader = strings.NewReader("")
		if c.stdin != "" {
			file, err := os.Open(c.stdin)
			require.NoError(t, err)
			defer file.Close()
			stdin = file
		}
		var stderr bytes.Buffer
		name := strings.ReplaceAll(c.args, dir, "")
		held[name] = holds(func() {
			status := run(t.Context(), strings.Fields(c.args), stdin, io.Discard, &stderr)
			require.Zero(t, status, "%s: %s", name, &stderr)
		})
	}
	for _, made := range []string{db, db + ".pipe", db + ".redis"} {
		require.Contains(t, succeeds(t, "verify", made), fmt.Sprintf("  %d buckets, 0 entries in the journal", buckets))
	}
	return held
}

// holds returns how much memory was reachable while do ran, except for a quarter of
// the time.
func holds(do func()) int64 {
	liveheap.Bytes()
	before, stop, stopped := liveheap.Bytes(), make(chan struct{}), make(chan struct{})
	var samples []int64
	go func() {
		defer close(stopped)
		pause := time.NewTicker(20 * time.Millisecond) // a collection takes a processor
		defer pause.Stop()
		for {
			samples = append(samples, liveheap.Bytes()-before)
			select {
			case <-stop:
				return
			case <-pause.C:
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	slices.Sort(samples)
	return samples[len(samples)*3/4]
}
