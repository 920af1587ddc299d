package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/rules"
)

const perKey stint.Name = 1

func newLimiter(t testing.TB, store stint.Store) (*stint.Limiter, *modeltest.Clock) {
	t.Helper()
	limits, err := stint.NewLimits(stint.Names{perKey: {Label: "key", Limit: stint.PerMinute(5)}})
	require.NoError(t, err)
	clock := modeltest.NewClock()
	lim, err := stint.New(store, limits, &stint.Options{Now: clock.Now})
	require.NoError(t, err)
	t.Cleanup(func() { lim.Close() })
	return lim, clock
}

// slowStore is a store whose loads wait.
type slowStore struct {
	stint.Store
	loading, release chan struct{}
}

func (s slowStore) Load(key stint.Key) (int64, error) {
	if key != (stint.Key{}) { // New reads the time of the last save
		s.loading <- struct{}{}
		<-s.release
	}
	return s.Store.Load(key)
}

// allowed and denied are decisions about a key, as the middleware makes them.
func allowed(key stint.Key) []rules.Decision { return decided(key, true) }
func denied(key stint.Key) []rules.Decision  { return decided(key, false) }

func decided(key stint.Key, ok bool) []rules.Decision {
	return []rules.Decision{{Decision: stint.Decision{Key: key, Allowed: ok}, RuleKey: key, Cost: 1}}
}

func TestObserve(t *testing.T) {
	t.Run("flood", func(t *testing.T) {
		lim, _ := newLimiter(t, stint.NewMemStore())
		c := NewCollector(lim, false)
		before := c.looked
		for i := range 100_000 {
			c.Observe(denied(perKey.Key(fmt.Sprint("flood", i))))
		}
		require.Equal(t, before, c.looked, "no sample within a second")
		require.Len(t, c.observed[perKey].denied.current.all, maxCounters)
		require.Len(t, c.observed[perKey].denied.current.index, maxCounters)
		require.Zero(t, lim.Stats().Resident)
	})
	t.Run("while a report waits for the store", func(t *testing.T) {
		loading, release := make(chan struct{}), make(chan struct{})
		lim, clock := newLimiter(t, slowStore{stint.NewMemStore(), loading, release})
		c := NewCollector(lim, false)
		c.Observe(allowed(perKey.Key("a")))
		done := make(chan *Report)
		go func() { done <- c.Report() }()
		<-loading
		clock.Advance(time.Minute)
		c.Observe(allowed(perKey.Key("a"))) // a deadlock if it waits for the report
		close(release)
		<-done
		c.Observe(allowed(perKey.Key("a")))
		require.True(t, c.looked.Equal(clock.Now()), "a sample is taken again")
	})
	t.Run("a check spends nothing", func(t *testing.T) {
		lim, _ := newLimiter(t, stint.NewMemStore())
		c := NewCollector(lim, false)
		ds := allowed(perKey.Key("a"))
		ds[0].After = true
		c.Observe(ds)
		require.Empty(t, c.observed[perKey].spent.current.all)
		require.Zero(t, c.observed[perKey].early)
	})
}

// BenchmarkObserve observes requests of fifty buckets.
func BenchmarkObserve(b *testing.B) {
	lim, _ := newLimiter(b, stint.NewMemStore())
	c := NewCollector(lim, false)
	var requests [50][]rules.Decision
	for i := range requests {
		requests[i] = allowed(perKey.Key(fmt.Sprint("id", i)))
	}
	i := 0
	for b.Loop() {
		c.Observe(requests[i%len(requests)])
		i++
	}
}
