package clock

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecord(t *testing.T) {
	for _, r := range []Record{{}, {Boot: "b", Start: -1, Behind: 2, Waited: 3, Moving: 4}} {
		got, err := Unmarshal(r.Marshal())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	r, err := Unmarshal(nil)
	require.NoError(t, err)
	require.Zero(t, r)
	for _, n := range []int{1, 31, 32 + maxBoot + 1} {
		_, err = Unmarshal(make([]byte, n))
		require.Error(t, err)
	}
}

// TestSystem: machine time goes on, in the same boot.
func TestSystem(t *testing.T) {
	boot, first := system(earliest)
	again, second := system(earliest + 1)
	require.Equal(t, boot, again)
	require.Greater(t, second, first)
	if runtime.GOOS != "linux" {
		boot, _ = system(0)
	}
	require.NotEqual(t, wallBoot, boot)
}
