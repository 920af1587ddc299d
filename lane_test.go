package stint

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/testlength"
)

// Promote is promote for the worlds of package stint_test.
var Promote = promote

// promote gives a bucket a lane, as contention does, and reports whether it has
// one.
func promote(l *Limiter, key Key) bool {
	if len(key.ID) > maxIDLen {
		return false
	}
	at := l.locate(key)
	s := at.shard
	s.LockFast()
	defer s.UnlockFast()
	if i, ok := s.Find(uint16(key.Name), key.ID, at.hash); ok && s.Limits != nil {
		l.cache.PromoteLocked(s, i, at.hash)
	}
	return laneAt(l, key) != nil
}

// laneAt returns the lane of a bucket, or nil.
func laneAt(l *Limiter, key Key) *cache.Lane {
	return l.laneOf(&ask{key: key, located: l.locate(key)})
}

// laneRig returns a rig with one limit.
func laneRig(t *testing.T, limit Limit) *rig {
	return rigOn(t, NewMemStore(), limitsOf(t, Names{1: {Label: "hot", Limit: limit}}, nil), Options{})
}

// The lock must have been taken promoteAfter times in a row when a spend from one
// bucket came, and not in between for anything else.
func TestLaneAfterContention(t *testing.T) {
	l := laneRig(t, PerMinute(1000))
	hot, other := Name(1).Key("hot"), Name(1).Key("other")
	require.True(t, l.Allow(hot))
	require.True(t, l.Allow(other))
	const promoteAfter = 16
	a := ask{key: hot, located: l.locate(hot)}
	contended := func(n int) bool {
		a.shard.LockFast()
		defer a.shard.UnlockFast()
		for range n {
			l.cache.ContendedLocked(a.shard, uint16(a.key.Name), a.key.ID, a.hash)
		}
		return laneAt(l.Limiter, hot) != nil
	}
	require.False(t, contended(promoteAfter-1))
	require.True(t, contended(1))
	require.True(t, l.Allow(hot))
	i, _ := a.shard.Find(1, "hot", a.hash)
	require.NotEqual(t, laneAt(l.Limiter, hot).TAT(), a.shard.At(i).TAT(), "the spend was not in the lane")
	require.NoError(t, errorOf(l.Check(hot, 1)))
	require.EqualValues(t, 998, l.left(hot))
	require.NotNil(t, laneAt(l.Limiter, hot), "a Check has retired it")
	ds := make([]Decision, 1)
	d := l.decided(l.Do(t.Context(), []Request{hot.Cost(1)}, ds))
	require.Equal(t, timeless(ds)[0], d)
	require.EqualValues(t, 997, d.Remaining)
	require.NotNil(t, laneAt(l.Limiter, hot), "a Do of one request has retired it")
	l.Stats()
	require.Nil(t, laneAt(l.Limiter, hot), "Stats has not retired it")
	require.True(t, contended(1), "one wait, and the bucket had a lane before")
	l.Stats()
	a = ask{key: other, located: l.locate(other)}
	require.False(t, contended(promoteAfter-1))
	require.Nil(t, laneAt(l.Limiter, other))
}

// Spends that find the lock taken are those that count for a lane.
func TestLaneOfWaiters(t *testing.T) {
	l := laneRig(t, PerMinute(1_000_000))
	hot := Name(1).Key("hot")
	require.True(t, l.Allow(hot))
	s := l.locate(hot).shard
	for range 10_000 { // some spends may come when the lock is free again
		begun, ended := make(chan struct{}), make(chan struct{})
		s.LockFast()
		go func() {
			defer close(ended)
			close(begun)
			l.Allow(hot)
		}()
		<-begun
		runtime.Gosched()
		s.UnlockFast()
		<-ended
		if laneAt(l.Limiter, hot) != nil {
			return
		}
	}
	t.Error("the bucket has no lane")
}

// Buckets that a lane cannot decide on get none.
func TestLaneOnlyForPlainBuckets(t *testing.T) {
	for name, limit := range map[string]Limit{
		"leased":   {Burst: 9, Count: 9, Period: time.Minute, Durability: Leased},
		"synced":   {Burst: 9, Count: 9, Period: time.Minute, Durability: Synced},
		"calendar": EachDay(9, time.UTC),
	} {
		l := laneRig(t, limit)
		require.True(t, l.Allow(Name(1).Key("a")))
		require.False(t, promote(l.Limiter, Name(1).Key("a")), name)
	}
	l := laneRig(t, PerMinute(9))
	require.True(t, l.Allow(Name(1).Key("a")))
	require.True(t, promote(l.Limiter, Name(1).Key("a")))
	l.hold(Name(1).Key("a"), time.Minute)
	require.False(t, l.Allow(Name(1).Key("a")), "the hold")
	require.False(t, promote(l.Limiter, Name(1).Key("a")), "a bucket with a hold")
}

// A request with a limit of its own is not decided by the rule of a lane.
func TestLaneOfGivenLimit(t *testing.T) {
	l := laneRig(t, PerMinute(9))
	key := Name(1).Key("a")
	require.True(t, l.Allow(key))
	require.True(t, promote(l.Limiter, key))
	ds := make([]Decision, 1)
	require.NoError(t, l.DoEach(t.Context(), []Request{{Key: key, Cost: 1, Limit: PerMinute(9)}}, ds))
	require.EqualValues(t, 7, ds[0].Remaining)
	promote(l.Limiter, key)
	require.NoError(t, l.DoEach(t.Context(), []Request{{Key: key, Cost: 1, Limit: PerMinute(9).WithBurst(3)}}, ds))
	require.EqualValues(t, 3, ds[0].Limit.Burst)
	require.EqualValues(t, 0, ds[0].Remaining)
	require.True(t, ds[0].Allowed)
}

// Every decision is counted once, in a lane or not, and also if its lane was
// retired before it was counted.
func TestLaneCounts(t *testing.T) {
	const burst, spends = 1_000_000, 2_000_000
	l := laneRig(t, Limit{Burst: burst, Count: 1, Period: time.Second})
	key := Name(1).Key("hot")
	var all sync.WaitGroup
	for g := range 8 {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(g)))
		all.Go(func() {
			for range spends / 8 {
				l.Allow(key)
				if rnd.IntN(100) == 0 {
					promote(l.Limiter, key)
				}
				if rnd.IntN(10_000) == 0 {
					l.Stats()
				}
			}
		})
	}
	all.Wait()
	counts := l.Stats().Limits[1]
	require.EqualValues(t, burst, counts.Allowed)
	require.EqualValues(t, spends-burst, counts.Denied)
}

// laneCall is one call of a short history, and its answer.
type laneCall struct {
	what      string
	cost      int64
	allowed   bool
	remaining int64
}

var laneHistories = flag.Int("histories", 0, "histories of TestLaneHistories; a million take minutes")

// A history of a few calls that three goroutines make at once has the answers that
// the same calls have one after the other, in some order.
func TestLaneHistories(t *testing.T) {
	t.Parallel()
	const burst = 5
	l := laneRig(t, Limit{Burst: burst, Count: 1, Period: time.Millisecond})
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	promoted := 0
	histories := cmp.Or(*laneHistories, testlength.Of(200_000, 4000))
	for n := range histories {
		l.clock.Advance(time.Minute)
		key := Name(1).Key(fmt.Sprint(n % 8))
		taken := rnd.Int64N(3)
		require.NoError(t, errorOf(l.Spend(key, taken)))
		if promote(l.Limiter, key) {
			promoted++
		}
		var threads [3][]laneCall
		for i := range threads {
			for range 1 + rnd.IntN(2) {
				what := []string{"spend", "spend", "spend", "check", "refund", "all", "each", "promote", "flush"}[rnd.IntN(9)]
				threads[i] = append(threads[i], laneCall{what: what, cost: rnd.Int64N(4)})
			}
		}
		var all sync.WaitGroup
		var ready atomic.Int32
		for i := range threads {
			all.Go(func() {
				for ready.Add(1); ready.Load() < int32(len(threads)); { // so that they run at once
					runtime.Gosched()
				}
				for k := range threads[i] {
					threads[i][k].do(t, l, key)
				}
			})
		}
		all.Wait()
		final := l.left(key)
		if !laneOrder(burst-taken, final, burst, threads) {
			t.Fatalf("no order of these calls has these answers, with %d tokens first and %d at last: %+v", burst-taken,
				final, threads)
		}
	}
	t.Logf("%d histories, %d began with a lane", histories, promoted)
}

func (c *laneCall) do(t *testing.T, l *rig, key Key) {
	var d Decision
	var err error
	switch c.what {
	case "spend":
		d, err = l.Spend(key, c.cost)
	case "check":
		d, err = l.Check(key, c.cost)
	case "refund":
		d, err = l.Refund(key.Cost(c.cost).SpentAt(inFuture))
	case "all":
		d, err = l.SpendAll(Request{Key: key, Cost: c.cost})
	case "each":
		var ds [1]Decision
		err = l.DoEach(context.Background(), []Request{{Key: key, Cost: c.cost}}, ds[:])
		d = ds[0]
	case "promote":
		promote(l.Limiter, key)
	case "flush":
		err = l.Flush()
	}
	if err != nil {
		t.Error(err)
	}
	c.allowed, c.remaining = d.Allowed, d.Remaining
}

// laneOrder reports whether the calls have their answers in some order.
func laneOrder(tokens, final, burst int64, threads [3][]laneCall) bool {
	done := true
	for i := range threads {
		if len(threads[i]) == 0 {
			continue
		}
		done = false
		c, left, allowed := threads[i][0], tokens, true
		switch c.what {
		case "spend", "all", "each":
			if allowed = c.cost <= tokens; allowed {
				left -= c.cost
			}
		case "check":
			if allowed = c.cost <= tokens; allowed {
				left -= c.cost // a Check answers what a Spend would
			}
		case "refund":
			left = min(burst, tokens+c.cost)
		default:
			allowed, c.remaining, c.allowed = true, left, true
		}
		if c.allowed != allowed || c.remaining != left {
			continue
		}
		if c.what == "check" {
			left = tokens
		}
		rest := threads
		rest[i] = rest[i][1:]
		if laneOrder(left, final, burst, rest) {
			return true
		}
	}
	return done && tokens == final
}

// A lane that gives up, because others have swapped the TAT, has spent nothing.
func TestLaneGivesUp(t *testing.T) {
	l := laneRig(t, Limit{Burst: 1 << 30, Count: 1, Period: time.Second})
	hot := Name(1).Key("hot")
	require.True(t, l.Allow(hot))
	require.True(t, promote(l.Limiter, hot))
	n := laneAt(l.Limiter, hot)
	begun, now := n.TAT(), l.clock.Now().UnixNano()
	var allowed, declined atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			one := ask{key: hot, cost: 1, now: now}
			for range 200_000 {
				switch l.decideInLane(n, &one, nil, 1) {
				case fastAllowed:
					allowed.Add(1)
				case fastDeclined:
					declined.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 800_000, allowed.Load()+declined.Load())
	require.Equal(t, allowed.Load()*int64(time.Second), n.TAT()-begun)
	require.Equal(t, 1+allowed.Load(), l.Stats().Limits[1].Allowed)
	t.Logf("%d of 800,000 tries gave up", declined.Load())
}

// BenchmarkHot has goroutines that all spend from one bucket. Its figure is the
// time of each decision of all of them together.
func BenchmarkHot(b *testing.B) {
	for _, denied := range []bool{false, true} {
		for _, goroutines := range []int{1, 2, 4, 16} {
			b.Run(fmt.Sprintf("denied=%v/%d", denied, goroutines), func(b *testing.B) {
				limits := limitsOf(b, Names{1: {Label: "hot", Limit: PerMinute(1).WithBurst(50_000_000)}}, nil)
				l, err := New(NewMemStore(), limits, &Options{FlushInterval: time.Hour})
				require.NoError(b, err)
				defer l.Close()
				key := Name(1).Key("0123456789abcdef01234567")
				if denied {
					_, err = l.Spend(key, 50_000_000)
					require.NoError(b, err)
				}
				var all sync.WaitGroup
				b.ResetTimer()
				for g := range goroutines {
					all.Go(func() {
						for range (b.N + g) / goroutines {
							if d, err := l.Spend(key, 1); err != nil || d.Allowed == denied {
								b.Error("allowed and error: ", d.Allowed, err)
								return
							}
						}
					})
				}
				all.Wait()
			})
		}
	}
}
