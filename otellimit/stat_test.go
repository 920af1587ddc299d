package otellimit_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// TestStat compares the metrics with what `stint stat --json` says of the same
// file at the same moment.
func TestStat(t *testing.T) {
	dir := t.TempDir()
	command, file := filepath.Join(dir, "stint"), filepath.Join(dir, "quota.db")
	out, err := exec.Command("go", "-C", "..", "build", "-o", command, "./cmd/stint").CombinedOutput()
	require.NoError(t, err, string(out))

	lim, err := stint.Open(file, newLimits(t, names), &stint.Options{FlushInterval: time.Hour}) // the file stays as it is
	require.NoError(t, err)
	defer lim.Close()
	provider, reader := newMeter(t)
	register(t, provider, lim, nil)
	for i := range 300 {
		spend(t, lim, perAddress.Key("a"+strings.Repeat("x", i)), 1)
	}
	spend(t, lim, class.Key(""), 3)
	require.NoError(t, lim.Flush())

	before := collect(t, reader)
	copied, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file+".copy", copied, 0o600))
	text, err := exec.Command(command, "stat", "--json", "--db", file+".copy").Output()
	require.NoError(t, err)
	after := collect(t, reader)
	var stat struct {
		Bytes, Free, Journal float64
		FreeBytes            float64 `json:"free_bytes"`
		JournalBytes         float64 `json:"journal_bytes"`
		Journaled            float64
		Limits               []struct {
			Name string
			Live int64
		}
	}
	require.NoError(t, json.Unmarshal(text, &stat))
	live := int64(0)
	for _, l := range stat.Limits {
		live += l.Live
	}
	require.EqualValues(t, 301, live)
	for name, want := range map[string]float64{
		"stint.file.size": stat.Bytes, "stint.file.free": stat.FreeBytes, "stint.journal.size": stat.JournalBytes,
		"stint.journal.buckets": stat.Journaled, "stint.buckets.resident": float64(live), "stint.buckets.dirty": 0,
	} {
		assert.Equal(t, map[string]float64{"": want}, series(t, before[name]), name)
		assert.Equal(t, series(t, before[name]), series(t, after[name]), name)
	}
	assert.Positive(t, stat.Bytes)
	assert.Positive(t, stat.Journaled)
}
