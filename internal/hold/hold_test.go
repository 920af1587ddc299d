package hold

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

var errDisk = errors.New("the disk is full")

// failing refuses the Holds whose numbers are listed, from 1.
type failing struct {
	*stint.Limiter
	calls    int
	refused  map[int]bool
	releases int
}

func (f *failing) Hold(key stint.Key, until time.Time) (time.Time, error) {
	if f.calls++; f.refused[f.calls] {
		return time.Time{}, errDisk
	}
	return f.Limiter.Hold(key, until)
}

func (f *failing) Release(key stint.Key) error {
	f.releases++
	return f.Limiter.Release(key)
}

func TestUntil(t *testing.T) {
	const name stint.Name = 1
	begin := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		was, asked time.Duration // of the hold, from begin
		refused    int           // the Hold that fails
		want       time.Duration
		releases   int
	}{
		{0, time.Hour, 0, time.Hour, 0},
		{time.Hour, 2 * time.Hour, 0, 2 * time.Hour, 0}, // it is never without a hold
		{time.Hour, time.Hour, 0, time.Hour, 0},
		{time.Hour, time.Minute, 0, time.Minute, 1},
		{time.Hour, 0, 0, 0, 1},
		{time.Hour, 2 * time.Hour, 1, time.Hour, 0},
		{time.Hour, time.Minute, 2, time.Hour, 1}, // the longer one is back
	} {
		limits, err := stint.NewLimits(stint.Names{name: {Label: "a", Limit: stint.PerHour(3)}})
		require.NoError(t, err)
		l, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return begin }})
		require.NoError(t, err)
		key := name.Key("a")
		if c.was > 0 {
			_, err = l.Hold(key, begin.Add(c.was))
			require.NoError(t, err)
		}
		f := &failing{Limiter: l, refused: map[int]bool{c.refused: true}}
		err = Until(f, key, begin.Add(c.asked))
		require.Equal(t, c.refused > 0, errors.Is(err, errDisk), "%+v: %v", c, err)
		b, err := l.Bucket(key)
		require.NoError(t, err)
		var want time.Time
		if c.want > 0 {
			want = begin.Add(c.want)
		}
		require.True(t, b.HeldUntil.Equal(want), "%+v: until %v", c, b.HeldUntil)
		require.Equal(t, c.releases, f.releases, "%+v", c)
		require.NoError(t, l.Close())
	}
}
