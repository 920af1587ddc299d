package hostlimit

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
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

func TestLimiter(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		a, b := perID.Key("a"), perID.Key("b")
		d, err := l.Spend(a, 3)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.EqualValues(t, 97, d.Remaining)
		require.Equal(t, a, d.Key)
		require.Equal(t, int64(100), d.Limit.Burst)
		d, err = l.Check(a, 97)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Zero(t, d.Remaining)
		d, err = l.Spend(a, 98)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.InDelta(t, float64(36*time.Second), float64(d.RetryAfter), float64(5*time.Second))
		d, err = l.Refund(a, 1)
		require.NoError(t, err)
		require.EqualValues(t, 98, d.Remaining)
		require.True(t, l.Allow(b))
		d, err = l.Spend(free.Key("x"), 1000)
		require.NoError(t, err)
		require.Equal(t, stint.Decision{Allowed: true, Remaining: math.MaxInt64, Key: free.Key("x")}, d)

		reqs := []stint.Request{{Key: a, Cost: 1}, {Key: b, Cost: 2}, {Key: shared.Key(""), Cost: 5}}
		ds := make([]stint.Decision, 3)
		d, err = l.SpendTogether(reqs, ds)
		require.NoError(t, err)
		require.Equal(t, ds[2], d)
		require.Equal(t, []int64{97, 97, 5}, []int64{ds[0].Remaining, ds[1].Remaining, ds[2].Remaining})
		d, err = l.SpendAll(append(reqs, stint.Request{Key: perID.Key("c"), Cost: 100})...)
		require.NoError(t, err)
		require.Equal(t, perID.Key("c"), d.Key)
		d, err = l.RefundAll(reqs...)
		require.NoError(t, err)
		require.True(t, d.Allowed)

		many := make([]stint.Request, 600)
		for i := range many {
			many[i] = stint.Request{Key: perID.Key("many"), Cost: 1}
		}
		many[300].Key.Name, many[599].Cost = 99, 1000
		of := make([]stint.Decision, len(many))
		err = l.SpendEach(many, of)
		require.ErrorIs(t, err, stint.ErrUnknownName)
		allowed := 0
		for _, d := range of {
			if d.Allowed {
				allowed++
			}
		}
		require.InDelta(t, 100, allowed, 1)

		k, err := l.Bucket(a)
		require.NoError(t, err)
		require.EqualValues(t, 97, k.Remaining)
		until := l.Now().Add(time.Hour).Truncate(time.Second)
		require.NoError(t, l.Hold(a, until))
		found := map[stint.Key]stint.Bucket{}
		for k, err := range l.Buckets(perID) {
			require.NoError(t, err)
			found[k.Key] = k
		}
		require.True(t, until.Equal(found[a].HeldUntil))
		require.EqualValues(t, 100, found[a].Limit.Burst)
		held := []stint.Held{}
		for h := range l.Held() {
			held = append(held, h)
		}
		require.Equal(t, []stint.Held{{Key: a, Until: until}}, held)
		require.NoError(t, l.Reset(a, b))
		k, err = l.Bucket(a)
		require.NoError(t, err)
		require.EqualValues(t, 100, k.Remaining)
		require.True(t, k.HeldUntil.IsZero())
		require.NoError(t, l.Flush())
		require.NoError(t, l.Health())
		st := l.Stats()
		require.NoError(t, st.Err)
		require.Positive(t, st.Limits[perID].Allowed)
		require.Positive(t, st.File.Bytes)
		var copied bytes.Buffer
		n, err := l.Snapshot(&copied)
		require.NoError(t, err)
		require.EqualValues(t, copied.Len(), n)
		require.Positive(t, n)

		other, err := stint.NewLimits(testNames, map[stint.Name]stint.Limit{perID: stint.PerHour(7)}, nil)
		require.NoError(t, err)
		require.NoError(t, l.SetLimits(other))
		require.Same(t, other, l.Limits())
		d, err = l.Check(perID.Key("new"), 0)
		require.NoError(t, err)
		require.EqualValues(t, 7, d.Limit.Burst)
		require.NoError(t, l.Close())
		_, err = l.Spend(a, 1)
		require.ErrorIs(t, err, stint.ErrClosed)
		require.ErrorIs(t, l.Flush(), stint.ErrClosed)
		require.NoError(t, l.Close())
	})
}

func TestErrors(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		for want, req := range map[error]stint.Request{
			stint.ErrUnknownName:   {Key: stint.Name(99).Key("a"), Cost: 1},
			stint.ErrInvalidID:     {Key: perID.Key(""), Cost: 1},
			stint.ErrNegativeCost:  {Key: key, Cost: -1},
			stint.ErrCostOverBurst: {Key: key, Cost: 101},
		} {
			d, err := l.SpendAll(req)
			require.ErrorIs(t, err, want)
			require.Zero(t, d)
			_, err = l.Spend(req.Key, req.Cost)
			require.ErrorIs(t, err, want)
		}
		_, err := l.SpendAll(stint.Request{Key: key}, stint.Request{Key: key})
		require.ErrorIs(t, err, stint.ErrDuplicateKey)
		require.ErrorContains(t, err, "duplicate key: PerID:a", "by its label")
		_, err = l.Spend(perID.Key(string(make([]byte, 513))), 1)
		require.ErrorIs(t, err, stint.ErrInvalidID)
		_, err = l.SpendAll(stint.Request{Key: key, Cost: 1, Limit: stint.Limit{Burst: 5}})
		var config *stint.ConfigError
		require.ErrorAs(t, err, &config)
		_, err = l.SpendTogether(make([]stint.Request, 2), nil)
		require.Error(t, err)
		_, err = l.SpendAll(make([]stint.Request, 257)...)
		require.ErrorContains(t, err, "257 requests")
		d, err := l.Check(key, 0)
		require.NoError(t, err)
		require.EqualValues(t, 100, d.Remaining)
	})
}

func TestWait(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		key := perID.Key("a")
		_, err := l.Spend(key, 100)
		require.NoError(t, err)
		fast := stint.Limit{Burst: 1, Count: 1, Period: 10 * time.Millisecond}
		require.NoError(t, l.Reset(key))
		for range 3 {
			require.NoError(t, l.WaitRequest(t.Context(), stint.Request{Key: key, Cost: 1, Limit: fast}))
		}
		_, err = l.SpendAll(stint.Request{Key: key, Cost: 97})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, l.Wait(ctx, key, 100), context.DeadlineExceeded)
		require.NoError(t, ctx.Err(), "it fails at once")
		p, err := l.Reserve(key, 10)
		require.NoError(t, err)
		require.Greater(t, p.Delay(), time.Minute)
		second, err := l.Reserve(key, 10)
		require.NoError(t, err)
		require.Greater(t, second.Delay(), p.Delay())
		second.Cancel()
		second.Cancel()
		p.Cancel()
		canceled, cancel := context.WithCancel(t.Context())
		waits := make(chan error)
		go func() { waits <- l.Wait(canceled, key, 50) }()
		cancel()
		err = <-waits
		require.ErrorIs(t, err, context.Canceled)
		p, err = l.Reserve(key, 1)
		require.NoError(t, err)
		require.Less(t, p.Delay(), time.Minute, "the tokens are back")
	})
}

// When the owner closes, a guest takes over before a call fails.
func TestOwnerCloses(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, map[stint.Name]stint.Limit{perID: whole})
	events := newRecorder()
	owner := openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, &Options{OnEvent: events.record})
	events.wait(t, BecameGuest)
	third := openOn(t, path, limits, nil)
	stop, done := make(chan bool), make(chan error)
	for range 4 {
		go func() {
			for {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				if d, err := guest.Spend(perID.Key("a"), 1); err != nil || !d.Allowed {
					done <- errors.Join(err, errors.New("not allowed"))
					return
				}
			}
		}()
	}
	require.NoError(t, owner.Close())
	for guest.Role() != RoleOwner && third.Role() != RoleOwner {
		_, err := third.Check(perID.Key("a"), 0)
		require.NoError(t, err)
	}
	close(stop)
	for range 4 {
		require.NoError(t, <-done)
	}
}

// Many callers that send long lists at once get all their answers.
func TestManyLongLists(t *testing.T) {
	path, limits := filePath(t), limitsWith(t, nil)
	openOn(t, path, limits, nil)
	guest := openOn(t, path, limits, nil)
	for _, level := range []stint.Durability{stint.Flushed, stint.Leased} {
		limit := stint.Limit{Burst: 1 << 40, Count: 1, Period: time.Millisecond, Durability: level}
		done := make(chan error)
		for range length(256, 64) {
			go func() {
				reqs, ds := make([]stint.Request, wire.MaxRequests), make([]stint.Decision, wire.MaxRequests)
				for i := range reqs {
					reqs[i] = stint.Request{Key: perID.Key(strings.Repeat("x", 400)), Cost: 1, Limit: limit}
				}
				err := guest.SpendEach(reqs, ds)
				for _, d := range ds {
					if err == nil && !d.Allowed {
						err = errors.New("denied")
					}
				}
				done <- err
			}()
		}
		for range length(256, 64) {
			require.NoError(t, <-done)
		}
	}
}
