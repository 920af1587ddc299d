package redislimit

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// evicting is a Client of nodes that have evicted keys.
type evicting struct {
	slow
	keys atomic.Pointer[map[string]int] // by node; if there is none, they are away
}

func (c *evicting) nodes(keys map[string]int) { c.keys.Store(&keys) }

func (c *evicting) IsCluster() bool { return false }

func (c *evicting) DoEach(ctx context.Context, args ...string) (replies []any, err error) {
	keys := *c.keys.Load()
	if len(keys) == 0 {
		return nil, ErrAway
	}
	for node, n := range keys {
		reply, err := c.slow.Do(ctx, args...)
		if err != nil {
			return nil, err
		}
		if args[0] == "INFO" {
			reply = fmt.Sprintf("redis_mode:standalone\r\nrun_id:%s\r\nevicted_keys:%d\r\n", node, n)
		}
		replies = append(replies, reply)
	}
	return replies, nil
}

// Health reports keys that were evicted since the last look, and none that were
// evicted before the node was first seen.
func TestEvictedKeys(t *testing.T) {
	t.Parallel()
	c := &evicting{}
	c.nodes(nil)
	l := newOn(t, c, testLimits(t, stint.PerHour(2)), Options{Now: newTestClock().now})
	require.True(t, l.isAway())
	c.nodes(map[string]int{"a": 5})
	l.comesBack(t)
	require.Nil(t, l.evicts.Load())
	for i, at := range []struct {
		keys map[string]int
		says string // "": nothing
	}{
		{map[string]int{"a": 5}, ""},
		{map[string]int{"a": 7}, "2 keys evicted"},
		{map[string]int{"a": 7}, ""},
		{map[string]int{"a": 7, "b": 100}, ""},
		{map[string]int{"b": 100}, ""},
		{map[string]int{"a": 8, "b": 103}, "4 keys evicted"},
		{map[string]int{"a": 0, "b": 103}, ""}, // after CONFIG RESETSTAT
		{map[string]int{"a": 1, "b": 103}, "1 keys evicted"},
	} {
		c.nodes(at.keys)
		require.NoError(t, l.look())
		f := l.evicts.Load()
		if at.says == "" {
			require.Nil(t, f, i)
			continue
		}
		require.NotNil(t, f, i)
		require.ErrorIs(t, f.err, ErrEvicts)
		require.ErrorContains(t, f.err, at.says)
	}
}

// A server that is so far away that Open's questions take longer than one Timeout
// together is not away, although it does not know the script yet, and its clock is
// compared.
func TestOpenFarAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &farAway{modelServer: newModelServer(70 * time.Millisecond)}
		l := newOn(t, c, testLimits(t, stint.PerHour(20)), Options{Timeout: 100 * time.Millisecond})
		require.Zero(t, l.Stats().Outages)
		require.ErrorIs(t, l.Health(), ErrClock)
		require.NoError(t, l.Close())

		c.refuses = true
		_, err := New(c, testLimits(t, stint.PerHour(20)), &Options{Timeout: 100 * time.Millisecond})
		require.ErrorContains(t, err, "NOPERM")
		require.NotErrorIs(t, err, ErrAway)
	})
}

// farAway takes a round trip for every question. Its clock is an hour behind.
type farAway struct {
	*modelServer
	knows   bool // the script
	refuses bool // scripts
}

func (c *farAway) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	if c.refuses {
		return after(ctx, c.trip, nil, ServerError("NOPERM this user has no permissions to run the 'evalsha' command"))
	}
	if !c.knows {
		c.knows = true
		return after(ctx, c.trip, nil, ServerError("NOSCRIPT No matching script."))
	}
	return c.modelServer.Eval(ctx, command, text, keys, args)
}

func (c *farAway) Do(ctx context.Context, args ...string) (any, error) {
	reply, err := c.modelServer.Do(ctx, args...)
	if args[0] == "TIME" {
		reply = []any{strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10), "0"}
	}
	return after(ctx, c.trip, reply, err)
}
