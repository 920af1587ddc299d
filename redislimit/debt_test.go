package redislimit

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// owing returns a Limiter at a server of its own that owes three tokens of a
// bucket of eight.
func owing(t *testing.T, opts Options) (*Limiter, line, *server) {
	t.Helper()
	s := startServer(t)
	c := newLine()
	c.rueidisClient = clientAt(t, s.url, 20*time.Second)
	opts.RepeatDenials = -1
	l := newOn(t, c, testLimits(t, stint.PerHour(8)), opts)
	c.fail(errCut)
	l.spend(t, perID.Key("a"), 3)
	return l, c, s
}

// If the server refuses a charge, it stays away, Health says why, and the debt is
// charged when the reason is gone.
func TestChargeRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse, allow []string
		says          string
	}{
		"full memory": {[]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}, "OOM"},
		"permission": {[]string{"ACL", "SETUSER", "default", "-evalsha"}, []string{"ACL", "SETUSER", "default", "+evalsha"},
			"NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := newTestClock()
			l, line, s := owing(t, Options{Nodes: 2, Now: clock.now})
			s.cli(c.refuse...)
			line.mend()
			eventually(t, "the charge is refused", func() bool {
				f := l.failing.Load()
				return f != nil && strings.Contains(f.err.Error(), c.says)
			})
			require.True(t, l.isAway())
			require.Zero(t, l.Stats().Charged)
			s.cli(c.allow...)
			l.comesBack(t)
			require.EqualValues(t, 5, l.left(t, perID.Key("a")))
			require.EqualValues(t, 1, l.Stats().Charged)
		})
	}
}

// Debts of a process that has ended are charged when the next one is opened, once, and
// are worth the same if it is one of another number of machines.
func TestDebtsOfOtherNodes(t *testing.T) {
	t.Parallel()
	for _, nodes := range [][2]int{{2, 8}, {8, 2}, {4, 4}} {
		limits := testLimits(t, stint.PerHour(800))
		opts, _ := filed(t, nodes[0])
		c := newLine()
		l := c.node(t, limits, opts)
		c.fail(errCut)
		for i := range 20 {
			l.spend(t, perID.Key(strconv.Itoa(i)), int64(1+i*4))
		}
		require.NoError(t, l.Close())
		opts.Nodes = nodes[1]
		for range 3 { // while the server is away, when it is back, and after it was charged
			l = c.node(t, limits, opts)
			if c.cut.Load() != nil {
				require.NoError(t, l.Close())
				c.mend()
				continue
			}
			require.False(t, l.isAway())
			for i := range 20 {
				require.EqualValues(t, 800-(1+i*4), l.left(t, perID.Key(strconv.Itoa(i))), nodes)
			}
			require.NoError(t, l.Close())
		}
	}
}

// A whole share of few machines is charged in full by one of many, to which it is
// more than a share, also if the process starts again before the server is back.
func TestDebtsOfFewerNodes(t *testing.T) {
	t.Parallel()
	limit := stint.Limit{Burst: 400, Count: 1, Period: time.Hour}
	for _, nodes := range [][]int{{2, 8}, {2, 8, 8}, {8, 2, 8}, {2, 8, 4}, {1, 300, 300, 3}} {
		for _, back := range []string{"before Open", "after Open", "after SetLimits", "after a decision"} {
			t.Run(fmt.Sprint(nodes, back), func(t *testing.T) {
				t.Parallel()
				opts, _ := filed(t, nodes[0])
				c := newLine()
				l := c.node(t, testLimits(t, limit), opts)
				spend := func(cost int64) bool { return l.spend(t, perID.Key("a"), cost).Allowed }
				require.True(t, spend(1))
				c.fail(errCut)
				share := 400 / int64(nodes[0])
				require.True(t, spend(share-1))
				for i, of := range nodes[1:] {
					require.NoError(t, l.Close())
					if back == "before Open" && i == len(nodes)-2 {
						c.mend()
					}
					opts.Nodes = of
					l = c.node(t, testLimits(t, limit), opts)
				}
				switch back {
				case "after SetLimits":
					require.NoError(t, l.SetLimits(testLimits(t, limit)))
				case "after a decision":
					require.False(t, spend(1))
				}
				if c.cut.Load() != nil {
					c.mend()
					l.comesBack(t)
				}
				require.EqualValues(t, 400-share, l.left(t, perID.Key("a")))
			})
		}
	}
}

// hourly returns limits of 800 per hour on the Names.
func hourly(t *testing.T, names ...stint.Name) *stint.Limits {
	t.Helper()
	declared := stint.Names{}
	for _, name := range names {
		declared[name] = stint.NameSpec{Label: testNames[name].Label, Limit: stint.PerHour(800)}
	}
	limits, err := stint.NewLimits(declared)
	require.NoError(t, err)
	return limits
}

// oweOnBoth makes debts on ten ids of perID and of other, while the server is
// away, in a process of its own.
func (c line) oweOnBoth(t *testing.T, opts Options) {
	t.Helper()
	l := c.node(t, hourly(t, perID, other), opts)
	c.fail(errCut)
	for i := range 10 {
		for _, name := range []stint.Name{perID, other} {
			require.True(t, l.spend(t, name.Key(strconv.Itoa(i)), int64(1+i*4)).Allowed)
		}
	}
	require.NoError(t, l.Close())
}

// isChargedFor requires that the server was charged what oweOnBoth spent on a
// Name.
func (l *Limiter) isChargedFor(t *testing.T, name stint.Name) {
	t.Helper()
	for i := range 10 {
		require.EqualValues(t, 800-(1+i*4), l.left(t, name.Key(strconv.Itoa(i))), "%s:%d", testNames[name].Label, i)
	}
}

// makeOlder gives the file at Options.Local a record of Nodes for all Names
// together, as older versions made it, in place of those of perID and other.
func (o *Options) makeOlder(t *testing.T) {
	t.Helper()
	const nodesName stint.Name = 0x8000
	store, err := stint.OpenBolt(o.Local, nil, nil)
	require.NoError(t, err)
	var changes []stint.Change
	for _, name := range []stint.Name{perID, other} {
		key := nodesName.Key(strconv.Itoa(int(name)))
		tat, err := store.Load(key)
		require.NoError(t, err)
		require.EqualValues(t, o.Nodes, uint32(tat))
		changes = append(changes, stint.Change{Key: key})
	}
	tat := o.Now().AddDate(50, 0, 0).UnixNano()>>32<<32 | int64(o.Nodes)
	require.NoError(t, store.Save(append(changes, stint.Change{Key: nodesName.Key(""), TAT: tat})))
	require.NoError(t, store.Close())
}

// Debts of a Name that only a later SetLimits declares are worth the same with
// another number of machines, and are charged.
func TestDebtsOfNamesDeclaredLater(t *testing.T) {
	t.Parallel()
	for _, nodes := range [][]int{{2, 8}, {8, 2}, {4, 4}} {
		for _, back := range []string{"before Open", "after Open", "after SetLimits"} {
			t.Run(fmt.Sprintf("%d and %d machines, back %s", nodes[0], nodes[1], back), func(t *testing.T) {
				t.Parallel()
				opts, _ := filed(t, nodes[0])
				c := newLine()
				c.oweOnBoth(t, opts)
				opts.Nodes = nodes[1]
				if back == "before Open" {
					c.mend()
				}
				l := c.node(t, hourly(t, perID), opts)
				if back == "after Open" {
					c.mend()
					l.comesBack(t)
				}
				aways := l.node.Aways.Load()
				require.NoError(t, l.SetLimits(hourly(t, perID, other)))
				if back == "after SetLimits" {
					c.mend()
					l.comesBack(t)
				}
				l.isChargedFor(t, perID)
				l.isChargedFor(t, other)
				require.NoError(t, l.SetLimits(hourly(t, perID)))
				require.NoError(t, l.SetLimits(hourly(t, perID, other)))
				l.isChargedFor(t, other)
				require.EqualValues(t, 20, l.Stats().Charged, "each once")
				require.Equal(t, aways, l.node.Aways.Load(), "a charge is no outage")
			})
		}
	}
}

// Debts of a Name keep their worth over a process that does not declare it.
func TestDebtsOfNamesDeclaredByALaterProcess(t *testing.T) {
	t.Parallel()
	for _, nodes := range [][]int{{2, 8, 8}, {8, 2, 2}, {2, 8, 4}, {8, 2, 4}, {2, 8, 2}} {
		for _, older := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, older file %v", nodes, older), func(t *testing.T) {
				t.Parallel()
				opts, _ := filed(t, nodes[0])
				c := newLine()
				c.oweOnBoth(t, opts)
				if older {
					opts.makeOlder(t)
				}
				opts.Nodes = nodes[1]
				require.NoError(t, c.node(t, hourly(t, perID), opts).Close())
				c.mend()
				opts.Nodes = nodes[2]
				l := c.node(t, hourly(t, perID, other), opts)
				l.isChargedFor(t, perID)
				l.isChargedFor(t, other)
			})
		}
	}
}

// While debts of a file cannot be read, the server stays away.
func TestDebtsUnreadable(t *testing.T) {
	t.Parallel()
	opts, _ := filed(t, 2)
	c := newLine()
	l := c.node(t, testLimits(t, stint.PerHour(8)), opts)
	c.fail(errCut)
	l.spend(t, perID.Key("a"), 3)
	require.NoError(t, l.node.Local.Flush())
	file := l.node.Local
	store := &unreadable{Store: stint.NewMemStore()}
	broken, err := stint.New(store, file.Limits(), nil)
	require.NoError(t, err)
	store.broken.Store(true)
	l.node.Local = broken
	c.mend()
	eventually(t, "the debts cannot be read", func() bool {
		f := l.failing.Load()
		return f != nil && strings.Contains(f.err.Error(), "cannot be read")
	})
	require.True(t, l.isAway())
	l.node.Local = file
	l.comesBack(t)
	require.EqualValues(t, 5, l.left(t, perID.Key("a")))
	require.NoError(t, broken.Close())
}

// unreadable is a Store that cannot be read.
type unreadable struct {
	stint.Store
	broken atomic.Bool
}

func (s *unreadable) All(name stint.Name) iter.Seq2[stint.Change, error] {
	if !s.broken.Load() {
		return s.Store.All(name)
	}
	return func(yield func(stint.Change, error) bool) { yield(stint.Change{}, os.ErrInvalid) }
}

// late is a line whose charges take longer than Timeout.
type late struct {
	line
	charges atomic.Int64
	takes   time.Duration
}

func (c *late) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	reply, err := c.line.Eval(context.Background(), command, text, keys, args)
	if err == nil && len(args) > 2 && args[2][0] == 'd' {
		c.charges.Add(int64(len(keys)))
		select {
		case <-time.After(c.takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return reply, err
}

// A charge whose answer comes after Timeout is made once.
func TestLateCharges(t *testing.T) {
	t.Parallel()
	s, prefix := commonServer(t)
	clock := newTestClock()
	c := &late{line: newLine(), takes: 300 * time.Millisecond}
	c.rueidisClient = clientAt(t, s.url, time.Second)
	l := newOn(t, c, testLimits(t, stint.PerHour(80)),
		Options{Timeout: 200 * time.Millisecond, Prefix: prefix, Nodes: 2, Now: clock.now, RepeatDenials: -1})
	c.fail(errCut)
	for i := range 10 {
		l.spend(t, perID.Key(strconv.Itoa(i)), 3)
	}
	c.mend()
	l.comesBack(t)
	require.EqualValues(t, 10, c.charges.Load())
	for i := range 10 {
		eventually(t, "the bucket is read", func() bool {
			b, err := l.Bucket(perID.Key(strconv.Itoa(i)))
			return err == nil && b.Remaining == 77
		})
	}
}

// A decision that too few replicas have was made all the same, so this machine has
// seen the bucket.
func TestSeenAfterNotDurable(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	l, _ := newAway(t, stint.PerHour(8), Options{Nodes: 2, Now: clock.now, RepeatDenials: -1, Durability: stint.Synced})
	l.server.Timeout = time.Second // there is no replica to wait for
	require.ErrorIs(t, errorOf(l.Spend(perID.Key("a"), 4)), stint.ErrNotDurable)
	tat, err := l.node.TAT(perID.Key("a"))
	require.NoError(t, err)
	require.Equal(t, clock.now().Add(time.Hour/2).UnixNano(), tat)
}

// At Open, too, a charge whose answer comes after Timeout is made once.
func TestLateChargesAtOpen(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	opts := Options{Nodes: 2, Now: clock.now, Local: filepath.Join(t.TempDir(), "local.db"), RepeatDenials: -1}
	s, prefix := commonServer(t)
	opts.Prefix = prefix
	cut, limits := newLine(), testLimits(t, stint.PerHour(80))
	l := cut.node(t, limits, opts)
	cut.fail(errCut)
	for i := range 10 {
		l.spend(t, perID.Key(strconv.Itoa(i)), 3)
	}
	require.NoError(t, l.Close())
	cut.mend()
	c := &late{line: cut, takes: 300 * time.Millisecond}
	c.rueidisClient = clientAt(t, s.url, time.Second)
	opts.Timeout = 200 * time.Millisecond
	l = newOn(t, c, limits, opts)
	l.comesBack(t)
	require.EqualValues(t, 10, c.charges.Load())
	require.EqualValues(t, 10, l.Stats().Charged)
}
