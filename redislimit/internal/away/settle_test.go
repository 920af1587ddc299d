package away

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// fakeServer charges what it is told to, and notes it.
type fakeServer struct {
	now     time.Time
	charged map[string]int64 // nanoseconds, by the name of the key
	refuses error
	during  func(trips []*script.Trip) // called by Charge
	yields  bool                       // other goroutines run whenever the time is read
}

func (s *fakeServer) Time() time.Time {
	if s.yields {
		for range rand.IntN(8) {
			runtime.Gosched()
		}
	}
	return s.now
}

func (s *fakeServer) IsCluster() bool                 { return false }
func (s *fakeServer) Shards() (*[16384]string, error) { return nil, script.ErrAway }
func (s *fakeServer) Probe(string) error              { return nil }
func (s *fakeServer) Charge(trips []*script.Trip, _ time.Duration) {
	if s.during != nil {
		s.during(trips)
	}
	for _, t := range trips {
		if t.Err = s.refuses; t.Err == nil {
			r := t.Requests[0]
			s.charged[r.Key] += r.Need
			r.TAT = s.now.UnixNano() + s.charged[r.Key]
		}
	}
}

func newNode(t *testing.T) (*Node, *fakeServer) {
	s := &fakeServer{now: time.Unix(1_700_000_000, 0), charged: make(map[string]int64)}
	n := s.open(t, "", 2, perID)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n, s
}

// open returns a Node whose server is away.
func (s *fakeServer) open(t *testing.T, file string, nodes int, names ...stint.Name) *Node {
	t.Helper()
	n, err := Open(Config{Server: s, Learn: func() error { return nil }, Nodes: nodes,
		Shares: func(stint.Name) bool { return true }, Decides: true,
		Level: stint.Flushed, Local: file, Timeout: time.Minute, Now: s.Time, Prefix: "test",
		Elapsed: func() int64 { return s.Time().UnixNano() },
		Name:    stint.Key.String, Limit: func(stint.Key) stint.Limit { return stint.PerHour(8) },
		Loaded: func() *script.Since { return new(script.Since) },
		Begin:  func(func()) bool { return true }, Closing: make(chan struct{}), Tell: func(error, time.Time) {},
		Note: func(error) {}}, labeled(names...))
	require.NoError(t, err)
	n.Whole.Begin(script.ErrAway)
	return n
}

func labeled(names ...stint.Name) stint.Names {
	all := stint.Names{}
	for _, name := range names {
		all[name] = stint.NameSpec{Label: fmt.Sprint("name", name)}
	}
	return all
}

func spend(key stint.Key, cost int64, limit stint.Limit) *script.Request {
	interval, tolerance := int64(limit.Interval()), int64(limit.Tolerance())
	return &script.Request{Bucket: key, Cost: cost, Limit: limit, Interval: interval, Need: cost * interval,
		Tolerance: tolerance, Most: tolerance}
}

func (n *Node) spend(t *testing.T, id string, cost int64) *script.Request {
	t.Helper()
	return n.spendOn(t, perID.Key(id), cost)
}

func (n *Node) spendOn(t *testing.T, key stint.Key, cost int64) *script.Request {
	t.Helper()
	p := spend(key, cost, stint.PerHour(8))
	p.Now = n.Server.Time().UnixNano()
	var err error
	was, late := n.While(n.Whole, time.Now().Add(time.Minute), func() {
		err = n.Decide(n.Whole, script.Spend, []*script.Request{p})
	})
	require.True(t, was)
	require.NoError(t, late)
	require.NoError(t, err)
	require.True(t, p.Wait == 0)
	return p
}

func (n *Node) owes(t *testing.T, id string) time.Duration {
	t.Helper()
	d, err := n.debt(perID.Key(id))
	require.NoError(t, err)
	return time.Duration(d.at(n.now()))
}

// What this machine spent is undone here as long as the server does not know it,
// and then there.
func TestUndo(t *testing.T) {
	t.Parallel()
	n, s := newNode(t)
	a, b := n.spend(t, "a", 3), n.spend(t, "b", 3)
	require.Equal(t, 3*2*time.Hour/8, n.owes(t, "a"))
	require.True(t, n.Undo(a, true))
	require.Zero(t, n.owes(t, "a"))
	require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
	require.False(t, n.Whole.Away())
	require.Equal(t, map[string]int64{perID.Key("b").String(): int64(3 * time.Hour / 8)}, s.charged)
	require.False(t, n.Undo(b, true), "the server was charged")
	require.Zero(t, n.owes(t, "b"))
}

// A charge makes a bucket empty at most, also if there are more machines than
// tokens, or if the server's bucket was empty when it was last seen. Only a larger
// limit of the requests leaves it emptier.
func TestChargeToEmpty(t *testing.T) {
	t.Parallel()
	limit := stint.PerHour(8)
	large := stint.PerHour(8).WithBurst(64)
	for name, c := range map[string]struct {
		nodes int
		limit stint.Limit // of the request
		cost  int64
		seen  time.Duration // how far the seen bucket is ahead after it
		want  time.Duration
	}{
		"a share":                      {2, limit, 4, 0, time.Hour},
		"more machines than tokens":    {16, limit, 1, 0, time.Hour},
		"seen empty since":             {2, limit, 4, time.Hour, time.Hour},
		"a larger limit":               {2, large, 32, 0, 8 * time.Hour},
		"a larger limit, and not much": {2, large, 1, 4 * time.Hour, 4*time.Hour + time.Hour/4},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fakeServer{now: time.Unix(1_700_000_000, 0), charged: make(map[string]int64)}
			n := s.open(t, "", c.nodes, perID)
			defer func() { require.NoError(t, n.Close()) }()
			key, most := perID.Key("a"), int64(c.limit.Tolerance())
			p := spend(key, c.cost, c.limit)
			was, err := n.While(n.Whole, time.Now().Add(time.Minute), func() {
				require.NoError(t, n.Decide(n.Whole, script.Spend, []*script.Request{p}))
			})
			require.True(t, was && p.Wait == 0)
			require.NoError(t, err)
			n.SawTAT(key, s.now.Add(c.seen).UnixNano(), most)
			var got []*script.Trip
			s.during = func(debts []*script.Trip) { got = append(got, debts...) }
			require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
			require.Len(t, got, 1)
			require.Equal(t, c.want, time.Duration(got[0].Requests[0].Tolerance))
		})
	}
}

// clusterServer is a cluster whose slots have one primary.
type clusterServer struct {
	*fakeServer
	primary string
	asked   func() // called by Shards, before it answers
}

func (s *clusterServer) IsCluster() bool { return true }

func (s *clusterServer) Shards() (*[16384]string, error) {
	s.asked()
	ids := new([16384]string)
	for i := range ids {
		ids[i] = s.primary
	}
	return ids, nil
}

// If a shard goes away while the slots are read, and a replica has taken over by
// then, the shard stays away until it is charged.
func TestAwayWhileShardsAreRead(t *testing.T) {
	t.Parallel()
	n, s := newNode(t)
	cluster := &clusterServer{s, "first", func() {}}
	n.Config.Server = cluster
	require.True(t, n.LoadShards())
	key := perID.Key("a")
	o := n.Of(key)
	require.False(t, o.Away())
	cluster.primary, cluster.asked = "second", func() {
		o.Begin(script.ErrAway)
		p := spend(key, 2, stint.PerHour(8))
		was, err := n.While(o, time.Now().Add(time.Minute), func() {
			require.NoError(t, n.Decide(o, script.Spend, []*script.Request{p}))
		})
		require.True(t, was)
		require.NoError(t, err)
	}
	require.True(t, n.LoadShards())
	require.Same(t, o, n.Of(key))
	require.True(t, o.Away())
	cluster.asked = func() {}
	require.NoError(t, o.back())
	require.Equal(t, map[string]int64{key.String(): int64(2 * time.Hour / 8)}, s.charged)
	require.NotSame(t, o, n.Of(key), "the slots are read again when no shard is away")
}

// While debts are charged, what this machine spent cannot be undone here, because the
// charge includes it.
func TestUndoWhileCharged(t *testing.T) {
	t.Parallel()
	n, s := newNode(t)
	a, b := n.spend(t, "a", 1), (*script.Request)(nil)
	passes := 0
	undone := make(chan bool, 2)
	s.during = func([]*script.Trip) {
		if passes++; passes == 1 {
			b = n.spend(t, "b", 2)
			go func() { undone <- n.Undo(a, true) }()
			return
		}
		require.NotNil(t, n.Whole.charging)
		require.False(t, n.Undo(b, false))
		go func() { undone <- n.Undo(b, true) }()
	}
	require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
	require.Equal(t, 2, passes)
	for range passes {
		require.False(t, <-undone)
	}
	require.Equal(t, int64(2*time.Hour/8), s.charged[perID.Key("b").String()])
}

// Decisions, their undoing and answers of the server at the same time leave a debt
// of exactly what was not undone.
func TestUndoTogether(t *testing.T) {
	t.Parallel()
	limit, key := stint.PerHour(1_000_000), perID.Key("a")
	for range 4 {
		n, s := newNode(t)
		s.yields = true
		var running sync.WaitGroup
		var spent atomic.Int64
		for range 4 {
			running.Go(func() {
				for i := range 2000 {
					p := spend(key, 1, limit)
					p.Now = s.now.UnixNano()
					var err error
					n.While(n.Whole, time.Now().Add(time.Minute), func() {
						err = n.Decide(n.Whole, script.Spend, []*script.Request{p})
					})
					if err != nil {
						t.Error(err)
						return
					}
					if i%4 == 0 || !n.Undo(p, true) {
						spent.Add(1)
					}
				}
			})
		}
		running.Go(func() {
			for i := range 2000 {
				n.SawTAT(key, s.now.UnixNano()+int64(i)*int64(limit.Interval()), int64(limit.Tolerance()))
			}
		})
		running.Wait()
		require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
		require.Equal(t, spent.Load(), s.charged[key.String()]/int64(limit.Interval()))
	}
}

// Decisions wait for the last few debts only, and not for as long as a charge may
// take.
func TestSettleGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, s := newNode(t)
		n.Timeout = 100 * time.Millisecond
		n.spend(t, "a", 1)
		var running sync.WaitGroup
		waits := 0
		s.during = func(debts []*script.Trip) {
			n.mu.RLock()
			charging := n.Whole.charging
			n.mu.RUnlock()
			if charging == nil { // decisions go on, and make many debts
				for i := range lastDebts {
					n.spend(t, fmt.Sprint(len(debts), " ", i), 1)
				}
				if len(debts) == 1 {
					n.spend(t, "and one more", 1)
				}
				return
			}
			if len(debts) > lastDebts {
				t.Error("decisions wait for", len(debts), "debts")
			}
			if waits++; waits > 1 {
				return
			}
			running.Go(func() {
				begin := time.Now()
				n.spend(t, "b", 1)
				if waited := time.Since(begin); waited != n.Timeout/4 {
					t.Error("a decision waited for", waited)
				}
			})
			<-time.After(time.Second)
		}
		require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
		running.Wait()
		require.Equal(t, 2, waits)
		require.False(t, n.Whole.Away())
		require.Equal(t, int64(time.Hour/8), s.charged[perID.Key("b").String()])
		require.Equal(t, 3+2*lastDebts, len(s.charged))
	})
}

// Decisions that are made while debts are charged are charged, too, each once.
func TestSettle(t *testing.T) {
	t.Parallel()
	n, s := newNode(t)
	for i := range 5000 {
		n.spend(t, fmt.Sprint(i), 1)
	}
	passes := 0
	s.during = func([]*script.Trip) {
		if passes++; passes <= 3 { // the first pass is in chunks
			n.spend(t, fmt.Sprint(passes), 1)
			n.spend(t, fmt.Sprint("new", passes), 1)
		}
	}
	require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
	require.False(t, n.Whole.Away())
	require.Len(t, s.charged, 5003)
	for key, charged := range s.charged {
		want := time.Hour / 8
		if slices.Contains([]string{"1:1", "1:2", "1:3"}, key) {
			want *= 2
		}
		require.Equal(t, want, time.Duration(charged), key)
	}
}

// A debt that the server refuses stays, unless its key is not a bucket.
func TestSettleRefused(t *testing.T) {
	t.Parallel()
	n, s := newNode(t)
	n.spend(t, "a", 2)
	s.refuses = script.ServerError("OOM command not allowed")
	for range 3 {
		require.ErrorIs(t, n.Whole.settle(time.Minute, n.Whole.end), s.refuses)
		require.True(t, n.Whole.Away())
		require.Positive(t, n.owes(t, "a"))
		require.Zero(t, n.Charged.Load())
	}
	s.refuses = script.WrongKey{Key: "a", Why: "is no string"}
	require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
	require.False(t, n.Whole.Away())
	require.Zero(t, n.owes(t, "a"))
}

// Debts of a Name that is declared while others are charged are charged, too,
// before the time away ends.
func TestDeclareWhileCharged(t *testing.T) {
	t.Parallel()
	const later stint.Name = 2
	for pass, when := range []string{"in a pass over all", "while decisions wait"} {
		for _, nodes := range []int{2, 8, 1} {
			t.Run(fmt.Sprintf("%s, %d machines", when, nodes), func(t *testing.T) {
				t.Parallel()
				s := &fakeServer{now: time.Unix(1_700_000_000, 0), charged: make(map[string]int64)}
				file := filepath.Join(t.TempDir(), "local.db")
				n := s.open(t, file, 2, perID, later)
				for i := range 2 * lastDebts {
					n.spend(t, fmt.Sprint(i), 1)
					n.spendOn(t, later.Key(fmt.Sprint(i)), 1)
				}
				require.NoError(t, n.Close())
				n = s.open(t, file, nodes, perID)
				passes := 0
				s.during = func([]*script.Trip) {
					if passes == 0 {
						n.spend(t, "one more", 1)
					}
					if passes == pass {
						if err := n.Declare(labeled(perID, later), func() {}); err != nil {
							t.Error(err)
						}
					}
					passes++
				}
				require.NoError(t, n.Whole.settle(time.Minute, n.Whole.end))
				require.False(t, n.Whole.Away())
				require.Len(t, s.charged, 4*lastDebts+1)
				for key, charged := range s.charged {
					require.Equal(t, time.Hour/8, time.Duration(charged), key)
				}
				require.NoError(t, n.Close())
			})
		}
	}
}
