package spell

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPeriod(t *testing.T) {
	const day = 24 * time.Hour
	for _, tc := range []struct {
		text string
		want time.Duration
	}{
		{"90s", 90 * time.Second}, {"180m", 3 * time.Hour}, {"1h30m", 90 * time.Minute}, {"1ns", 1}, {"0", 0},
		{"1d", day}, {"2w", 14 * day}, {"1w2d12h", 9*day + 12*time.Hour}, {"1.5d", 36 * time.Hour},
		{"1w1m", 7*day + time.Minute},
		{"9223372036854775807ns", math.MaxInt64}, {"106751d23h47m16.854775807s", math.MaxInt64},
	} {
		got, err := Period(tc.text)
		require.NoError(t, err, tc.text)
		require.Equal(t, tc.want, got, tc.text)
	}
	for _, text := range []string{
		"", " ", "1", "d", "w", "1 d", "-1d", "+1d", "-1s", "+1s", "1d-1s", "1d+1s", "1d1w", "1h1d", "1w1", "1d1d", "1ww",
		"1m1w", "1.1.1d", "1e3s", "1D", "1mo", "15251w", "106752d", "106751d24h", "9223372036854775808ns", "2562047h48m",
		"99999999999999999999d", strings.Repeat("9", 1000),
	} {
		_, err := Period(text)
		require.EqualError(t, err, "period is "+Quote(text)+", want a duration such as 90s, 180m, 36h, 1d or 2w")
	}
}

func FuzzPeriod(f *testing.F) {
	for _, s := range []string{"1w2d12h", "1.5d", "180m", "1h1d", "-5m", "106751d24h", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := Period(s)
		if err != nil {
			require.Zero(t, d)
			return
		}
		require.GreaterOrEqual(t, d, time.Duration(0))
		again, err := Period(ShortPeriod(d))
		require.NoError(t, err)
		require.Equal(t, d, again)
		if plain, err := time.ParseDuration(s); err == nil {
			require.Equal(t, plain, d)
		}
	})
}

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"Logins": "Logins", "Anfragen pro Tag, höchstens": "Anfragen pro Tag, höchstens",
		"a\nb": `"a\nb"`, "a\x1b[2J": `"a\x1b[2J"`, `a"b`: `"a\"b"`,
	} {
		require.Equal(t, want, Line(text))
	}
}
