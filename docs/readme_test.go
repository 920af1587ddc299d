package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
	"github.com/stint-go/stint/limitsfile"
)

// blocksRunBy returns the blocks of a document that a test runs.
func blocksRunBy(t *testing.T, path, test string) (blocks []string) {
	for _, b := range readBlocks(t, path) {
		if b.mark == "run by" && b.value == test {
			blocks = append(blocks, b.text)
		}
	}
	return blocks
}

// TestFreshClone runs the first command that the README names.
func TestFreshClone(t *testing.T) {
	t.Parallel()
	blocks := blocksRunBy(t, "../README.md", "TestFreshClone")
	require.Len(t, blocks, 1)
	args := strings.Fields(blocks[0])
	require.Equal(t, "demo.db", args[len(args)-1])
	args[len(args)-1] = filepath.Join(t.TempDir(), "demo.db")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Regexp(t, `^allowed  alice  2 of 3 left, full in 20m`, string(out))
}

// TestLimitsFiles loads the limits files of choosing.md.
func TestLimitsFiles(t *testing.T) {
	blocks := blocksRunBy(t, "choosing.md", "TestLimitsFiles")
	require.Len(t, blocks, 2)
	const orders stint.Name = 6
	names := stint.Names{orders: {Label: "OrdersPerAccount", IDs: idformat.RegID}}
	limits, err := limitsfile.Parse(names, []byte(blocks[0]), []byte(blocks[1]))
	require.NoError(t, err)
	for id, count := range map[string]int64{"1": 300, "12345678": 600, "22222222": 900} {
		limit := limits.For(orders.Key(id))
		assert.Equal(t, count, limit.Count)
		assert.Equal(t, stint.Leased, limit.Durability, id)
	}
}

// TestFirstScreen holds the beginning of the README to its order.
func TestFirstScreen(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	at := -1
	for _, want := range []string{
		"durable rate limiter for Go (token bucket, GCRA) that keeps its state in one file", "**Use it**",
		"package main", "go get", "limiter.SpendAll(", "limiter.Hold(", "## Which package or command", "a crash may forget",
		"go run ./cmd/stint", "go test ./...",
	} {
		i := strings.Index(string(text), want)
		require.Greater(t, i, at, "%q is missing or too late", want)
		at = i
	}
	_, program, _ := strings.Cut(string(text), "```go\n")
	program, _, _ = strings.Cut(program, "```")
	require.LessOrEqual(t, strings.Count(program, "\n"), 25, "lines of the first program")
}
