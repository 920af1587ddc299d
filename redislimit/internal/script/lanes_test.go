package script

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// slowClient allows all, after a while, and notes the keys of each call.
type slowClient struct {
	Client
	takes   time.Duration
	refuses bool // calls with several keys
	mu      sync.Mutex
	calls   [][]string
}

func (c *slowClient) Eval(_ context.Context, _, _ string, keys, _ []string) (any, error) {
	c.mu.Lock()
	c.calls = append(c.calls, slices.Clone(keys))
	c.mu.Unlock()
	<-time.After(c.takes)
	if len(keys) > 1 && c.refuses {
		return nil, ServerError("TRYAGAIN")
	}
	return "1 0" + strings.Repeat(" 1 1 0 0 0 0 0", len(keys)), nil
}

// noted returns the keys of each call so far.
func (c *slowClient) noted() [][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// gate is a Gate of a server that may be away.
type gate struct{ away atomic.Bool }

func (g *gate) Away() bool { return g.away.Load() }
func (*gate) Ended(error)  {}

// busy is a Server that has as many calls under way as begin at once.
type busy struct {
	*Server
	client *slowClient
	gate   *gate
}

// run runs a trip whose caller has waited for something else before.
func (b *busy) run(key string, waited time.Duration) error {
	trip := &Trip{Op: Spend, Requests: []*Request{{Key: key}}, Gate: b.gate, Begun: time.Now().Add(-waited)}
	b.Run(trip)
	return trip.Err
}

// whileBusy calls f with a busy Server, whose calls take that long.
func whileBusy(t *testing.T, takes time.Duration, f func(*testing.T, *busy)) {
	synctest.Test(t, func(t *testing.T) {
		b := &busy{client: &slowClient{takes: takes}, gate: new(gate)}
		b.Server = NewServer(b.client, Config{Timeout: 100 * time.Millisecond, Plain: true, Note: func(error) {}})
		b.Pace = time.Hour // few callers begin no further call
		b.SetCluster(false)
		var running sync.WaitGroup
		for range MinCalls {
			running.Go(func() { b.run("a", 0) })
		}
		synctest.Wait()
		f(t, b)
		running.Wait()
	})
}

func TestLanes(t *testing.T) {
	t.Run("late trip leaves", func(t *testing.T) {
		whileBusy(t, 95*time.Millisecond, func(t *testing.T, b *busy) {
			require.ErrorIs(t, b.run("late", 10*time.Millisecond), ErrBusy)
			<-time.After(10 * time.Millisecond)
			synctest.Wait()
			in := b.lanes[laneOf{}]
			require.Zero(t, in.buckets)
			require.Zero(t, in.under)
		})
	})
	t.Run("order", func(t *testing.T) {
		whileBusy(t, 40*time.Millisecond, func(t *testing.T, b *busy) {
			go b.run("first", 0)
			synctest.Wait()
			b.Pace = 0 // the pause is over
			require.NoError(t, b.run("second", 0))
			require.Equal(t, []string{"first", "second"}, b.client.noted()[MinCalls])
		})
	})
	t.Run("two gates", func(t *testing.T) {
		whileBusy(t, 40*time.Millisecond, func(t *testing.T, b *busy) {
			go b.run("first", 0)
			synctest.Wait()
			b.gate = new(gate)
			require.NoError(t, b.run("second", 0))
			require.ElementsMatch(t, [][]string{{"first"}, {"second"}}, b.client.noted()[MinCalls:])
		})
	})
	t.Run("away", func(t *testing.T) {
		whileBusy(t, 40*time.Millisecond, func(t *testing.T, b *busy) {
			b.gate.away.Store(true)
			begun := time.Now()
			require.ErrorIs(t, b.run("b", 0), ErrNotYet)
			require.Equal(t, begun, time.Now(), "it does not wait for the calls under way")
		})
	})
	t.Run("away while it waits", func(t *testing.T) {
		whileBusy(t, 40*time.Millisecond, func(t *testing.T, b *busy) {
			time.AfterFunc(20*time.Millisecond, func() { b.gate.away.Store(true) })
			require.ErrorIs(t, b.run("b", 0), ErrNotYet)
			require.Len(t, b.client.noted(), MinCalls)
		})
	})
	t.Run("refused and late", func(t *testing.T) {
		whileBusy(t, 60*time.Millisecond, func(t *testing.T, b *busy) {
			b.client.refuses = true
			var other error
			go func() { other = b.run("first", 0) }()
			synctest.Wait()
			b.Pace = 0 // they share a call
			require.ErrorIs(t, b.run("second", 0), ErrBusy)
			synctest.Wait()
			require.ErrorIs(t, other, ErrBusy)
			require.Len(t, b.client.noted(), MinCalls+1, "there is no time for a call of each")
		})
	})
	t.Run("idle slot", func(t *testing.T) {
		whileBusy(t, 40*time.Millisecond, func(t *testing.T, b *busy) {
			b.SetCluster(true)
			require.NoError(t, b.run("a", 0))
			delete(b.lanes, laneOf{})
			require.Empty(t, b.lanes)
		})
	})
}
