package away

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// fakeServer charges what it is told to, and notes it.
type fakeServer struct {
	now     time.Time
	charged map[stint.Key]int64 // nanoseconds
	refuses error
	during  func() // called by Charge
}

func (s *fakeServer) Time() time.Time                 { return s.now }
func (s *fakeServer) Learn() error                    { return nil }
func (s *fakeServer) IsCluster() bool                 { return false }
func (s *fakeServer) Shards() (*[16384]string, error) { return nil, script.ErrAway }
func (s *fakeServer) Probe(string) error              { return nil }
func (s *fakeServer) Charge(debts []Debt, _ time.Duration) {
	if s.during != nil {
		s.during()
	}
	for i := range debts {
		d := &debts[i]
		if d.Err = s.refuses; d.Err == nil {
			s.charged[d.Key] += d.Need
			d.TAT = s.now.UnixNano() + s.charged[d.Key]
		}
	}
}

func newNode(t *testing.T) (*Node, *fakeServer) {
	s := &fakeServer{now: time.Unix(1_700_000_000, 0), charged: make(map[stint.Key]int64)}
	n, err := Open(Config{Server: s, Nodes: 2, Shares: func(stint.Name) bool { return true }, Decides: true,
		Level: stint.Flushed, Timeout: time.Minute, Now: s.Time, Prefix: "test",
		Name: stint.Key.String, Limit: func(stint.Key) stint.Limit { return stint.PerHour(8) },
		Begin: func(func()) bool { return true }, Closing: make(chan struct{}), Tell: func(error, time.Time) {},
		Note: func(error) {}}, stint.Names{perID: {Label: "perID"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	n.Whole().Begin(script.ErrAway)
	return n, s
}

func (n *Node) spend(t *testing.T, id string, cost int64) *Part {
	t.Helper()
	p := &Part{Request: stint.Request{Key: perID.Key(id), Cost: cost, Limit: stint.PerHour(8)},
		Most: int64(stint.PerHour(8).Tolerance())}
	var err error
	was, late := n.While(n.Whole(), time.Now().Add(time.Minute), func() { err = n.Decide(n.Whole(), script.Spend, []*Part{p}) })
	require.True(t, was)
	require.NoError(t, late)
	require.NoError(t, err)
	require.True(t, p.Decision.Allowed)
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
	require.True(t, n.Undo(a))
	require.Zero(t, n.owes(t, "a"))
	require.NoError(t, n.Whole().settle(time.Minute))
	require.False(t, n.Whole().Away())
	require.Equal(t, map[stint.Key]int64{perID.Key("b"): int64(3 * time.Hour / 8)}, s.charged)
	require.False(t, n.Undo(b), "the server was charged")
	require.Zero(t, n.owes(t, "b"))
}

// Decisions that are made while debts are charged are charged, too, each once.
func TestSettle(t *testing.T) {
	t.Parallel()
	n, s := newNode(t)
	for i := range 5000 {
		n.spend(t, fmt.Sprint(i), 1)
	}
	passes := 0
	s.during = func() {
		if passes++; passes <= 3 { // the first pass is in chunks
			n.spend(t, fmt.Sprint(passes), 1)
			n.spend(t, fmt.Sprint("new", passes), 1)
		}
	}
	require.NoError(t, n.Whole().settle(time.Minute))
	require.False(t, n.Whole().Away())
	require.Len(t, s.charged, 5003)
	for key, charged := range s.charged {
		want := time.Hour / 8
		if key.ID == "1" || key.ID == "2" || key.ID == "3" {
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
		require.ErrorIs(t, n.Whole().settle(time.Minute), s.refuses)
		require.True(t, n.Whole().Away())
		require.Positive(t, n.owes(t, "a"))
		require.Zero(t, n.Stats().Charged)
	}
	s.refuses = script.WrongKey{Key: "a", Why: "is no string"}
	require.NoError(t, n.Whole().settle(time.Minute))
	require.False(t, n.Whole().Away())
	require.Zero(t, n.owes(t, "a"))
}
