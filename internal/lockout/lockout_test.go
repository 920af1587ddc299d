package lockout

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
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

// betweenCalls is a Limiter in which something happens after a bucket was read.
type betweenCalls struct {
	*stint.Limiter
	last stint.Key
	then func()
}

func (b betweenCalls) Bucket(key stint.Key) (stint.Bucket, error) {
	found, err := b.Limiter.Bucket(key)
	if key == b.last {
		b.then()
	}
	return found, err
}

// A longer hold stays, even if it comes between the last look at the bucket and
// the lock-out.
func TestHoldBesideAnother(t *testing.T) {
	const logins stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{logins: {Label: "logins"}}, map[stint.Name]stint.Limit{logins: stint.PerHour(5)}, nil)
	require.NoError(t, err)
	key := logins.Key("a")
	for last, ru := range map[stint.Key]Rule{key: {For: time.Hour}, CountKey(key): {For: time.Hour, Max: 24 * time.Hour}} {
		t.Run(last.ID, func(t *testing.T) {
			now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
			lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
			require.NoError(t, err)
			defer lim.Close()
			operators := now.Add(48 * time.Hour)
			between := betweenCalls{lim, last, func() { require.NoError(t, lim.Hold(key, operators)) }}
			b, err := between.Bucket(key)
			require.NoError(t, err)
			until, err := ru.Hold(between, b, now)
			require.NoError(t, err)
			require.True(t, operators.Equal(until), "it is locked out until %v", until)
			b, err = lim.Bucket(key)
			require.NoError(t, err)
			require.True(t, operators.Equal(b.HeldUntil), "held until %v", b.HeldUntil)
		})
	}
}
