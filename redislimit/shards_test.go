package redislimit

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// If a shard of a cluster stops, that shard is away and the others are not. For
// a request over several shards, Options.Away decides the part of the stopped one.
func TestShardAway(t *testing.T) {
	if !testlength.Long {
		t.Skip("skipped, because time-outs of 3 seconds take time; -tags long runs it")
	}
	t.Parallel()
	nodes := startCluster(t)
	for _, n := range nodes {
		n.cli("CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	limit := stint.Limit{Burst: 100, Count: 1, Period: time.Hour}
	l := openAt(t, urlOf(nodes), testLimits(t, limit), Options{Timeout: 3 * time.Second, Away: own(t, limit.DividedBy(2), nil), RepeatDenials: -1})
	a, b := perID.Key("a"), perID.Key("b")
	of := func(key stint.Key) *away.Outage { return l.watch.Of(key) }
	require.NotSame(t, of(a), of(b))
	require.NotSame(t, l.watch.Whole, of(a))
	both := []stint.Request{{Key: a, Cost: 2}, {Key: b, Cost: 2}}
	require.Equal(t, int64(98), l.spendAll(t, both...).Remaining)

	owner := min(int(script.Slot(l.opts.keyOf(a)))/5461, 2)
	stopped := []node{nodes[owner], nodes[owner+3]}
	for _, n := range stopped {
		require.NoError(t, n.cmd.Process.Signal(syscall.SIGSTOP))
	}
	eventually(t, "the shard is away", func() bool {
		l.Check(a, 1)
		return of(a).Away()
	})
	require.ErrorIs(t, l.Health(), ErrAway)
	before := l.left(t, b)
	d := l.spendAll(t, both...)
	require.True(t, d.Allowed)
	require.Equal(t, int64(48), d.Remaining, "of 50, and 2 are spent")
	require.Equal(t, a, d.Key)
	require.Equal(t, before-2, l.left(t, b), "the other shard knows")
	l.spend(t, b, before-2)
	d = l.spendAll(t, both...)
	require.False(t, d.Allowed)
	require.Equal(t, b, d.Key)
	eventually(t, "what Options.Away spent is returned", func() bool { return l.left(t, a) == 48 })
	require.False(t, of(b).Away())
	// The replica stays stopped: it would take over.
	require.NoError(t, stopped[0].cmd.Process.Signal(syscall.SIGCONT))
	eventually(t, "the shard is back", func() bool { return !of(a).Away() })
	eventually(t, "it has spent what it decided", func() bool {
		bucket, err := l.Bucket(a)
		return err == nil && bucket.Limit == limit && bucket.Remaining == 98
	})
}
