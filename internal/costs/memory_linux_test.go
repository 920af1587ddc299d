package costs

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/subprocess"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/internal/worlds"
)

// TestMemory measures the resident memory of a program on a small board:
// 10,000 buckets, and a flood of a million new ids. Of the flood only the
// program's own memory is bounded. The rest are pages of the file that were
// read, which the system takes back when it needs them.
func TestMemory(t *testing.T) {
	switch {
	case subprocess.Emulated():
		t.Skip("the system counts the memory of the emulator")
	case testlength.Race:
		t.Skip("the race detector takes memory, too")
	case strconv.IntSize == 64:
		t.Skip("the figures are those of 32 bits: GOARCH=386 go test -run TestMemory -v ./internal/costs")
	}
	program := filepath.Join(t.TempDir(), "memory")
	out, err := exec.Command("go", "build", "-o", program, "../../testdata/memory").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, c := range []struct {
		ids      int
		all, own int64 // at most, on 32 bits; 0 is no bound
	}{
		{10_000, 12e6, 0},
		{1_000_000, 0, 16e6},
	} {
		t.Run(fmt.Sprint(c.ids, " ids"), func(t *testing.T) {
			t.Setenv("GOGC", "50")
			t.Setenv("GOMEMLIMIT", "12MiB")
			out, err := exec.Command(program, worlds.Path(t), strconv.Itoa(c.ids)).Output()
			require.NoError(t, err)
			var all, own, files int64
			_, err = fmt.Sscan(string(out), &all, &own, &files)
			require.NoError(t, err)
			t.Logf("%.1f MB, of which %.1f are its own, and %.1f pages of files",
				float64(all)/1e6, float64(own)/1e6, float64(files)/1e6)
			assert.True(t, c.all == 0 || all <= c.all)
			assert.True(t, c.own == 0 || own <= c.own)
		})
	}
}
