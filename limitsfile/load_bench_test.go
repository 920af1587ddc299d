package limitsfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// BenchmarkLabels collects the labels of 50,000 limits.
func BenchmarkLabels(b *testing.B) {
	var text bytes.Buffer
	for i := range 50_000 {
		fmt.Fprintf(&text, "label_%d: {burst: 1, count: 1, period: 1m}\n", i)
	}
	file := filepath.Join(b.TempDir(), "defaults.yml")
	require.NoError(b, os.WriteFile(file, text.Bytes(), 0o600))
	for b.Loop() {
		labels, err := Labels(file)
		require.NoError(b, err)
		require.Len(b, labels, 50_000)
	}
}

// BenchmarkLoad loads a million overrides, and reports the live heap of each.
func BenchmarkLoad(b *testing.B) {
	const ids = 1_000_000
	for kind, header := range map[string]string{
		"override": "- PerMinute:\n    burst: 20\n    count: 10\n    period: 1m\n    ids:\n",
		"group":    "- group: pro\n  limits: {PerMinute: {burst: 20, count: 10, period: 1m}}\n  ids:\n",
	} {
		b.Run(kind, func(b *testing.B) {
			text := bytes.NewBufferString(header)
			for i := range ids {
				fmt.Fprintf(text, "      - key_%016x\n", uint64(i)*0x9E3779B97F4A7C15)
			}
			dir := b.TempDir()
			defaults, overrides := filepath.Join(dir, "defaults.yml"), filepath.Join(dir, "overrides.yml")
			require.NoError(b, os.WriteFile(defaults, []byte("PerMinute: {burst: 1, count: 1, period: 1m}\n"), 0o600))
			require.NoError(b, os.WriteFile(overrides, text.Bytes(), 0o600))
			text = nil
			heap := func() uint64 {
				runtime.GC()
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			b.ReportAllocs()
			for b.Loop() {
				before := heap()
				limits, err := Load(stint.Names{1: {Label: "PerMinute"}}, defaults, overrides)
				require.NoError(b, err)
				b.ReportMetric(float64(heap()-before)/ids, "live-B/id")
				runtime.KeepAlive(limits)
			}
		})
	}
}
