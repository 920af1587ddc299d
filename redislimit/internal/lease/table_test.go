package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// The number of buckets with leases is bounded. The others are decided without
// leases. A request that was made with other limits has no lease.
func TestTableBounded(t *testing.T) {
	t.Parallel()
	limit := stint.PerHour(1000)
	table := NewTable(Config{MaxLease: time.Minute})
	since := new(script.Since)
	table.SetLimits(since, func(stint.Key) (stint.Limit, error) { return limit, nil })
	s := &table.shards[0]
	of := func(id string, since *script.Since) *bucket {
		return s.of(table, &script.Request{Bucket: stint.Name(1).Key(id), Limit: limit, Since: since}, 0)
	}
	for i := range 2 * maxBuckets {
		require.NotNil(t, of(fmt.Sprint(i), since), "a bucket without tokens makes space")
		require.LessOrEqual(t, len(s.buckets), maxBuckets)
	}
	for _, b := range s.buckets {
		b.busy = true
	}
	require.Nil(t, of("x", since))
	clear(s.buckets)
	require.Nil(t, of("x", new(script.Since)))
}
