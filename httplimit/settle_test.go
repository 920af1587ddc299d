package httplimit

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
	"github.com/stint-go/stint/rules"
)

// byKeyBound is a rule with Settle, whose bound is in the field X-Bound.
func byKeyBound(bound int64) Rule {
	return Rule{Key: ByHeader(perKey, "X-Key"), Cost: bound, Settle: true}
}

func TestSettle(t *testing.T) {
	for name, tc := range map[string]struct {
		spent       int64 // before the request
		cost        int64
		short, left int64
	}{
		"less":           {0, 1, 0, 4},
		"the same":       {0, 3, 0, 2},
		"more":           {0, 4, 0, 1},
		"more than left": {1, 7, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			spend(t, lim, perKey.Key("k"), tc.spent)
			var short int64
			h := Middleware(lim, nil, byKeyBound(3))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var err error
				short, err = rules.Settle(r.Context(), perKey, tc.cost)
				require.NoError(t, err)
			}))
			w := answerTo(h, withKey("k"))
			require.Equal(t, tc.short, short)
			require.Equal(t, tc.left, left(t, lim, perKey.Key("k")))
			require.Contains(t, w.Header().Get("RateLimit"), `"key";r=`+string(rune('0'+tc.left))+";",
				"the fields have the state after it")
		})
	}
	t.Run("nested", func(t *testing.T) { // it settles each
		lim, _ := newLimiter(t, nil)
		h := Middleware(lim, nil, byKeyBound(3))(Middleware(lim, nil, byKeyBound(2))(http.HandlerFunc(
			func(_ http.ResponseWriter, r *http.Request) {
				short, err := rules.Settle(r.Context(), perKey, 1)
				require.NoError(t, err)
				require.Zero(t, short)
			})))
		answerTo(h, withKey("k"))
		require.EqualValues(t, 3, left(t, lim, perKey.Key("k")))
	})
	t.Run("held since", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		h := Middleware(lim, nil, byKeyBound(3))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			require.NoError(t, errorOf(lim.Hold(perKey.Key("k"), clock.now().Add(time.Hour))))
			short, err := rules.Settle(r.Context(), perKey, 4)
			require.NoError(t, err)
			require.EqualValues(t, 1, short, "nothing is spent from a held bucket")
		}))
		w := answerTo(h, withKey("k"))
		require.Equal(t, `"key";r=0;t=3600`, w.Header().Get("RateLimit"))
	})
}

// A client that disconnects is settled by the deferred call.
func TestSettleDisconnected(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	settled := make(chan error, 1)
	srv := serve(t, Middleware(lim, nil, byKeyBound(5))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := int64(0)
		defer func() {
			_, err := rules.Settle(r.Context(), perKey, sent)
			settled <- err
		}()
		for sent < 2 {
			io.WriteString(w, "data: x\n\n")
			http.NewResponseController(w).Flush()
			sent++
		}
		<-r.Context().Done()
	})))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
	require.NoError(t, err)
	req.Header.Set("X-Key", "k")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	cancel()
	res.Body.Close()
	require.NoError(t, <-settled)
	require.EqualValues(t, 3, left(t, lim, perKey.Key("k")))
}

// kept is what a request used: up to its bound when it was admitted, and what it
// used beside that when it was settled, less what was short.
type kept struct {
	at   time.Time
	cost int64
}

// requireLaw: in any stretch, what requests used is at most burst + elapsed ÷ T.
// Of a quota that follows the calendar, it is at most the quota in any period.
//
// True costs may be over their bounds here. Counted at admission, such costs
// would break the law, because the bucket cannot know them before they are
// settled: so the part over the bound counts when it is settled.
func requireLaw(t *testing.T, l stint.Limit, all []kept) {
	t.Helper()
	if l.FollowsCalendar() {
		sums := map[time.Time]int64{}
		for _, k := range all {
			start, _ := l.PeriodAt(k.at)
			if sums[start] += k.cost; sums[start] > l.Burst {
				t.Fatalf("%d tokens in the period from %v, and the law allows %d: %v", sums[start], start, l.Burst, all)
			}
		}
		return
	}
	for i := range all {
		sum := int64(0)
		for _, k := range all[i:] {
			sum += k.cost
			most := l.Burst + int64(k.at.Sub(all[i].at)/l.Interval())
			if sum > most {
				t.Fatalf("%d tokens within %v, and the law allows %d: %v", sum, k.at.Sub(all[i].at), most, all)
			}
		}
	}
}

// modelBucket is what a bucket has, said independently: tokens that come back
// one by one, in nanoseconds of tokens, or all when a period of the calendar
// begins.
type modelBucket struct {
	l    stint.Limit
	lack time.Duration // until it is full
	used int64         // in the period of at, if the limit follows the calendar
	at   time.Time
}

func (m *modelBucket) pass(now time.Time) {
	if m.l.FollowsCalendar() {
		if _, end := m.l.PeriodAt(m.at); !now.Before(end) {
			m.used = 0
		}
		m.at = now
		return
	}
	m.lack, m.at = max(0, m.lack-now.Sub(m.at)), now
}

func (m *modelBucket) spend(n int64) bool {
	if m.l.FollowsCalendar() {
		if m.used+n > m.l.Burst {
			return false
		}
		m.used += n
		return true
	}
	if m.lack+time.Duration(n)*m.l.Interval() > m.l.Tolerance() {
		return false
	}
	m.lack += time.Duration(n) * m.l.Interval()
	return true
}

func (m *modelBucket) settle(bound, cost int64, ago time.Duration) (short int64) {
	for ; cost > bound; cost-- {
		if !m.spend(1) {
			short++
		}
	}
	if m.l.FollowsCalendar() {
		if start, _ := m.l.PeriodAt(m.at); !m.at.Add(-ago).Before(start) { // nothing returns to a later period
			m.used -= max(0, bound-cost)
		}
		return short
	}
	if back := time.Duration(bound-cost)*m.l.Interval() - ago; back > 0 {
		m.lack = max(0, m.lack-back)
	}
	return short
}

// Streams of a random length, with a bound and a true cost: the law holds for
// true costs over every stretch, and short is what a model says.
func TestSettleLaw(t *testing.T) {
	t.Parallel()
	const bound = 1000
	histories := 1_000
	if testlength.Long {
		histories = 50_000
		if testing.Short() {
			histories = 10_000
		}
	}
	limits := []stint.Limit{
		stint.PerMinute(1000), stint.PerMinute(20_000), {Burst: 3000, Count: 100, Period: time.Second},
		stint.EachHour(5000, time.UTC), stint.EachDay(3000, time.UTC),
	}
	names := []stint.Name{perKey, perAddress, everyone, failures, oddLabel}
	defaults := map[stint.Name]stint.Limit{}
	for i, name := range names {
		defaults[name] = limits[i]
	}
	lim, clock := newLimiter(t, defaults)
	var kinds []http.Handler
	var open *http.Request // of the last request that passed
	for _, name := range names {
		key := func(*http.Request) (stint.Key, error) {
			if name == everyone {
				return name.Key(""), nil
			}
			return name.Key("192.0.2.1"), nil
		}
		kinds = append(kinds, Middleware(lim, nil, Rule{Key: key, Cost: bound, Settle: true})(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { open = r })))
	}
	rng := rand.New(rand.NewPCG(35, 1))
	shorts, later := 0, 0
	for range histories {
		kind := rng.IntN(len(kinds))
		name, l := names[kind], limits[kind]
		if l.FollowsCalendar() { // the period ends soon
			_, end := l.PeriodAt(clock.now())
			clock.pass(end.Sub(clock.now()) - time.Duration(rng.Int64N(int64(3*time.Minute))))
		}
		type stream struct {
			r        *http.Request
			at, ends time.Time
			index    int
		}
		var streams []stream
		var all []kept
		model := modelBucket{l: l, at: clock.now()}
		settleOne := func(i int) {
			s := streams[i]
			streams = slices.Delete(streams, i, i+1)
			cost := rng.Int64N(1501)
			model.pass(clock.now())
			want := model.settle(bound, cost, clock.now().Sub(s.at))
			short, err := rules.Settle(s.r.Context(), name, cost)
			require.NoError(t, err)
			require.Equal(t, want, short)
			if short > 0 {
				shorts++
			}
			all[s.index].cost = min(cost, bound)
			if l.FollowsCalendar() {
				if _, end := l.PeriodAt(s.at); !clock.now().Before(end) {
					later++
				}
			}
			all = append(all, kept{clock.now(), max(0, cost-bound) - short})
		}
		for range 16 {
			clock.pass(time.Duration(rng.Int64N(int64(20 * time.Second))))
			for i := len(streams) - 1; i >= 0; i-- {
				if !streams[i].ends.After(clock.now()) {
					settleOne(i)
				}
			}
			open = nil
			answerTo(kinds[kind], httptest.NewRequest("GET", "/", nil))
			model.pass(clock.now())
			require.Equal(t, model.spend(bound), open != nil)
			if open != nil {
				streams = append(streams, stream{open, clock.now(),
					clock.now().Add(time.Duration(rng.Int64N(int64(120 * time.Second)))), len(all)})
				all = append(all, kept{clock.now(), bound})
			}
		}
		for len(streams) > 0 {
			settleOne(rng.IntN(len(streams)))
		}
		requireLaw(t, l, all)
		if l.FollowsCalendar() {
			_, end := l.PeriodAt(clock.now())
			clock.pass(end.Sub(clock.now()))
		}
		clock.pass(time.Hour) // all buckets are full
	}
	require.NotZero(t, later, "some are settled in a later period of the calendar")
	require.NotZero(t, shorts, "some true costs are over the bound, and not there")
}

// Sixty-four event streams at the same time, each settled when it ends. Those of
// a quota that follows the calendar begin in the last half minute of an hour, and
// most of them end in the next hour.
func TestSettleStreams(t *testing.T) {
	t.Parallel()
	for _, l := range []stint.Limit{stint.PerMinute(20_000), stint.EachHour(64_000, time.UTC)} {
		t.Run(l.String(), func(t *testing.T) { settleStreams(t, l) })
	}
}

func settleStreams(t *testing.T, l stint.Limit) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(59*time.Minute + 30*time.Second) // since midnight
		lim, err := stint.New(stint.NewMemStore(), testLimits(t, map[stint.Name]stint.Limit{perKey: l}), nil)
		require.NoError(t, err)
		defer lim.Close()
		var mu sync.Mutex
		var all []kept
		h := Middleware(lim, nil, byKeyBound(1000))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			rng := rand.New(rand.NewPCG(uint64(len(all)), 1))
			i, cost := len(all), rng.Int64N(1501)
			all = append(all, kept{lim.Now(), 0})
			mu.Unlock()
			defer func() {
				short, err := rules.Settle(r.Context(), perKey, cost)
				require.NoError(t, err)
				mu.Lock()
				all[i].cost = min(cost, 1000)
				all = append(all, kept{lim.Now(), max(0, cost-1000) - short})
				mu.Unlock()
			}()
			for range 10 {
				io.WriteString(w, "data: x\n\n")
				time.Sleep(time.Duration(rng.Int64N(int64(12 * time.Second))))
			}
		}))
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 20 {
					answerTo(h, withKey("k"))
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		require.Greater(t, len(all), 100)
		requireLaw(t, l, all)
	})
}

// SetStatus tells the rules the status that code around them writes.
func TestSetStatus(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	// A framework whose handlers return an error: it writes the status of the
	// error after the middleware has returned.
	framework := func(adapter bool, layers ...func(http.Handler) http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			code := 0
			var h http.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				code = 401 // the handler returns ErrUnauthorized
				if adapter {
					SetStatus(r, 100) // no final status
					SetStatus(r, code)
				}
			})
			for _, layer := range layers {
				h = layer(h)
			}
			h.ServeHTTP(w, r)
			w.WriteHeader(code)
		})
	}
	counts := Middleware(lim, nil, Rule{Key: ByIP(failures), Count: AuthFailed})
	refunds := Middleware(lim, nil, Rule{Key: ByIP(perAddress), Refund: AuthFailed})
	for _, adapter := range []bool{false, true} {
		require.NoError(t, lim.Reset(failures.Key("192.0.2.1"), perAddress.Key("192.0.2.1")))
		w := answerTo(framework(adapter, counts, refunds), httptest.NewRequest("GET", "/", nil))
		require.Equal(t, 401, w.Code)
		want := map[bool]int64{false: 5, true: 4}[adapter]
		require.Equal(t, want, left(t, lim, failures.Key("192.0.2.1")), "with an adapter: %v", adapter)
		want = map[bool]int64{false: 4, true: 5}[adapter]
		require.Equal(t, want, left(t, lim, perAddress.Key("192.0.2.1")), "with an adapter: %v", adapter)
		if adapter {
			require.Equal(t, 2, strings.Count(w.Header().Get("RateLimit"), ";r="))
			require.Contains(t, w.Header().Get("RateLimit"), `"login";r=4;`)
		}
	}
	SetStatus(httptest.NewRequest("GET", "/", nil), 401) // not through middleware: nothing happens
}

// spending is a Limiter whose second call takes a while.
type spending struct {
	stint.Decider
	begun chan struct{}
	calls *atomic.Int64
}

func (s spending) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if s.calls.Add(1) == 2 {
		close(s.begun)
		for range 10_000 {
			runtime.Gosched()
		}
	}
	return s.Decider.Do(ctx, reqs, ds)
}

// The header is not written while a SetStatus in another goroutine changes it, as
// in a handler that http.TimeoutHandler answers for.
func TestSetStatusBeside(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	slow := spending{lim, make(chan struct{}), new(atomic.Int64)}
	var set sync.WaitGroup
	h := Middleware(slow, nil, Rule{Key: ByIP(failures), Count: AuthFailed})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			set.Go(func() { SetStatus(r, http.StatusUnauthorized) })
			<-slow.begun
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	set.Wait()
	require.Equal(t, `"login";r=4;t=12`, w.Result().Header.Get("RateLimit"))
}
