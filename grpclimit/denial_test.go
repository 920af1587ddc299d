package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/rules"
)

const pushback = "grpc-retry-pushback-ms"

// retrying makes a client retry denials, after a millisecond unless the server
// says otherwise.
const retrying = `{"methodConfig": [{
	"name": [{"service": "grpc.testing.TestService"}],
	"retryPolicy": {
		"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]
	}
}]}`

// The details and the trailer of a denial reach the client, and nothing else.
func TestDenial(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(2), perKey: stint.PerHour(2)})
	c := dial(t, serve(t, new(service), limited(lim, &grpclimit.Options{Domain: "api.example.com"},
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)},
		grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "api-key")},
		grpclimit.Rule{Key: grpclimit.Single(everyone)},
		grpclimit.Rule{Key: grpclimit.ByPeer(failures), Shadow: true},
	)...))
	require.Equal(t, []codes.Code{codes.OK, codes.OK}, answers(t, 2, c, "api-key", "secret-17"))
	clock.pass(1234567)

	trailer, err := trailerOf(t, c, "api-key", "secret-17")
	st := status.Convert(err)
	require.Equal(t, codes.ResourceExhausted, st.Code())
	assert.Equal(t, "rate limit exceeded: address, key", st.Message())
	assert.NotContains(t, st.String()+st.Proto().String(), "secret-17")
	assert.NotContains(t, st.Proto().String(), "127.0.0.1")
	retry, quota, info := detailsOf(t, err)
	assert.Equal(t, 30*time.Minute-1234567, retry.GetRetryDelay().AsDuration())
	require.Len(t, quota.GetViolations(), 2)
	for i, want := range []struct{ subject, description string }{
		{"address", stint.PerMinute(2).String() + " used up"}, {"key", stint.PerHour(2).String() + " used up"},
	} {
		assert.Equal(t, want.subject, quota.GetViolations()[i].GetSubject())
		assert.Equal(t, want.description, quota.GetViolations()[i].GetDescription())
	}
	assert.Equal(t, "RATE_LIMIT_EXCEEDED", info.GetReason())
	assert.Equal(t, "api.example.com", info.GetDomain())
	assert.Equal(t, []string{"1799999"}, trailer[pushback]) // 1,799,998.765 ms

	clock.pass(30*time.Minute - 1234567 - 1)
	assert.Equal(t, []codes.Code{codes.ResourceExhausted}, answers(t, 1, c, "api-key", "secret-17"))
	clock.pass(1)
	assert.Equal(t, []codes.Code{codes.OK}, answers(t, 1, c, "api-key", "secret-17"))
}

// The RateLimit fields are in the trailer, never in the header.
func TestRateLimit(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(2), perKey: stint.PerDay(1)})
	c := dial(t, serve(t, new(service), limited(lim, &grpclimit.Options{RateLimit: true},
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)},
		grpclimit.Rule{Key: grpclimit.ByPeer(perKey), Pattern: "received"},
		grpclimit.Rule{Key: grpclimit.ByPeer(failures), Count: grpclimit.AuthFailed},
		grpclimit.Rule{Key: grpclimit.ByPeer(off)},
		grpclimit.Rule{Key: grpclimit.ByPeer(everyone), Shadow: true},
	)...))
	for _, want := range []string{
		`"address";r=1;t=30, "login";r=5;t=12`, `"address";r=0;t=30, "login";r=5;t=12`,
		`"address";r=0;t=30, "login";r=5;t=12`,
	} {
		trailer, _ := trailerOf(t, c)
		assert.Equal(t, []string{want}, trailer["ratelimit"])
		assert.Equal(t, []string{`"address";q=2;w=60, "login";q=5;w=60`}, trailer["ratelimit-policy"])
	}
	clock.pass(time.Minute)
	var trailer metadata.MD
	_, err := exchange(t, c, 2, grpc.Trailer(&trailer))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Equal(t, []string{`"address";r=1;t=30, "login";r=5;t=12, "key";r=0;t=86400`}, trailer["ratelimit"])
}

// The policy has the limit as it was configured, although its interval is rounded.
func TestRateLimitOfASeventh(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(7), perKey: stint.PerMinute(11)})
	c := dial(t, serve(t, new(service), limited(lim, &grpclimit.Options{RateLimit: true},
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)}, grpclimit.Rule{Key: grpclimit.ByPeer(perKey)})...))
	trailer, _ := trailerOf(t, c)
	assert.Equal(t, []string{`"address";q=7;w=3600, "key";q=11;w=60`}, trailer["ratelimit-policy"])
}

// The RateLimit fields show what is left at the end of a call.
func TestRateLimitAtTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		rule grpclimit.Rule
		want string
	}{
		"refunded":   {grpclimit.Rule{Refund: grpclimit.AuthFailed}, `"address";r=5;t=12`},
		"counted":    {grpclimit.Rule{Count: grpclimit.AuthFailed}, `"address";r=4;t=12`},
		"locked out": {grpclimit.Rule{Cost: 5, LockOut: time.Hour}, `"address";r=0;t=3600`},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			c.rule.Key = grpclimit.ByPeer(perAddress)
			client := dial(t, serve(t, ending(status.Error(codes.Unauthenticated, "")),
				limited(lim, &grpclimit.Options{RateLimit: true}, c.rule)...))
			trailer, _ := trailerOf(t, client)
			assert.Equal(t, []string{c.want}, trailer["ratelimit"])
		})
	}
	t.Run("messages", func(t *testing.T) {
		for lockOut, want := range map[time.Duration]string{0: `"address";r=0;t=30`, time.Hour: `"address";r=0;t=3600`} {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(2)})
			client := dial(t, serve(t, new(service), limited(lim, &grpclimit.Options{RateLimit: true},
				grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Pattern: "received", LockOut: lockOut})...))
			var trailer metadata.MD
			_, err := exchange(t, client, 2, grpc.Trailer(&trailer))
			assert.ErrorIs(t, err, io.EOF)
			assert.Equal(t, []string{want}, trailer["ratelimit"])
		}
	})
}

// A client with a retryPolicy waits for as long as the trailer says, and then
// succeeds. RetryInfo alone would not make it wait.
func TestRetryPolicy(t *testing.T) {
	limits := newLimits(t, map[stint.Name]stint.Limit{
		perAddress: {Burst: 1, Count: 1, Period: 200 * time.Millisecond},
	})
	lim, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer lim.Close()
	var attempts []time.Time // on the server
	var denied []time.Duration
	count := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		attempts = append(attempts, time.Now())
		resp, err := next(ctx, req)
		retry, _, _ := detailsOf(t, err)
		if retry != nil {
			denied = append(denied, retry.GetRetryDelay().AsDuration())
		}
		return resp, err
	}
	c := dial(t, serve(t, new(service), append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(count)},
		limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)})...)...),
		grpc.WithDefaultServiceConfig(retrying))
	require.NoError(t, call(t, c))
	require.Len(t, attempts, 1)
	require.NoError(t, call(t, c), "the second call is retried")
	require.Len(t, attempts, 3, "one retry")
	require.Len(t, denied, 1)
	waited := attempts[2].Sub(attempts[1])
	require.GreaterOrEqual(t, waited, denied[0].Truncate(time.Millisecond), "not before RetryDelay")
	t.Logf("RetryDelay %v, retried %v after it", denied[0], waited-denied[0])
}

// Pushbacks that end all retries: -1 over a day, and if no retry would pass.
func TestNoRetry(t *testing.T) {
	for name, c := range map[string]struct {
		limit stint.Limit
		cost  int64
		retry time.Duration // 0: no RetryInfo
	}{
		"over a day": {stint.PerDay(1).DividedBy(2), 1, 48 * time.Hour},
		"blocked":    {stint.Blocked, 1, 0},
		"over burst": {stint.PerDay(1), 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: c.limit})
			if c.retry > 0 {
				spend(t, lim, local, 1)
			}
			var attempts atomic.Int64
			key := func(c grpclimit.Call) (stint.Key, error) { attempts.Add(1); return grpclimit.ByPeer(perAddress)(c) }
			client := dial(t, serve(t, new(service), limited(lim, nil, grpclimit.Rule{Key: key, Cost: c.cost})...),
				grpc.WithDefaultServiceConfig(retrying))
			trailer, err := trailerOf(t, client)
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))
			assert.Equal(t, []string{"-1"}, trailer[pushback])
			assert.EqualValues(t, 1, attempts.Load(), "no retry")
			retry, _, _ := detailsOf(t, err)
			assert.Equal(t, c.retry, retry.GetRetryDelay().AsDuration())
			assert.Equal(t, c.retry != 0, retry != nil)
		})
	}
}

// broken is a Decider that fails.
type broken struct{ stint.Decider }

func (broken) Do(context.Context, []stint.Request, []stint.Decision) (stint.Decision, error) {
	return stint.Decision{}, stint.ErrNotDurable
}

// Each error has a code. Those of the Limiter pass with FailOpen.
func TestErrors(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	own := errors.New("a KeyFunc's own error")
	failing := func(grpclimit.Call) (stint.Key, error) { return stint.Key{}, own }
	ofPeer := grpclimit.ByPeer(perAddress)
	byKey, byIP := grpclimit.ByMetadata(perKey, "k"), grpclimit.ByMetadata(perIP, "k")
	const invalid, unavailable = codes.InvalidArgument, codes.Unavailable
	for name, c := range map[string]struct {
		lim  stint.Decider
		rule grpclimit.Rule
		sent []string
		want codes.Code
		err  error // that the observers get
	}{
		"no id":       {lim, grpclimit.Rule{Key: byKey}, nil, invalid, rules.ErrNoID},
		"two ids":     {lim, grpclimit.Rule{Key: byKey}, []string{"k", "1", "k", "2"}, invalid, rules.ErrNoID},
		"no subject":  {lim, grpclimit.Rule{Key: grpclimit.ByTLSSubject(perKey)}, nil, invalid, rules.ErrNoID},
		"no target":   {lim, grpclimit.Rule{Key: grpclimit.ByTarget(perKey)}, nil, invalid, rules.ErrNoID},
		"first of no": {lim, grpclimit.Rule{Key: rules.FirstOf[grpclimit.Call]()}, nil, invalid, rules.ErrNoID},
		"refused id":  {lim, grpclimit.Rule{Key: byIP}, []string{"k", "x"}, invalid, stint.ErrInvalidID},
		"not Unix":    {lim, grpclimit.Rule{Key: byIP}, []string{"k", "unix"}, invalid, stint.ErrInvalidID},
		"negative": {lim, grpclimit.Rule{Key: ofPeer, CostFunc: func(grpclimit.Call) int64 { return -1 }}, nil,
			invalid, stint.ErrNegativeCost},
		"over burst": {lim, grpclimit.Rule{Key: ofPeer, Cost: 6}, nil, exhausted, stint.ErrCostOverBurst},
		"limiter":    {broken{lim}, grpclimit.Rule{Key: ofPeer}, nil, unavailable, stint.ErrNotDurable},
		"undeclared": {lim, grpclimit.Rule{Key: grpclimit.ByPeer(99)}, nil, unavailable, stint.ErrUnknownName},
		"own error":  {lim, grpclimit.Rule{Key: failing}, nil, unavailable, own},
	} {
		t.Run(name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				var failed []error
				opts := &grpclimit.Options{FailOpen: open, Observers: []grpclimit.Observer{{
					Error: func(_ grpclimit.Call, err error) { failed = append(failed, err) },
				}}}
				err := call(t, dial(t, serve(t, new(service), limited(c.lim, opts, c.rule)...)), c.sent...)
				want := c.want
				if open && want == unavailable {
					want = ok
				}
				assert.Equal(t, want, status.Code(err), "FailOpen %v: %v", open, err)
				require.Len(t, failed, 1)
				assert.ErrorIs(t, failed[0], c.err)
				retry, _, _ := detailsOf(t, err)
				assert.Nil(t, retry)
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	key := grpclimit.ByPeer(perAddress)
	never := func(codes.Code) bool { return false }
	for want, rule := range map[string]grpclimit.Rule{
		"no Key":               {},
		"the Cost -1":          {Key: key, Cost: -1},
		"the InFlight -1":      {Key: key, InFlight: -1},
		`the Pattern "x"`:      {Key: key, Pattern: "x"},
		`the Pattern "/a.b"`:   {Key: key, Pattern: "/a.b"},
		`the Pattern "/a.*/b"`: {Key: key, Pattern: "/a.*/b"},
		`the Pattern "/a/b*"`:  {Key: key, Pattern: "/a/b*"},
		`"lost /a.B/C"`:        {Key: key, Pattern: "lost /a.B/C"},
		"are for calls":        {Key: key, Pattern: "sent", Refund: never},
		"need the cost":        {Key: key, Settle: true, Count: never},
	} {
		func() {
			defer func() { assert.Contains(t, recover(), want) }()
			grpclimit.Server(lim, nil, rule)
		}()
	}
	assert.Panics(t, func() { grpclimit.Server((*hostlimit.Limiter)(nil), nil) })
	assert.Panics(t, func() { grpclimit.Server(lim, &grpclimit.Options{Exempt: []string{"x"}}) })
	assert.Panics(t, func() { grpclimit.Client(lim, nil) })
	assert.Panics(t, func() { grpclimit.Client(nil, &grpclimit.ClientOptions{Key: key}) })
}
