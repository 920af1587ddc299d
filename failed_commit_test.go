package stint_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// tenAnHour is a limit whose bucket refills in ten hours.
func tenAnHour(level stint.Durability) stint.Limit {
	return stint.Limit{Burst: 10, Count: 1, Period: time.Hour, Durability: level}
}

// A call has its answer before its lease is renewed: if the renewal fails, what
// was spent stays spent.
func TestFailedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, store := newHeldClock(), &gatedStore{MemStore: stint.NewMemStore()}
		limit := tenAnHour(stint.Leased)
		limit.Burst = 100
		l := openOnly(t, store, limit, clock.Now)
		require.Equal(t, 1, spends(t, l, only.Key("a"), 1))
		store.broken.Store(true)
		for spent := int64(1); ; spent++ {
			require.Equal(t, 100-spent, remaining(t, l, only.Key("a")))
			failures := l.Stats().Commit.Failures
			_, err := l.SpendAll(stint.Request{Key: only.Key("a"), Cost: 1})
			time.Sleep(time.Second) // the renewal comes by itself
			if err != nil {
				require.ErrorIs(t, err, stint.ErrNotDurable)
				require.Positive(t, failures, "nothing was renewed")
				return
			}
		}
	})
}
