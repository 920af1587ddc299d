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

// A grant that was asked for before a Drop is not used after it: the bucket may be held.
func TestDropDuringQuestion(t *testing.T) {
	t.Parallel()
	limit, key, since := stint.PerHour(1000), stint.Name(1).Key("a"), new(script.Since)
	asked, answer := make(chan bool), make(chan bool)
	table := NewTable(Config{
		MaxLease: time.Minute, Timeout: time.Hour, Elapsed: func() int64 { return 0 }, Away: func(stint.Key) bool { return false },
		Begin: func(f func()) bool { go f(); return true },
		Lease: func(rs []*script.LeaseRequest) error {
			close(asked)
			<-answer
			rs[0].Granted = 100 * int64(limit.Interval())
			return nil
		},
	})
	table.SetLimits(since, func(stint.Key) (stint.Limit, error) { return limit, nil })
	spend := func() bool {
		done, _, err := table.Spend(&script.Request{Bucket: key, Limit: limit, Since: since, Cost: 1})
		require.NoError(t, err)
		return done
	}
	for range minDemands - 1 {
		require.False(t, spend())
	}
	waiting := make(chan bool)
	go func() { waiting <- spend() }()
	<-asked
	table.Drop(key, false)
	close(answer)
	require.True(t, <-waiting)
	require.False(t, spend())
}
