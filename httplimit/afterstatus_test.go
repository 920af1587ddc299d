package httplimit

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

func TestCountStatus(t *testing.T) {
	lim, clock := newLimiter(t, nil)
	var seen []Decision
	observer := Observer{Decisions: func(_ *http.Request, ds []Decision) { seen = append(seen, ds...) }}
	url := serve(t, New(lim, &Options{Observers: []Observer{observer}},
		Rule{Key: ByIP(failures), CountStatus: AuthFailed})(http.HandlerFunc(status))).URL
	require.Equal(t, "200 200 200 200 200 200", statuses(t, 6, url))
	require.EqualValues(t, 5, left(t, lim, local[failures]))
	require.Len(t, seen, 6)
	require.True(t, seen[0].After)

	require.Equal(t, `"login";r=5;t=12`, get(t, url).Header.Get("RateLimit"), "nothing is spent")
	require.Equal(t, `"login";r=4;t=12`, get(t, url+"?status=401").Header.Get("RateLimit"))
	require.Len(t, seen, 9)
	require.False(t, seen[8].After)
	require.EqualValues(t, 4, seen[8].Remaining)

	require.Equal(t, "403 403 403 403 429", statuses(t, 5, url+"?status=403"))
	require.Equal(t, 429, get(t, url).StatusCode, "before the status is known")
	clock.pass(12 * time.Second)
	require.Equal(t, "200 200 401 429", statuses(t, 2, url)+" "+statuses(t, 2, url+"?status=401"))
}

func TestRefundStatus(t *testing.T) {
	t.Run("some rules", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		url := limited(t, lim, Rule{Key: ByIP(perAddress), Cost: 2, RefundStatus: ServerError},
			Rule{Key: ByHeader(perKey, "X-Key"), Cost: 3})
		res := get(t, url+"?status=500", "X-Key", "k")
		require.Equal(t, 500, res.StatusCode)
		require.Equal(t, `"address";r=5;t=12, "key";r=2;t=12`, res.Header.Get("RateLimit"))
		require.EqualValues(t, 5, left(t, lim, local[perAddress]))
		require.EqualValues(t, 2, left(t, lim, local[perKey]))
		get(t, url+"?status=404", "X-Key", "other")
		require.EqualValues(t, 3, left(t, lim, local[perAddress]))
	})
	for name, ru := range map[string]Rule{
		"nothing spent: Shadow rule denied": {Shadow: true, Cost: 3, RefundStatus: Status(200)},
		"nothing spent: status not counted": {CountStatus: AuthFailed, Cost: 2, RefundStatus: Status(200)},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			spend(t, lim, local[failures], 3)
			ru.Key = ByIP(failures)
			require.Equal(t, 200, get(t, limited(t, lim, ru)).StatusCode)
			require.EqualValues(t, 2, left(t, lim, local[failures]))
		})
	}
}

func TestLockOut(t *testing.T) {
	succeeded := func(status int) bool { return !AuthFailed(status) }
	for name, ru := range map[string]Rule{
		"counted":  {Key: ByIP(failures), LockOut: time.Hour, CountStatus: AuthFailed},
		"refunded": {Key: ByIP(failures), LockOut: time.Hour, RefundStatus: succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			lim, clock := newLimiter(t, nil)
			url := limited(t, lim, ru)
			require.Equal(t, "401 401 401 401", statuses(t, 4, url+"?status=401"))
			require.Equal(t, "200 200 200", statuses(t, 3, url), "a success keeps the last token")
			res := get(t, url+"?status=401")
			require.Equal(t, 401, res.StatusCode)
			require.Equal(t, `"login";r=0;t=3600`, res.Header.Get("RateLimit"))
			clock.pass(59 * time.Minute)
			res = get(t, url)
			require.Equal(t, 429, res.StatusCode)
			require.Equal(t, "60", res.Header.Get("Retry-After"))
			clock.pass(61 * time.Second)
			require.Equal(t, 200, get(t, url).StatusCode)
		})
	}
	for name, tc := range map[string]struct {
		rule  Rule
		spent int64 // before
		want  string
		held  bool
	}{
		"too little for the cost, counted": {Rule{Cost: 2, CountStatus: AuthFailed}, 0, "401 401 429", true},
		"too little for the cost":          {Rule{Cost: 2}, 0, "401 401 429", true},
		"too little at once":               {Rule{Cost: 3}, 0, "401 429 429", true},
		"enough for a smaller cost":        {Rule{CostFunc: costing(4)}, 0, "401 429 429", false},
		"costs nothing":                    {Rule{CostFunc: costing(0)}, 0, "401 401 401", false},
		"costs nothing of nothing":         {Rule{CostFunc: costing(0)}, 5, "401 401 401", false},
		"shadow":                           {Rule{Cost: 5, Shadow: true}, 0, "401 401 401", false},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			spend(t, lim, local[failures], tc.spent)
			tc.rule.Key, tc.rule.LockOut = ByIP(failures), time.Hour
			require.Equal(t, tc.want, statuses(t, 3, limited(t, lim, tc.rule)+"?status=401"))
			require.Equal(t, tc.held, !heldUntil(t, lim, local[failures]).IsZero())
			if tc.spent > 0 || tc.rule.Shadow {
				require.EqualValues(t, 0, left(t, lim, local[failures]))
			}
		})
	}

	t.Run("refunded, with a queue since", func(t *testing.T) {
		queued := stint.PerMinute(5)
		queued.Queue = 10
		lim, _ := newLimiter(t, map[stint.Name]stint.Limit{failures: queued})
		ru := Rule{Key: ByIP(failures), LockOut: time.Hour, RefundStatus: Status(200)}
		srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			for range 2 {
				if _, err := lim.Reserve(local[failures], 4); err != nil {
					panic(err)
				}
			}
		})))
		require.Equal(t, 200, get(t, srv.URL).StatusCode)
		require.Zero(t, heldUntil(t, lim, local[failures]))
	})
	t.Run("others refunded since", func(t *testing.T) {
		lim, _ := newLimiter(t, nil)
		inside, right, wrong := make(chan struct{}), make(chan struct{}), make(chan struct{})
		ru := Rule{Key: ByIP(failures), LockOut: time.Hour, RefundStatus: succeeded}
		srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inside <- struct{}{}
			if r.URL.Path == "/wrong" {
				<-wrong
				w.WriteHeader(401)
				return
			}
			<-right
		})))
		statuses := make(chan int, 5)
		for _, path := range []string{"/right", "/right", "/right", "/right", "/wrong"} {
			go func() { statuses <- get(t, srv.URL+path).StatusCode }()
			<-inside
		}
		close(right)
		for range 4 {
			require.Equal(t, 200, <-statuses)
		}
		close(wrong)
		require.Equal(t, 401, <-statuses)
		require.EqualValues(t, 4, left(t, lim, local[failures]))
		require.Zero(t, heldUntil(t, lim, local[failures]))
	})
	t.Run("slow handler", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		ru := Rule{Key: ByIP(failures), Cost: 5, RefundStatus: Status(200), LockOut: time.Hour}
		srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			clock.pass(2 * time.Minute) // all tokens come back
			w.WriteHeader(401)
		})))
		require.Equal(t, 401, get(t, srv.URL).StatusCode)
		require.NotZero(t, heldUntil(t, lim, local[failures]))
	})
	t.Run("longer hold stays", func(t *testing.T) {
		lim, clock := newLimiter(t, nil)
		until := clock.now().Add(24 * time.Hour)
		ru := Rule{Key: ByIP(failures), Cost: 5, RefundStatus: Status(200), LockOut: time.Minute}
		srv := serve(t, New(lim, nil, ru)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := lim.Hold(local[failures], until); err != nil {
				panic(err)
			}
			w.WriteHeader(401)
		})))
		require.Equal(t, `"login";r=0;t=86400`, get(t, srv.URL).Header.Get("RateLimit"))
		require.True(t, heldUntil(t, lim, local[failures]).Equal(until))
	})
}
