package statuspage

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// fullDisk is a Limiter that can make no hold durable.
type fullDisk struct{ *stint.Limiter }

func (fullDisk) Hold(stint.Key, time.Time) (time.Time, error) {
	return time.Time{}, errors.New("the disk is full")
}

// A hold that cannot get longer stays as it was.
func TestLongerHoldThatFails(t *testing.T) {
	lim, _ := newLimiter(t, nil, nil)
	until, err := lim.Hold(client, lim.Now().Add(time.Hour))
	require.NoError(t, err)
	p := New(fullDisk{lim}, &Options{AllowReset: true})
	require.Equal(t, 503, post(p, "for=24h&hold="+p.bucketID(client).Token, fromPage...).Code)
	b, err := lim.Bucket(client)
	require.NoError(t, err)
	require.True(t, b.HeldUntil.Equal(until), "until %v", b.HeldUntil)
}
