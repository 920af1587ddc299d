package lockout

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each lock-out is twice as long as the one before, up to the longest.
func TestRule(t *testing.T) {
	for name, tc := range map[string]struct {
		first, most time.Duration
		want        []time.Duration
	}{
		"not a power of two": {time.Hour, 3 * time.Hour, []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour}},
		"the longest, twice": {time.Nanosecond << 61, 1<<63 - 1, []time.Duration{1 << 61, 1 << 62, 1<<63 - 1}},
		"below one":          {time.Hour, time.Minute, []time.Duration{time.Hour, time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			ru := Rule{For: tc.first, Max: tc.most}
			for n, want := range tc.want {
				require.Equal(t, want, ru.length(int64(n)))
			}
			require.Equal(t, max(tc.first, tc.most), ru.length(countBits))
		})
	}
}
