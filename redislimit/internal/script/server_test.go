package script

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTime: whenever this process is stopped during a call, the server's time, as
// this machine knows it, may be late, and is never ahead.
func TestTime(t *testing.T) {
	const stop = 3 * time.Second
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			truth := func() time.Time { return time.Now().Add(ahead) }
			s := NewServer(nil, Config{})
			call := func(before, after time.Duration) {
				sent := time.Now()
				<-time.After(before)
				now := truth().UnixNano()
				<-time.After(after)
				s.sawTime(now, sent)
				require.LessOrEqual(t, s.Time(), truth())
				require.GreaterOrEqual(t, s.Time(), truth().Add(-before-after))
			}
			call(stop, 2*stop)
			call(0, stop)
			call(stop, time.Millisecond)
			require.Equal(t, truth().Add(-time.Millisecond), s.Time(), "the least delay counts")
			call(time.Millisecond, stop)
			require.Equal(t, truth().Add(-time.Millisecond), s.Time())
			ahead -= time.Minute // the server's clock is set back
			call(time.Millisecond, time.Millisecond)
			ahead += time.Hour
			call(time.Millisecond, time.Millisecond)
		})
	}
}

// stoppingClient tells the time, and is stopped before and after.
type stoppingClient struct {
	Client
	ahead         time.Duration
	before, after time.Duration
}

func (c stoppingClient) Do(context.Context, ...string) (any, error) {
	<-time.After(c.before)
	now := time.Now().Add(c.ahead).UnixMicro()
	<-time.After(c.after)
	return []any{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)}, nil
}

// TestClockAhead: a pause during the question is no difference between clocks.
func TestClockAhead(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour} {
		for _, stop := range [][2]time.Duration{{0, 0}, {time.Minute, 0}, {0, time.Minute}} {
			synctest.Test(t, func(t *testing.T) {
				s := NewServer(stoppingClient{nil, ahead, stop[0], stop[1]}, Config{})
				got, err := s.ClockAhead()
				require.NoError(t, err)
				require.LessOrEqual(t, got, ahead)
				require.GreaterOrEqual(t, got, min(ahead, max(0, ahead-time.Minute)))
				require.LessOrEqual(t, s.Time(), time.Now().Add(ahead))
			})
		}
	}
}

// foreignClient has values that are not buckets.
type foreignClient struct{ Client }

func (foreignClient) Eval(context.Context, string, string, []string, []string) (any, error) {
	return strconv.FormatInt(time.Now().Unix(), 10) + " 0 V1", nil
}

// TestTimeBesideForeignKey: a reply tells the time, also if no key of it is a bucket.
func TestTimeBesideForeignKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(foreignClient{}, Config{Plain: true})
		trip := &Trip{Op: Spend, Requests: []*Request{{Key: "a"}}}
		require.NoError(t, s.Call(t.Context(), []*Trip{trip}))
		require.ErrorAs(t, trip.Err, new(WrongKey))
		require.Equal(t, time.Now(), s.Time())
	})
}

// waitClient notes how long it is to wait for replicas.
type waitClient struct {
	Client
	timeout time.Duration
}

func (c *waitClient) EvalWait(_ context.Context, _, _ string, _, _ []string, _ int, timeout time.Duration) (any, int, error) {
	c.timeout = timeout
	return nil, 0, nil
}

// TestWaitEnds: WAIT counts milliseconds, and 0 means for ever. However little time a
// synced call has left, it asks for a millisecond at least.
func TestWaitEnds(t *testing.T) {
	for _, left := range []time.Duration{time.Hour, 2 * time.Millisecond, time.Millisecond, 0, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c := &waitClient{}
			ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(left))
			defer cancel()
			_, _, err := NewServer(c, Config{}).Eval(ctx, Decisions, []string{"a"}, nil, 1)
			require.NoError(t, err)
			require.Equal(t, max(time.Millisecond, left/2), c.timeout)
		})
	}
}

// clusterClient may know that its server is a cluster.
type clusterClient struct {
	Client
	is   bool
	info string
}

func (c clusterClient) IsCluster() bool { return c.is }

func (c clusterClient) DoEach(context.Context, ...string) ([]any, error) { return []any{c.info}, nil }

// TestClientKnowsCluster: if the Client says that the server is a cluster, it is one,
// whatever INFO says. Otherwise INFO decides.
func TestClientKnowsCluster(t *testing.T) {
	for info, says := range map[string]bool{"": false, "cluster_enabled:0\r\n": false, "cluster_enabled:1\r\n": true} {
		for _, is := range []bool{false, true} {
			s := NewServer(clusterClient{is: is, info: info}, Config{})
			_, err := s.Info()
			require.NoError(t, err)
			require.Equal(t, is || says, s.IsCluster(), "%q, and the Client says %v", info, is)
		}
	}
}
