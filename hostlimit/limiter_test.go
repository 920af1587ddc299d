package hostlimit

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/httplimit"
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
		d, err = l.Refund(a.Cost(1).SpentAt(stint.JustSpent))
		require.NoError(t, err)
		require.EqualValues(t, 98, d.Remaining)
		require.True(t, l.Allow(b))
		d, err = l.Spend(free.Key("x"), 1000)
		require.NoError(t, err)
		require.Equal(t, stint.Decision{Allowed: true, Taken: 1000, Remaining: math.MaxInt64, Key: free.Key("x")}, d)

		reqs := []stint.Request{{Key: a, Cost: 1}, {Key: b, Cost: 2}, {Key: shared.Key(""), Cost: 5}}
		ds := make([]stint.Decision, 3)
		d, err = l.Do(context.Background(), reqs, ds)
		require.NoError(t, err)
		require.Equal(t, ds[2], d)
		require.Equal(t, []int64{97, 97, 5}, []int64{ds[0].Remaining, ds[1].Remaining, ds[2].Remaining})
		d, err = l.SpendAll(append(reqs, stint.Request{Key: perID.Key("c"), Cost: 100})...)
		require.NoError(t, err)
		require.Equal(t, perID.Key("c"), d.Key)
		d, err = l.Refund(justSpent(reqs)...)
		require.NoError(t, err)
		require.True(t, d.Allowed)

		many := make([]stint.Request, 600)
		for i := range many {
			many[i] = stint.Request{Key: perID.Key("many"), Cost: 1}
		}
		many[300].Key.Name, many[599].Cost = 99, 1000
		of := make([]stint.Decision, len(many))
		err = l.DoEach(context.Background(), many, of)
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
		require.NoError(t, errorOf(l.Hold(a, until)))
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

		other, err := stint.NewLimits(testNames.WithLimits(map[stint.Name]stint.Limit{perID: stint.PerHour(7)}))
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
		unknown := stint.Limit{Burst: 5, Count: 5, Period: time.Hour, Durability: 200}
		_, err = l.SpendAll(stint.Request{Key: key, Cost: 1, Limit: unknown})
		require.ErrorAs(t, err, &config)
		_, err = l.Reserve(stint.Request{Key: key, Cost: 1, Limit: unknown})
		require.ErrorAs(t, err, &config)
		_, err = l.Do(context.Background(), make([]stint.Request, 2), nil)
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
			require.NoError(t, errorOf(l.Wait(t.Context(), stint.Request{Key: key, Cost: 1, Limit: fast})))
		}
		_, err = l.SpendAll(stint.Request{Key: key, Cost: 97})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, errorOf(l.Wait(ctx, key.Cost(100))), context.DeadlineExceeded)
		require.NoError(t, ctx.Err(), "it fails at once")
		p, err := l.Reserve(key.Cost(10))
		require.NoError(t, err)
		require.Greater(t, p.Delay(), time.Minute)
		second, err := l.Reserve(key.Cost(10))
		require.NoError(t, err)
		require.Greater(t, second.Delay(), p.Delay())
		second.Cancel()
		second.Cancel()
		p.Cancel()
		canceled, cancel := context.WithCancel(t.Context())
		waits := make(chan error)
		go func() { waits <- errorOf(l.Wait(canceled, key.Cost(50))) }()
		cancel()
		err = <-waits
		require.ErrorIs(t, err, context.Canceled)
		p, err = l.Reserve(key.Cost(1))
		require.NoError(t, err)
		require.Less(t, p.Delay(), time.Minute, "the tokens are back")
	})
}

// A reservation that may go at once no longer may if a hold comes before it goes.
func TestHoldAfterReserve(t *testing.T) {
	both(t, func(t *testing.T, l *Limiter) {
		turn, err := l.Reserve(perID.Key("a").Cost(1))
		require.NoError(t, err)
		require.Zero(t, turn.Delay())
		require.NoError(t, errorOf(l.Hold(perID.Key("a"), l.Now().Add(time.Hour))))
		require.Positive(t, turn.Delay())
		turn.Cancel()
		b, err := l.Bucket(perID.Key("a"))
		require.NoError(t, err)
		require.EqualValues(t, 99, b.Remaining, "its turn had come")
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
	owner, err := stint.New(store, limitsWith(t, nil), &stint.Options{
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	require.NoError(t, err)
	defer owner.Close()
	path := filePath(t)
	server, err := Serve(owner, path, nil)
	require.NoError(t, err)
	defer server.Close()
	guest, idle := openOn(t, path, limitsWith(t, nil), nil), openOn(t, path, limitsWith(t, nil), nil)
	follows := func(l *Limiter) bool { return l.Now().Sub(owner.Now()).Abs() < time.Minute }
	require.True(t, follows(guest))
	for i, by := range []time.Duration{time.Hour, -2 * time.Hour, 100 * 24 * time.Hour} {
		step(by)
		_, err := guest.Spend(perID.Key("a"), 1)
		require.NoError(t, err)
		require.True(t, follows(guest), "step %d", i)
		eventually(t, func() bool { return follows(idle) }, "a guest without calls follows")
	}
	_, err = guest.Bucket(perID.Key("step"))
	require.NoError(t, err)
	require.True(t, follows(guest), "a step during the call")
}

// A Transport of a guest obeys Retry-After after the owner's clock has stepped.
func TestTransportOfAGuest(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	path, limits := filePath(t), limitsWith(t, nil)
	openOn(t, path, limits, &Options{LimiterOptions: stint.Options{
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}})
	guest := openOn(t, path, limits, nil)
	require.Equal(t, RoleGuest, guest.Role())
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	ahead.Store(int64(time.Hour))
	client := http.Client{Transport: &httplimit.Transport{Limiter: guest, Key: httplimit.ByHost(perID)}}
	for range 3 {
		if res, err := client.Get(server.URL); err == nil {
			require.NoError(t, res.Body.Close())
		}
	}
	require.Equal(t, 1, asked)
}
