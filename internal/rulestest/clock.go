package rulestest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/decidertest"
)

// RunMovedClock tests the rules of a door with a Limiter that moves all of its
// holds back, because the clock was 70 years ahead when they were saved.
func RunMovedClock(t *testing.T, door Door) {
	for name, k := range kinds {
		if k.cases != nil || k.shared {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := stint.NewMemStore()
			e := &env{TB: t, kind: k, door: door, subject: &decidertest.Subject{Name: "limiter"}}
			for _, want := range []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour} {
				lim, err := stint.New(store, k.limits(t), nil)
				require.NoError(t, err)
				e.lim = lim
				e.clock.Store(int64(lim.Now().Sub(start)))
				e.lockOut()(want)
				require.NoError(t, lim.Close())
				saveAhead(t, store, 70*365*24*time.Hour)
			}
		})
	}
}

// saveAhead gives a store what a Limiter whose clock was ahead would have saved.
func saveAhead(t *testing.T, store stint.Store, by time.Duration) {
	saved, err := store.Load(stint.Key{})
	require.NoError(t, err)
	changes := []stint.Change{{TAT: saved + int64(by)}}
	for name := range floor + 1 {
		for c, err := range store.All(name) {
			require.NoError(t, err)
			c.TAT += int64(by)
			changes = append(changes, c)
		}
	}
	require.NoError(t, store.Save(changes))
}
