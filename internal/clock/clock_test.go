package clock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const end int64 = 1 << 62

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead time.Duration // of the wall clock
		c := New(nil, nil, nil, end)
		c.SetWall(func() time.Time { return time.Now().Add(ahead) })
		begun := c.Now()
		for _, step := range []struct {
			moved, follows, reported time.Duration
			forward, backward        int64
		}{
			{0, 0, 0, 0, 0},
			{250*time.Millisecond - 1, 250*time.Millisecond - 1, 0, 0, 0}, // drift
			{-time.Hour, 0, -time.Hour, 0, 1},
			{time.Hour, 0, time.Hour, 1, 1}, // back again
			{24 * time.Hour, 24 * time.Hour, 24 * time.Hour, 2, 1},
		} {
			next := c.NextStep()
			before := c.Now()
			ahead += step.moved
			require.Equal(t, step.reported, c.Follow())
			require.Equal(t, before+int64(step.follows), c.Now())
			forward, backward := c.Steps()
			require.Equal(t, []int64{step.forward, step.backward}, []int64{forward, backward})
			select {
			case <-next:
				require.Positive(t, step.reported)
			default:
				require.LessOrEqual(t, step.reported, time.Duration(0))
			}
		}
		<-time.After(time.Second)
		require.Equal(t, begun+int64(ahead+time.Second), c.Now())
	})
}

// TestStopped: a process that is stopped between two readings of time is late
// until the next Follow, and never ahead. A Follow in which it is stopped sees no
// step. What the file gets does not set the next process ahead either, even if
// that one has nothing but the file and the machine time.
func TestStopped(t *testing.T) {
	for _, at := range []string{"before the wall clock", "after the wall clock", "before the machine time", "after the machine time"} {
		for _, boot := range []string{"one boot", "boots", wallBoot} {
			for stopped := range 1 << 4 { // a bit for each process
				t.Run(fmt.Sprintf("%s/%s/%04b", at, boot, stopped), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testStopped(t, at, boot, stopped) })
				})
			}
		}
	}
}

func testStopped(t *testing.T, at, boot string, stopped int) {
	const pause = 3 * time.Second
	booted := time.Now()
	truth := func() int64 { return time.Now().AddDate(30, 0, 0).UnixNano() }
	stops, wrong := false, time.Duration(0)
	stop := func(here string) {
		if stops && here == at {
			<-time.After(pause)
		}
	}
	wall := func() time.Time {
		stop("before the wall clock")
		defer stop("after the wall clock")
		return time.Unix(0, truth()).Add(wrong)
	}
	machine := func(wall int64) (string, int64) {
		stop("before the machine time")
		defer stop("after the machine time")
		if boot == wallBoot {
			return boot, wall
		}
		id := boot
		if boot == "boots" {
			id = booted.String()
		}
		return id, int64(time.Since(booted))
	}
	seen, was := int64(0), Record{}
	for process := range 4 {
		if process == 2 && boot != wallBoot {
			wrong = -time.Hour
		}
		stops = stopped>>process&1 == 1
		c := New(nil, wall, machine, end)
		c.Begin(seen, was)
		require.LessOrEqual(t, c.Now(), truth(), "New")
		stops = false
		c.Follow()
		require.LessOrEqual(t, c.Now(), truth())
		require.Equal(t, wrong != 0, c.Wrong())
		forward, backward := c.Steps()
		stops = true
		for range 3 {
			require.Zero(t, c.Follow())
			require.LessOrEqual(t, c.Now(), truth(), "Follow")
			require.Greater(t, c.Now(), truth()-int64(2*pause)-startSlack)
			require.Equal(t, wrong != 0, c.Wrong())
		}
		ahead, back := c.Steps()
		require.Equal(t, []int64{forward, backward}, []int64{ahead, back})
		seen = c.Now()
		was, _ = c.Record()
		if boot == "boots" {
			booted = time.Now()
		}
		<-time.After(time.Minute)
	}
}

// A process that is stopped once between its readings does not begin late: the
// next process of the file, which is not, would give the difference to every
// bucket.
func TestStoppedOnce(t *testing.T) {
	for _, at := range []string{"before the wall clock", "after the wall clock", "at the machine time"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, stopped := time.Now(), false
				stop := func(here string) {
					if here == at && !stopped {
						stopped = true
						<-time.After(3 * time.Second)
					}
				}
				truth := func() time.Time { return time.Now().AddDate(30, 0, 0) }
				c := New(nil, func() time.Time {
					stop("before the wall clock")
					defer stop("after the wall clock")
					return truth()
				}, func(int64) (string, int64) {
					stop("at the machine time")
					return "boot", int64(time.Since(begun))
				}, end)
				require.True(t, stopped)
				require.Equal(t, truth().UnixNano(), c.Now())
			})
		})
	}
}

// TestFollowDrift: many small corrections together change the record, too.
func TestFollowDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		wall := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		c := New(nil, func() time.Time { return wall }, func(int64) (string, int64) { return "boot", 7 }, end)
		c.Begin(0, Record{})
		for range 1000 {
			<-time.After(time.Minute)
			wall = wall.Add(time.Minute + 100*time.Millisecond)
			c.Follow()
			r, _ := c.Record()
			right := wall.UnixNano() - int64(time.Since(begun)) - 7
			require.InDelta(t, right, r.Start, float64(startSlack))
		}
	})
}

func TestInstant(t *testing.T) {
	c := New(func() time.Time { return time.Unix(-5, 0) }, nil, nil, end)
	require.Zero(t, c.Now())
	require.Zero(t, c.Follow(), "a simulated clock has no steps")
	require.Equal(t, end, c.Instant(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
	require.EqualValues(t, 7, c.Instant(time.Unix(0, 7)))
}

// Each case of TestBegin has the time of the wall clock, the time at which the
// Clock begins, and whether the wall clock is believed.
func TestBegin(t *testing.T) {
	at := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	saved := at(2030)
	for _, c := range []struct {
		name     string
		saved    time.Time
		says     time.Time
		begins   time.Time
		believed bool
	}{
		{"no save", time.Unix(0, 0), at(1970), at(1970), true},
		{"no save, far ahead", time.Unix(0, 0), at(2099), at(2099), true},
		{"at once", saved, saved, saved, true},
		{"off for nine years", saved, at(2039), at(2039), true},
		{"far ahead", saved, at(2099), saved, false},
		{"a little behind", saved, saved.Add(-5 * time.Second), saved, true},
		{"behind", saved, saved.Add(-5*time.Second - 1), saved, false},
		{"years behind", saved, at(2027), saved, false},
		{"a save far ahead", at(2099), saved, saved, true},
		{"before the release", saved, at(2015), saved, false},
		{"1970", saved, at(1970), saved, false},
		{"1970, and behind a save of 1970", at(1970).Add(time.Hour), at(1970), at(1970).Add(time.Hour), false},
		{"right, after a save of 1970", at(1970).Add(time.Hour), saved, saved, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wall := c.says
				k := New(nil, func() time.Time { return wall }, nil, end)
				step, _ := k.Begin(c.saved.UnixNano(), Record{})
				require.Equal(t, c.begins.UnixNano(), k.Now())
				require.Equal(t, c.believed, k.Health() == nil)
				if c.believed {
					require.Zero(t, step)
				} else {
					require.Equal(t, c.says.Sub(c.saved), step)
					k.Follow()
					require.Error(t, k.Health())
					require.Equal(t, k.Now(), k.Seen())
				}
				wall = c.begins.Add(time.Hour)
				k.Follow()
				require.NoError(t, k.Health())
				require.Equal(t, wall.UnixNano(), k.Now())
			})
		})
	}
}

// TestPatience: if the wall clock is behind the last save for an hour, it is
// believed from then on: the clock was wrong at the save. Time goes back in the
// next process only.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		saved := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		begun := time.Now()
		wall := func() time.Time { return saved.Add(time.Since(begun) - 2*time.Hour) }
		c := New(nil, wall, nil, end)
		c.Begin(saved.UnixNano(), Record{})
		<-time.After(time.Hour - 1)
		c.Follow()
		require.Error(t, c.Health())
		<-time.After(1)
		c.Follow()
		require.NoError(t, c.Health())
		require.Equal(t, saved.Add(time.Hour).UnixNano(), c.Now())
		require.Equal(t, wall().UnixNano(), c.Seen())
		wrong, back := New(nil, wall, nil, end).Begin(c.Seen(), Record{})
		require.Zero(t, wrong)
		require.Zero(t, back)

		c = New(nil, func() time.Time { return time.Unix(1, 0) }, nil, end)
		c.Begin(saved.UnixNano(), Record{})
		<-time.After(1000 * time.Hour)
		c.Follow()
		require.Error(t, c.Health(), "1970 is never right")
	})
}

// TestPatienceFarAhead: a clock that is more than ten years ahead is not behind,
// so that time does not count towards the hour after which one that is behind is
// believed.
func TestPatienceFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		machine := func(int64) (string, int64) { return "boot", int64(time.Since(begun)) + 1 }
		saved := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		wall := saved
		c := New(nil, func() time.Time { return wall }, machine, end)
		c.Begin(saved.UnixNano(), Record{})
		behind := func(d time.Duration) {
			wall = saved.Add(-2 * time.Hour)
			c.Follow()
			<-time.After(d)
			wall = saved.AddDate(73, 0, 0)
			c.Follow()
		}
		behind(time.Minute)
		<-time.After(2 * time.Hour)
		wall = saved.Add(-time.Hour)
		seen := c.Now()
		was, unsaved := c.Record()
		require.True(t, unsaved)
		wrong, back := New(nil, func() time.Time { return wall }, machine, end).Begin(seen, was)
		require.Equal(t, -3*time.Hour-time.Minute, wrong)
		require.Zero(t, back)

		behind(time.Hour - time.Minute)
		was, _ = c.Record()
		wall = saved.Add(-time.Hour)
		wrong, back = New(nil, func() time.Time { return wall }, machine, end).Begin(c.Now(), was)
		require.Zero(t, wrong)
		require.Equal(t, 4*time.Hour, back)
	})
}

// TestFollowMachineTime: on a machine that does not tell its boots apart, machine
// time steps with the wall clock. The clock of the next process goes on all the
// same, and the wall clock has been behind since its first step back.
func TestFollowMachineTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead time.Duration // of the wall clock
		first := time.Now()
		wall := func() time.Time {
			return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Since(first) + ahead)
		}
		start := func(seen int64, r Record) *Clock {
			c := New(nil, wall, func(wall int64) (string, int64) { return wallBoot, wall }, end)
			c.Begin(seen, r)
			return c
		}
		behind := func(c *Clock) time.Duration {
			r, _ := c.Record()
			return time.Duration(r.waitedAt(c.machineLocked()))
		}
		c := start(0, Record{})
		begun := c.Now()
		<-time.After(time.Minute)
		for step := range 3 {
			ahead -= time.Hour
			require.Equal(t, -time.Hour, c.Follow())
			require.Equal(t, time.Duration(step)*10*time.Minute, behind(c))
			<-time.After(10 * time.Minute)
			require.Zero(t, c.Follow())
		}
		seen := c.Now()
		r, _ := c.Record()
		<-time.After(10 * time.Minute)
		c = start(seen, r)
		require.Equal(t, begun+int64(41*time.Minute), c.Now())
		require.Equal(t, 40*time.Minute, behind(c))
	})
}
