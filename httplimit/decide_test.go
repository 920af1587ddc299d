package httplimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestShadow(t *testing.T) {
	byKey := Rule{Key: ByHeader(perKey, "X-Key")}
	runScenarios(t, map[string]scenario{
		"decides and does not deny": {
			limits: map[stint.Name]stint.Limit{everyone: stint.PerHour(1), perKey: stint.PerHour(3)},
			rules:  []Rule{{Key: Shared(everyone), Shadow: true}, byKey}, script: `
			200 k: 200
			Observed: key allowed, everyone allowed
			Fields: Ratelimit "key";r=2;t=1200 / Ratelimit-Policy "key";q=3;w=3600
			200 k: 200 200
			Observed: key allowed, everyone denied
			200 k: 429
			Observed: key denied, everyone denied
			200: 400
			Error: no id`},
		"errors stop nothing": {rules: []Rule{{Key: ByHeader(perNumber, "X-Key"), Shadow: true}}, script: `
			200 x: 200
			Error: invalid id`},
		"counts statuses": {rules: []Rule{{Key: ByIP(failures), CountStatus: AuthFailed, Shadow: true}}, script: `
			401: 401 401 401 401 401 401 401
			left login 0`},
		"refunds nothing if it could not spend: over the burst": {rules: []Rule{{Key: ByIP(perAddress),
			RefundStatus: Statuses(200)},
			{Key: ByIP(failures), Shadow: true, RefundStatus: Statuses(200), CostFunc: costing(6)}}, script: `
			spend login 3
			200: 200
			Error: burst
			left login 2
			left address 5`},
		"refunds nothing if it could not spend: negative": {
			rules: []Rule{{Key: ByIP(failures), Shadow: true, RefundStatus: Statuses(200), CostFunc: costing(-1)}}, script: `
			spend login 3
			200: 200
			Error: negative
			left login 2`},
	})
}

func TestNested(t *testing.T) {
	t.Run("another Limiter has other buckets", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		other, _ := newLimiter(t, nil)
		ru := Rule{Key: ByIP(perAddress)}
		h := Middleware(other, nil, ru)(Middleware(lim, nil, ru)(http.HandlerFunc(status)))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		require.EqualValues(t, 4, left(t, lim, ofClient["address"]))
		require.EqualValues(t, 4, left(t, other, ofClient["address"]))
	})
	// An inner rule replaces an outer Shadow rule of the same bucket.
	login := func(ru Rule) []Rule { ru.Key = ByIP(failures); return []Rule{ru} }
	shadow := func(ru Rule) []Rule { ru.Shadow = true; return login(ru) }
	const five = `
		200: 200 200 200 200 200 429
		Body: "violated-policies":["login"]
		held login 0s`
	runScenarios(t, map[string]scenario{
		"spends from a bucket once": {
			limits: map[stint.Name]stint.Limit{perKey: stint.PerHour(4)}, outer: []Rule{{Key: ByIP(perAddress)}},
			rules: []Rule{{Key: ByIP(perAddress)}, {Key: ByHeader(perKey, "X-Key")}}, script: `
			200 k: 200
			Observed: key allowed
			RateLimit: "address";r=4;t=12, "key";r=3;t=900
			200 k: 200 200 200 429
			Body: "violated-policies":["key"]
			left address 0`},
		"shadow":                   {outer: shadow(Rule{}), rules: login(Rule{}), script: five},
		"shadow counts":            {outer: shadow(Rule{CountStatus: AuthFailed}), rules: login(Rule{}), script: five},
		"shadow locks out":         {outer: shadow(Rule{LockOut: time.Hour}), rules: login(Rule{}), script: five},
		"shadow costs 5":           {outer: shadow(Rule{Cost: 5}), rules: login(Rule{}), script: five},
		"shadow in the same rules": {rules: append(shadow(Rule{}), login(Rule{})...), script: five},
		"inner counts": {outer: shadow(Rule{}), rules: login(Rule{CountStatus: AuthFailed, LockOut: time.Hour}), script: `
			401: 401 401 401 401 401 429
			held login 1h0m0s`},
		"inner refunds": {outer: shadow(Rule{}), rules: login(Rule{RefundStatus: Statuses(200)}), script: `
			200: 200 200 200 200 200 200
			left login 5`},
		"inner costs 5": {outer: shadow(Rule{}), rules: login(Rule{Cost: 5}), script: "200: 200 429"},
	})
	t.Run("an inner rule is later", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		inner := Middleware(lim, nil, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
		between := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			clock.pass(24 * time.Second) // two of three tokens come back
			spend(t, lim, ofClient["address"], 1)
			inner.ServeHTTP(w, r)
		})
		outer := Middleware(lim, nil, Rule{Key: ByIP(perAddress), Shadow: true, Cost: 3})
		outer(between).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		require.EqualValues(t, 3, left(t, lim, ofClient["address"]), "as without the Shadow rule")
	})
	t.Run("longest wait", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		address, key := Rule{Key: ByIP(perAddress)}, Rule{Key: ByHeader(perKey, "X-Key")}
		shadow := Rule{Key: ByIP(perAddress), Shadow: true}
		for _, wait := range []time.Duration{time.Hour, 2 * time.Hour} {
			require.NoError(t, lim.Hold(ofClient["address"], lim.Now().Add(wait)))
			require.NoError(t, lim.Hold(ofClient["key"], lim.Now().Add(3*time.Hour-wait)))
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-Key", "k")
			Middleware(lim, nil, shadow)(Middleware(lim, nil, address, key)(http.HandlerFunc(status))).ServeHTTP(w, r)
			require.Equal(t, "7200", w.Header().Get("Retry-After"))
		}
	})
}

// A handler may call nested middleware for each part of a batch. Once that has
// denied a part, it does not let the others pass.
func TestNestedDeniesAgain(t *testing.T) {
	for name, ru := range map[string]Rule{
		"spends": {}, "CountStatus": {CountStatus: AuthFailed}, "RefundStatus": {RefundStatus: ServerError},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1)})
			spend(t, lim, perKey.Key("k"), 1)
			ru.Key = ByHeader(perKey, "X-Key")
			part := Middleware(lim, nil, ru)(http.HandlerFunc(status))
			var codes []int
			var ds []Decision
			batch := Middleware(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) {
					for range 3 {
						w := httptest.NewRecorder()
						part.ServeHTTP(w, r)
						codes = append(codes, w.Code)
						require.Equal(t, `"everyone";r=4;t=12, "key";r=0;t=3600`, w.Header().Get("RateLimit"))
					}
					require.NoError(t, lim.Reset(perKey.Key("k")))
					for range 2 {
						part.ServeHTTP(httptest.NewRecorder(), r)
					}
					ds = Decisions(r)
				}))
			batch.ServeHTTP(httptest.NewRecorder(), withKey("k"))
			require.Equal(t, []int{429, 429, 429}, codes)
			require.Len(t, ds, 2, "one decision for each bucket")
			require.True(t, ds[1].Allowed)
			want := int64(0)
			if ru.CountStatus != nil {
				want = 1
			}
			require.Equal(t, want, left(t, lim, perKey.Key("k")), "the last two spend once")
		})
	}
}

// A handler may also try again, or call nested middleware for the parts of a batch,
// after a rule of it has spent nothing in the end. Then the rule decides anew.
func TestNestedSpendsAfterNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		rule     Rule
		statuses []string
		left     int64
	}{
		"refunded, then not":     {Rule{RefundStatus: ServerError}, []string{"503", "200"}, 4},
		"refunded twice":         {Rule{RefundStatus: ServerError}, []string{"503", "503"}, 5},
		"not counted, then so":   {Rule{CountStatus: AuthFailed}, []string{"200", "401"}, 4},
		"counted once":           {Rule{CountStatus: AuthFailed}, []string{"401", "401"}, 4},
		"refunded, then settled": {Rule{RefundStatus: ServerError, Settle: true, Cost: 3}, []string{"503", "200"}, 2},
		"in flight":              {Rule{CountStatus: AuthFailed, InFlight: 1}, []string{"200", "401"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			tc.rule.Key = ByHeader(perKey, "X-Key")
			part := Middleware(lim, nil, tc.rule)(http.HandlerFunc(status))
			around := Middleware(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) {
					for _, code := range tc.statuses {
						again := r.WithContext(r.Context())
						again.URL = &url.URL{Path: "/", RawQuery: "status=" + code}
						part.ServeHTTP(httptest.NewRecorder(), again)
					}
					require.Len(t, Decisions(r), 2, "one decision for each bucket")
				}))
			around.ServeHTTP(httptest.NewRecorder(), withKey("k"))
			require.Equal(t, tc.left, left(t, lim, perKey.Key("k")))
			require.EqualValues(t, 4, left(t, lim, everyone.Key("")))
		})
	}
}

// If another request has spent the last token when CountStatus counts, nested
// middleware does not let the next part pass.
func TestNestedCountsTooLate(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	part := Middleware(lim, nil, Rule{Key: ByHeader(perKey, "X-Key"), CountStatus: AuthFailed})(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			spend(t, lim, perKey.Key("k"), 5)
			w.WriteHeader(http.StatusUnauthorized)
		}))
	around := Middleware(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			for _, want := range []int{401, 429} {
				w := httptest.NewRecorder()
				part.ServeHTTP(w, r)
				require.Equal(t, want, w.Code)
			}
		}))
	around.ServeHTTP(httptest.NewRecorder(), withKey("k"))
}

// If one rule denies, the others beside it have spent nothing: a handler around
// them cannot get tokens back, and spends from all of them when it calls them again.
func TestNestedDeniesBeside(t *testing.T) {
	for name, beside := range map[string]Rule{
		"spends": {Cost: 2}, "Settle": {Cost: 2, Settle: true}, "RefundStatus": {Cost: 2, RefundStatus: ServerError},
		"Shadow": {Cost: 2, Shadow: true},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			key, address := perKey.Key("k"), perAddress.Key("192.0.2.1")
			spend(t, lim, key, 3)
			spend(t, lim, address, 5)
			beside.Key = ByHeader(perKey, "X-Key")
			nested := Middleware(lim, nil, beside, Rule{Key: ByIP(perAddress)})(http.HandlerFunc(status))
			instead := Middleware(lim, nil, Rule{Key: beside.Key})(http.HandlerFunc(status))
			Middleware(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				require.Equal(t, 429, answerTo(nested, r).Code)
				if beside.Settle {
					short, err := Settle(r, perKey, 1)
					require.NoError(t, err)
					require.EqualValues(t, 1, short, "nothing was spent")
				}
				require.EqualValues(t, 2, left(t, lim, key))
				require.NoError(t, lim.Reset(address))
				require.Equal(t, 200, answerTo(nested, r).Code)
				require.EqualValues(t, 0, left(t, lim, key))
				require.EqualValues(t, 4, left(t, lim, address))

				require.NoError(t, lim.Reset(key))
				spend(t, lim, key, 3)
			})).ServeHTTP(httptest.NewRecorder(), withKey("k"))

			spend(t, lim, address, 4)
			Middleware(lim, nil, Rule{Key: Shared(everyone)})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				require.Equal(t, 429, answerTo(nested, r).Code)
				require.Equal(t, 200, answerTo(instead, r).Code)
			})).ServeHTTP(httptest.NewRecorder(), withKey("k"))
			require.EqualValues(t, 1, left(t, lim, key))
		})
	}
	t.Run("Denied settles", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		spend(t, lim, perKey.Key("k"), 3)
		spend(t, lim, everyone.Key(""), 5)
		h := Middleware(lim, &Options{Denied: func(_ http.ResponseWriter, r *http.Request, _ stint.Decision) {
			_, err := Settle(r, perKey, 0)
			require.NoError(t, err)
		}}, Rule{Key: ByHeader(perKey, "X-Key"), Cost: 2, Settle: true}, Rule{Key: Shared(everyone)})
		answerTo(h(http.HandlerFunc(status)), withKey("k"))
		require.EqualValues(t, 2, left(t, lim, perKey.Key("k")))
	})
}

// A request whose client has gone does not wait for the disk. Its tokens stay
// spent.
func TestClientGone(t *testing.T) {
	store := &slowStore{stint.NewMemStore(), make(chan struct{}, 1), make(chan struct{})}
	lim, err := stint.New(store, testLimits(t, nil), &stint.Options{Durability: stint.Synced, CommitTimeout: time.Hour})
	require.NoError(t, err)
	defer lim.Close()
	release := sync.OnceFunc(func() { close(store.release) })
	defer release()
	for _, rules := range [][]Rule{
		{{Key: ByIP(perAddress)}}, {{Key: ByIP(perAddress)}, {Key: ByIP(failures)}},
		{{Key: ByIP(perAddress), Shadow: true}},
	} {
		var failed error
		h := Middleware(lim, &Options{Observers: []Observer{{Error: func(_ *http.Request, err error) { failed = err }}}}, rules...)(
			http.HandlerFunc(status))
		ctx, gone := context.WithCancel(t.Context())
		r := httptest.NewRequest("GET", "/200", nil).WithContext(ctx)
		r.RemoteAddr = "127.0.0.1:1"
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		<-store.saving
		gone()
		<-answered // a deadlock if it waits for the save
		require.ErrorIs(t, failed, context.Canceled)
		require.ErrorIs(t, failed, stint.ErrNotDurable)
		store.saving <- struct{}{} // for the next request, whose commit waits behind this one
	}
	release()
	require.EqualValues(t, 2, left(t, lim, local[perAddress]))
}
