package docs_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
)

// TestRecordOfFormat makes the record that format.md shows in hexadecimal.
func TestRecordOfFormat(t *testing.T) {
	var shown strings.Builder
	for _, b := range readBlocks(t, "format.md") {
		if b.value != "TestRecordOfFormat" {
			continue
		}
		for line := range strings.Lines(b.text) {
			shown.WriteString(line[:48]) // the rest explains
		}
	}
	want, err := hex.DecodeString(strings.ReplaceAll(shown.String(), " ", ""))
	require.NoError(t, err)

	tat := time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC).UnixNano()
	entries := []format.Entry{{Name: 6, ID: "12345678", TAT: tat}, {Name: 1, ID: "10.0.0.2"}}
	records := 0
	for record := range format.Records(entries, 1<<20) {
		records++
		format.Seal(1, record)
		require.Equal(t, want, record)
	}
	require.Equal(t, 1, records)
}
