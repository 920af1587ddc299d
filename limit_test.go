package stint

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDurability(t *testing.T) {
	require.Equal(t, "default", Durability(0).String())
	require.Equal(t, "Durability(5)", Durability(5).String())
	for want, text := range map[Durability]string{Memory: "memory", Flushed: "flushed", Leased: "leased", Synced: "synced"} {
		got, err := ParseDurability(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for _, text := range []string{"", "default", "Synced", " synced", "4"} {
		_, err := ParseDurability(text)
		require.EqualError(t, err, "stint: durability is "+quote(text)+", want memory, flushed, leased or synced")
	}
}

func TestLimit(t *testing.T) {
	for _, tc := range []struct {
		limit               Limit
		text                string
		interval, tolerance time.Duration
	}{
		{PerSecond(20), "20/1s", 50 * time.Millisecond, time.Second},
		{PerMinute(5), "5/1m", 12 * time.Second, time.Minute},
		{PerHour(100), "100/1h", 36 * time.Second, time.Hour},
		{PerDay(1).WithBurst(3600), "1/24h burst 3600", 24 * time.Hour, 3600 * 24 * time.Hour},
		{Limit{Burst: 2, Count: 3, Period: 90 * time.Minute}, "3/1h30m burst 2", 30 * time.Minute, time.Hour},
		{Limit{Burst: 1, Count: 1, Period: 10 * time.Second}, "1/10s", 10 * time.Second, 10 * time.Second},
		{Limit{Burst: 3, Count: 3, Period: 10}, "3/10ns", 4, 12},
		{Limit{Burst: 1, Count: 1, Period: 10*time.Hour + time.Second}, "1/10h0m1s", 36001 * time.Second, 36001 * time.Second},
	} {
		require.NoError(t, tc.limit.Validate())
		require.Equal(t, tc.text, tc.limit.String())
		require.Equal(t, tc.interval, tc.limit.Interval(), tc.text)
		require.Equal(t, tc.tolerance, tc.limit.Tolerance(), tc.text)
		got, err := ParseLimit(tc.text)
		require.NoError(t, err)
		require.Equal(t, tc.limit, got)
	}
}

func TestLimitValidate(t *testing.T) {
	for _, tc := range []struct {
		limit Limit
		want  string
	}{
		{Limit{}, "stint: burst is 0, want at least 1\nstint: count is 0, want at least 1\nstint: period is 0s, want more than 0"},
		{Limit{Burst: math.MinInt64, Count: 1, Period: 1}, "stint: burst is -9223372036854775808, want at least 1"},
		{Limit{Burst: 1, Count: 2, Period: 1}, "stint: count is 2, want at most 1 per nanosecond of the period"},
		{Limit{Burst: math.MaxInt64, Count: 1, Period: math.MaxInt64},
			"stint: burst is 9223372036854775807, want a bucket that refills within 100 years"},
		{PerSecond(1).WithBurst(0), "stint: burst is 0, want at least 1"},
		{Limit{Burst: 1, Count: 1, Period: -time.Minute, Queue: -1, Durability: 5}, "stint: period is -1m, want more than 0\n" +
			"stint: queue is -1, want 0 or more\nstint: durability is Durability(5), want memory, flushed, leased or synced"},
	} {
		err := tc.limit.Validate()
		require.EqualError(t, err, tc.want)
		var mistake *ConfigError
		require.ErrorAs(t, err, &mistake)
		if tc.limit.Durability == 0 {
			require.Zero(t, tc.limit.Interval())
			require.Zero(t, tc.limit.Tolerance())
		}
	}
}

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]Limit{
		"5/1m":          PerMinute(5),
		"300/180m":      {Burst: 300, Count: 300, Period: 3 * time.Hour},
		"10/1d":         PerDay(10),
		"2/1w":          {Burst: 2, Count: 2, Period: 168 * time.Hour},
		"5/1m burst 20": PerMinute(5).WithBurst(20),
	} {
		got, err := ParseLimit(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{
		"", "5", "/", "5/", "/1m", "05/1m", "+5/1m", "5 / 1m", "5/1m burst ",
		"5/1m burst 020", "5/1m burst 20 burst 20", "9223372036854775808/1m", strings.Repeat("5", 1000),
	} {
		_, err := ParseLimit(text)
		require.EqualError(t, err,
			"stint: limit "+quote(text)+": want count/period such as 5/1m, 300/3h or 1/1d burst 10")
	}
	for _, period := range []string{"m", "60", "1min", "1y", "1m/1m", "1m ", "1m burst"} {
		_, err := ParseLimit("5/" + period)
		require.EqualError(t, err,
			"stint: limit "+quote("5/"+period)+": period is "+quote(period)+", want a duration such as 90s, 180m, 36h, 1d or 2w")
	}
	_, err := ParseLimit("5/1m burst 0")
	require.EqualError(t, err, `stint: limit "5/1m burst 0": burst is 0, want at least 1`)
	_, err = ParseLimit("5/0s")
	require.EqualError(t, err, `stint: limit "5/0s": period is 0s, want more than 0`)
	_, err = ParseLimit("2000000000/1s")
	require.EqualError(t, err,
		`stint: limit "2000000000/1s": count is 2000000000, want at most 1 per nanosecond of the period`)
}

func FuzzLimit(f *testing.F) {
	f.Add(int64(20), int64(20), int64(1e9))
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), int64(-1))
	f.Add(int64(1), int64(1), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, burst, count, period int64) {
		l := Limit{Burst: burst, Count: count, Period: time.Duration(period)}
		if l.Validate() != nil {
			require.Zero(t, l.Interval())
			require.Zero(t, l.Tolerance())
			return
		}
		require.Positive(t, l.Interval())
		require.Equal(t, int64(l.Tolerance()), l.Burst*int64(l.Interval()))
		got, err := ParseLimit(l.String())
		require.NoError(t, err)
		require.Equal(t, l, got)
	})
}
