package calendar

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	load := func(name string) *time.Location {
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		return zone
	}
	berlin := Of(Day, load("Europe/Berlin"), 0)
	require.NotZero(t, berlin)
	require.Equal(t, berlin, Of(Day, load("Europe/Berlin"), 0), "each load returns another pointer")
	require.NotEqual(t, berlin, Of(Day, load("Europe/Paris"), 0))
	require.NotEqual(t, berlin, Of(Week, load("Europe/Berlin"), 0))
	require.NotEqual(t, berlin, Of(Day, load("Europe/Berlin"), time.Hour))
	require.Equal(t, Of(Day, nil, 0), Of(Day, time.UTC, 0))
	require.Equal(t, Of(Day, time.FixedZone("UTC", 0), 0), Of(Day, time.UTC, 0))

	// A name that lies.
	liar := time.FixedZone("Europe/Berlin", 3600)
	require.Equal(t, "day@+01:00", Of(Day, liar, 0).Calendar().String())
	require.Equal(t, Of(Day, liar, 0), Of(Day, time.FixedZone("", 3600), 0))
	require.Equal(t, "day@-00:44:30", Of(Day, time.FixedZone("LMT", -2670), 0).Calendar().String())
	require.Nil(t, Index(0).Calendar())

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for n := range 200 {
				i := Of(Month, time.FixedZone("", n*60), 0)
				require.Equal(t, Month, i.Calendar().Unit())
				require.Equal(t, i, Of(Month, time.FixedZone("", n*60), 0))
			}
		})
	}
	wg.Wait()
}

func TestParse(t *testing.T) {
	for _, s := range []string{
		"hour", "day", "week", "month", "year", "day@Local", "day@Asia/Kolkata", "hour@-03:30 from 15m",
		"day@Etc/GMT+5 from 4h30m", "week from 23h59m59.999999999s", "year@+00:44:30",
	} {
		i, err := Parse(s)
		require.NoError(t, err, s)
		require.Equal(t, s, i.Calendar().String())
		require.True(t, IsUnit(s))
		again := Of(i.Calendar().Unit(), i.Calendar().Zone(), i.Calendar().Start())
		require.Equal(t, i, again, s)
	}
	was := len(known())
	for s, want := range map[string]string{
		"":                          `period is "", want hour, day, week, month or year`,
		"days":                      `period is "days", want hour, day, week, month or year`,
		"day@":                      `zone is empty, want a name such as Europe/Berlin`,
		"day@Europe/Atlantis":       `zone is "Europe/Atlantis", want a name of the tz database such as Europe/Berlin`,
		"day@../etc/passwd":         `zone is "../etc/passwd", want a name of the tz database such as Europe/Berlin`,
		"day from noon":             `start is "noon", want a duration such as 4h`,
		"day from 24h":              `start is 24h, want 0 or more, and less than 24h`,
		"day from 999h":             `start is 999h, want 0 or more, and less than 24h`,
		"hour@Asia/Kolkata from 1h": `start is 1h, want 0 or more, and less than 1h`,
		"month from -1h":            `start is -1h, want 0 or more, and less than 24h`,
	} {
		_, err := Parse(s)
		require.EqualError(t, err, want, s)
		require.Len(t, known(), was, "it takes no place in the table")
	}
}

func TestClock(t *testing.T) {
	i, err := Parse("day@Europe/Berlin")
	require.NoError(t, err)
	k := NewClock(i.Calendar())
	at := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC).UnixNano()
	first := k.End(at)
	require.Equal(t, i.Calendar().Period(at).End, first)
	require.Equal(t, first, k.End(first-1))
	second := k.End(first)
	require.Equal(t, i.Calendar().Period(first).End, second)
	require.Equal(t, first, k.End(first-1), "a caller that read the clock earlier")
	require.Equal(t, &Period{first, second}, k.Now(first))
	require.Zero(t, testing.AllocsPerRun(100, func() { k.End(first) }))
}

func BenchmarkClock(b *testing.B) {
	i, err := Parse("day@Europe/Berlin")
	require.NoError(b, err)
	now := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC).UnixNano()
	b.Run("remembered", func(b *testing.B) {
		k := NewClock(i.Calendar())
		for b.Loop() {
			k.End(now)
		}
	})
	b.Run("computed", func(b *testing.B) {
		c := i.Calendar()
		for b.Loop() {
			c.Period(now)
		}
	})
}

// Every fixed offset of up to a day is read as it is written.
func TestOffsetText(t *testing.T) {
	for _, seconds := range []int{0, 1, 30, 59, 60, 61, 90 * 60, 15*3600 + 59, 24*3600 - 1, 24 * 3600} {
		for _, offset := range []int{seconds, -seconds} {
			zone := time.FixedZone("", offset)
			c := Of(Day, zone, 0).Calendar()
			again, err := Zone(c.ZoneText())
			require.NoError(t, err, "%d", offset)
			require.True(t, sameClock(zone, again), "%d is written as %s", offset, c.ZoneText())
			require.False(t, c.FarFromUTC())
		}
	}
	for _, offset := range []int{24*3600 + 1, -24*3600 - 1, 31 * 3600, 1000 * 3600} {
		c := Of(Day, time.FixedZone("", offset), 0).Calendar()
		require.True(t, c.FarFromUTC())
		_, err := Zone(c.ZoneText())
		require.Error(t, err)
	}
	for _, text := range []string{"+24:01", "+1:00", "+01", "+01:60", "+01:00:60", "+01:00:00:00", "-", "+ab:cd", "++1:00"} {
		_, ok := parseOffset(text)
		require.False(t, ok, text)
	}
}
