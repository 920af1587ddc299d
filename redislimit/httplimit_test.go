package redislimit

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

// TestHTTPLimit runs the tests of httplimit with buckets at a server. The file
// that makes their Limiter is replaced by the one in testdata.
func TestHTTPLimit(t *testing.T) {
	t.Parallel()
	if !testlength.Long {
		t.Skip("builds and runs another package; with -tags long only")
	}
	s := startServer(t)
	ours, err := filepath.Abs("testdata/httplimit/limiter_test.go")
	require.NoError(t, err)
	theirs, err := filepath.Abs("../httplimit/limiter_test.go")
	require.NoError(t, err)
	require.FileExists(t, theirs)
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{theirs: ours}})
	require.NoError(t, err)
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	cmd := exec.Command("go", "test", "-count=1", "-overlay", overlay, "github.com/stint-go/stint/httplimit")
	cmd.Env = append(os.Environ(), "REDISLIMIT_TEST_URL="+s.url)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	t.Log(string(out))
	calls := s.scripts()
	t.Logf("%d calls of the script", calls)
	require.Greater(t, calls, int64(500))
}
