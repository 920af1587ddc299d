package hostlimit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/testlength"
)

// both calls test with the owner of a file, and with a guest.
func both(t *testing.T, test func(t *testing.T, l *Limiter)) {
	for _, role := range []Role{RoleOwner, RoleGuest} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			path, limits := filePath(t), limitsWith(t, nil)
			l := openOn(t, path, limits, nil)
			if role == RoleGuest {
				l = openOn(t, path, limits, nil)
			}
			require.Equal(t, role, l.Role())
			test(t, l)
		})
	}
}

// A guest sends many keys in several messages.
func TestResetMany(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		keys := make([]stint.Key, wire.MaxRequests+1)
		for i := range keys {
			keys[i] = perID.Key(strconv.Itoa(i))
		}
		last := keys[len(keys)-1]
		spend(t, l, last, 1)
		require.NoError(t, l.Reset(keys...))
		require.Zero(t, check(t, l, last).ResetAfter)
	})
}

// A limit that names no level has the default level of the process that asks.
func TestLevelOfGuest(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	owner := openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, &Options{LimiterOptions: stint.Options{Durability: stint.Synced}})
	spend(t, owner, perID.Key("a"), 1)
	require.Zero(t, owner.Stats().Commit.Saves)
	spend(t, guest, perID.Key("a"), 1)
	require.EqualValues(t, 1, owner.Stats().Commit.Saves)
}

// DoEach decides in several messages. Each request that cannot be decided fails alone.
func TestDoEach(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		reqs := []stint.Request{
			{Key: stint.Name(99).Key("a"), Cost: 1}, {Key: perID.Key("a"), Cost: 1},
			{Key: perID.Key(strings.Repeat("x", 513)), Cost: 1}, {Key: perID.Key("b"), Cost: 2}, {Key: perID.Key(""), Cost: 1},
		}
		alone := len(reqs)
		reqs = append(reqs, slices.Repeat([]stint.Request{perID.Key("many").Cost(1)}, 600)...)
		reqs[300].Key.Name, reqs[599].Cost = 99, 1000
		ds := make([]stint.Decision, len(reqs))
		err := l.DoEach(context.Background(), reqs, ds)
		require.ErrorIs(t, err, stint.ErrUnknownName)
		require.ErrorIs(t, err, stint.ErrInvalidID)
		var each stint.EachError
		require.ErrorAs(t, err, &each)
		require.Len(t, each, len(reqs))
		for i, err := range each {
			wrong := slices.Contains([]int{0, 2, 4, 300, 599}, i)
			require.Equal(t, wrong, err != nil, "%d: %v", i, err)
			require.Equal(t, wrong, ds[i] == stint.Decision{})
		}
		require.ErrorIs(t, each[300], stint.ErrUnknownName)
		require.ErrorIs(t, each[599], stint.ErrCostOverBurst)
		require.True(t, ds[1].Allowed)
		require.EqualValues(t, 98, ds[3].Remaining)
		allowed := 0
		for _, d := range ds[alone:] {
			if d.Allowed {
				allowed++
			}
		}
		require.InDelta(t, 100, allowed, 1)
	})
}

// TestReserve is about places in a queue, and a Wait under a limit of its own. The
// suite of Deciders has the other waits.
func TestReserve(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		spend(t, l, key, 100)
		p := reserve(t, l, key.Cost(10))
		require.Greater(t, p.Delay(), time.Minute)
		second := reserve(t, l, key.Cost(10))
		require.Greater(t, second.Delay(), p.Delay())
		second.Cancel()
		second.Cancel()
		p.Cancel()
		require.Less(t, reserve(t, l, key.Cost(1)).Delay(), time.Minute, "the tokens are back")
		fast := stint.Limit{Burst: 1, Count: 1, Period: 10 * time.Millisecond}
		for range 3 {
			require.NoError(t, errorOf(l.Wait(t.Context(), stint.Request{Key: perID.Key("b"), Cost: 1, Limit: fast})))
		}
	})
}

// A reservation that may go at once no longer may if a hold comes before it goes.
func TestHoldAfterReserve(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		turn := reserve(t, l, perID.Key("a").Cost(1))
		require.Zero(t, turn.Delay())
		require.NoError(t, errorOf(l.Hold(perID.Key("a"), l.Now().Add(time.Hour))))
		require.Positive(t, turn.Delay())
		turn.Cancel()
		require.EqualValues(t, 99, bucket(t, l, perID.Key("a")).Remaining, "its turn had come")
	})
}

// Many callers that send long lists at once get all their answers.
func TestManyLongLists(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, nil)
	for _, level := range []stint.Durability{stint.Flushed, stint.Leased} {
		limit := stint.Limit{Burst: 1 << 40, Count: 1, Period: time.Millisecond, Durability: level}
		done := make(chan error)
		for range testlength.Of(256, 64) {
			go func() {
				reqs, ds := make([]stint.Request, wire.MaxRequests), make([]stint.Decision, wire.MaxRequests)
				for i := range reqs {
					reqs[i] = stint.Request{Key: perID.Key(strings.Repeat("x", 400)), Cost: 1, Limit: limit}
				}
				err := guest.DoEach(context.Background(), reqs, ds)
				for _, d := range ds {
					if err == nil && !d.Allowed {
						err = errors.New("denied")
					}
				}
				done <- err
			}()
		}
		for range testlength.Of(256, 64) {
			require.NoError(t, <-done)
		}
	}
}

// stepStore calls step during a load of the id "step".
type stepStore struct {
	stint.Store
	step func()
}

func (s stepStore) Load(key stint.Key) (int64, error) {
	if key.ID == "step" {
		s.step()
	}
	return s.Store.Load(key)
}

// A guest's clock follows the steps of the owner's: with the next answer, also to
// a call that was under way, and in a guest that makes no calls.
func TestClockOfAGuest(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	step := func(d time.Duration) { ahead.Add(int64(d)) }
	store := stepStore{stint.NewMemStore(), func() { step(time.Hour) }}
	owner := inMemory(t, store, limitsWith(t, nil), &stint.Options{
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	path := filePath(t)
	serveOn(t, owner, path)
	guest, idle := openOn(t, path, limitsWith(t, nil), nil), openOn(t, path, limitsWith(t, nil), nil)
	follows := func(l *Limiter) bool { return l.Now().Sub(owner.Now()).Abs() < time.Minute }
	require.True(t, follows(guest))
	for i, by := range []time.Duration{time.Hour, -2 * time.Hour, 100 * 24 * time.Hour} {
		step(by)
		spend(t, guest, perID.Key("a"), 1)
		require.True(t, follows(guest), "step %d", i)
		eventually(t, func() bool { return follows(idle) }, "a guest without calls follows")
	}
	require.NoError(t, errorOf(guest.Bucket(perID.Key("step"))))
	require.True(t, follows(guest), "a step during the call")
}

// A label that the protocol cannot carry is refused, by the first process too.
func TestLongLabel(t *testing.T) {
	long := newLimits(t, stint.Names{1: {Label: strings.Repeat("x", 1025), Limit: stint.PerHour(10)}})
	const want = "the label of Name 1 has 1025 bytes, want at most 1024"
	path := filePath(t)
	require.ErrorContains(t, errorOf(Open(path, long, nil)), want)
	require.ErrorContains(t, errorOf(Dial(path, long.Names(), nil)), want)
	owner := openOn(t, path, limitsWith(t, nil), nil)
	require.ErrorContains(t, owner.SetLimits(long), want)
	l := inMemory(t, stint.NewMemStore(), long, nil)
	require.ErrorContains(t, errorOf(Serve(l, filePath(t), nil)), want)
}

// The space for decisions may have those of an earlier call. In a Limiter whose owner
// has just changed to this process, a request with an error has none of them.
func TestDecisionsOfAnEarlierCall(t *testing.T) {
	owner := openOn(t, filePath(t), limitsWith(t, nil), nil)
	long, a := perID.Key(strings.Repeat("x", 600)), perID.Key("a")
	earlier := stint.Decision{Allowed: true, Remaining: 7}

	ds := []stint.Decision{earlier, earlier}
	err := owner.methods.DoEach(t.Context(), []stint.Request{long.Cost(1), a.Cost(1)}, ds) // as when it began in a guest
	require.ErrorIs(t, err, stint.ErrInvalidID)
	require.Zero(t, ds[0])
	require.EqualValues(t, 1, ds[1].Taken)

	c := wire.Call{Op: wire.OpEach, Requests: []stint.Request{a.Cost(1), a.Cost(1)},
		Decisions: []stint.Decision{earlier, earlier}, Errs: []error{nil, ErrZone}}
	require.NoError(t, owner.now.Load().server.do(t.Context(), &c))
	require.Equal(t, []error{nil, ErrZone}, c.Errs)
	require.EqualValues(t, 1, c.Decisions[0].Taken)
	require.Zero(t, c.Decisions[1])
}

// The owner leaves ids to its stint.Limiter, which resets the keys before a mistaken
// one, and counts the mistakes.
func TestIDsThatAreTooLong(t *testing.T) {
	owner := openOn(t, filePath(t), limitsWith(t, nil), nil)
	a, long := perID.Key("a"), perID.Key(strings.Repeat("x", 600))
	require.NoError(t, errorOf(owner.Spend(a, 50)))
	require.ErrorIs(t, owner.Reset(a, long), stint.ErrInvalidID)
	require.EqualValues(t, 100, bucket(t, owner, a).Remaining)

	for name, call := range map[string]func() error{
		"Wait":     func() error { return errorOf(owner.Wait(t.Context(), long.Cost(1))) },
		"Reserve":  func() error { return errorOf(owner.Reserve(long.Cost(1))) },
		"SpendAll": func() error { return errorOf(owner.SpendAll(long.Cost(1))) },
	} {
		before := owner.Stats().Limits[perID].Errors
		require.ErrorIs(t, call(), stint.ErrInvalidID, name)
		require.Equal(t, before+1, owner.Stats().Limits[perID].Errors, name)
	}

	_, err := owner.SpendAll(make([]stint.Request, wire.MaxRequests+1)...)
	require.ErrorIs(t, err, wire.ErrTooLong, "a guest could not send it")
	_, err = owner.Number(strings.Repeat("x", wire.MaxLabel+1))
	require.ErrorIs(t, err, wire.ErrTooLong, "a guest could not send it")
}
