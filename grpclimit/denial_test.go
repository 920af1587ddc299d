package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
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
	c := dial(t, serve(t, new(service), limited(lim, nil,
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)},
		grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "api-key")},
		grpclimit.Rule{Key: grpclimit.Shared(everyone)},
		grpclimit.Rule{Key: grpclimit.ByPeer(failures), Shadow: true},
	)...))
	require.Equal(t, []codes.Code{codes.OK, codes.OK}, answers(t, 2, c, "api-key", "secret-17"))
	clock.pass(1234567)

	var header, trailer metadata.MD
	_, err := c.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), "api-key", "secret-17"), &pb.Empty{},
		grpc.Header(&header), grpc.Trailer(&trailer))
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
	assert.Nil(t, info)
	assert.Equal(t, []string{"1799999"}, trailer[pushback]) // 1,799,998.765 ms
	assert.Empty(t, header, "a client does not retry after a header")

	clock.pass(30*time.Minute - 1234567 - 1)
	assert.Equal(t, []codes.Code{codes.ResourceExhausted}, answers(t, 1, c, "api-key", "secret-17"))
	clock.pass(1)
	assert.Equal(t, []codes.Code{codes.OK}, answers(t, 1, c, "api-key", "secret-17"))
}

func TestDomain(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(1)})
	c := dial(t, serve(t, new(service), limited(lim, &grpclimit.Options{Domain: "api.example.com"},
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)})...))
	require.NoError(t, call(t, c))
	_, _, info := detailsOf(t, call(t, c))
	assert.Equal(t, "RATE_LIMIT_EXCEEDED", info.GetReason())
	assert.Equal(t, "api.example.com", info.GetDomain())
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
		var header, trailer metadata.MD
		c.EmptyCall(t.Context(), &pb.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer))
		assert.Equal(t, []string{want}, trailer["ratelimit"])
		assert.Equal(t, []string{`"address";q=2;w=60, "login";q=5;w=60`}, trailer["ratelimit-policy"])
		assert.NotContains(t, header, "ratelimit")
	}
	clock.pass(time.Minute)
	var trailer metadata.MD
	_, err := exchange(t, c, 2, grpc.Trailer(&trailer))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Equal(t, []string{`"address";r=1;t=30, "login";r=5;t=12, "key";r=0;t=86400`}, trailer["ratelimit"])
}

// The RateLimit fields show what is left at the end of a call.
func TestRateLimitAtTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		rule   grpclimit.Rule
		settle bool
		want   string
	}{
		"settled":    {grpclimit.Rule{Cost: 4, Settle: true}, true, `"address";r=4;t=12`},
		"refunded":   {grpclimit.Rule{Refund: grpclimit.AuthFailed}, false, `"address";r=5;t=12`},
		"counted":    {grpclimit.Rule{Count: grpclimit.AuthFailed}, false, `"address";r=4;t=12`},
		"locked out": {grpclimit.Rule{Cost: 5, LockOut: time.Hour}, false, `"address";r=0;t=3600`},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			s := &service{empty: func(ctx context.Context) error {
				if c.settle {
					_, err := rules.Settle(ctx, perAddress, 1)
					assert.NoError(t, err)
				}
				return status.Error(codes.Unauthenticated, "")
			}}
			c.rule.Key = grpclimit.ByPeer(perAddress)
			client := dial(t, serve(t, s, limited(lim, &grpclimit.Options{RateLimit: true}, c.rule)...))
			var trailer metadata.MD
			client.EmptyCall(t.Context(), &pb.Empty{}, grpc.Trailer(&trailer))
			assert.Equal(t, []string{c.want}, trailer["ratelimit"])
		})
	}
	t.Run("messages", func(t *testing.T) {
		for _, lockOut := range []time.Duration{0, time.Hour} {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerMinute(2)})
			client := dial(t, serve(t, new(service), limited(lim, &grpclimit.Options{RateLimit: true},
				grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Pattern: "received", LockOut: lockOut})...))
			var trailer metadata.MD
			_, err := exchange(t, client, 2, grpc.Trailer(&trailer))
			assert.ErrorIs(t, err, io.EOF)
			want := `"address";r=0;t=30`
			if lockOut > 0 {
				want = `"address";r=0;t=3600`
			}
			assert.Equal(t, []string{want}, trailer["ratelimit"])
		}
	})
}

// If one rule denies, the trailer and the observers have the state of the others
// without the call, because their tokens were returned.
func TestDenialCalendar(t *testing.T) {
	for name, c := range map[string]struct {
		rolling, daily stint.Limit
		want           []string // it is 04:05:06
	}{
		"rolling denies": {stint.PerMinute(2), stint.EachDay(5, time.UTC), []string{
			`"address";r=1;t=30, "everyone";r=4;t=71694`, `"address";r=0;t=30, "everyone";r=3;t=71694`,
			`"address";r=0;t=30, "everyone";r=3;t=71694`,
		}},
		"calendar denies": {stint.PerMinute(5), stint.EachDay(2, time.UTC), []string{
			`"address";r=4;t=12, "everyone";r=1;t=71694`, `"address";r=3;t=12, "everyone";r=0;t=71694`,
			`"address";r=3;t=12, "everyone";r=0;t=71694`,
		}},
		"the others are full": {stint.Blocked, stint.EachDay(5, time.UTC), []string{
			`"everyone";r=5;t=71694`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: c.rolling, everyone: c.daily})
			var seen []rules.Decision
			watch := grpclimit.Observer{Decisions: func(_ grpclimit.Call, ds []rules.Decision) {
				seen = slices.Clone(ds)
			}}
			conn := dial(t, serve(t, new(service), limited(lim,
				&grpclimit.Options{RateLimit: true, Observers: []grpclimit.Observer{watch}},
				grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)},
				grpclimit.Rule{Key: grpclimit.Shared(everyone)},
			)...))
			for _, want := range c.want {
				var trailer metadata.MD
				conn.EmptyCall(t.Context(), &pb.Empty{}, grpc.Trailer(&trailer))
				require.Equal(t, []string{want}, trailer["ratelimit"])
				for i, key := range []stint.Key{local, everyone.Key("")} {
					now, err := lim.Do(t.Context(), []stint.Request{{Key: key, Mode: stint.CheckOnly}}, nil)
					require.NoError(t, err)
					require.Equal(t, now.Remaining, seen[i].Remaining)
					require.Equal(t, now.ResetAfter, seen[i].ResetAfter)
				}
			}
		})
	}
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

// Pushbacks that end all retries: -1 over a day, if no retry would pass, and two
// values, which nested interceptors do not send.
func TestNoRetry(t *testing.T) {
	for name, c := range map[string]struct {
		limit    stint.Limit
		rule     grpclimit.Rule
		spent    int64
		pushback string
		retry    time.Duration // 0: no RetryInfo
	}{
		"over a day": {limit: stint.PerDay(1).DividedBy(2), spent: 1, pushback: "-1", retry: 48 * time.Hour},
		"blocked":    {limit: stint.Blocked, pushback: "-1"},
		"over burst": {limit: stint.PerDay(1), rule: grpclimit.Rule{Cost: 2}, pushback: "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: c.limit})
			if c.spent > 0 {
				spend(t, lim, local, c.spent)
			}
			c.rule.Key = grpclimit.ByPeer(perAddress)
			var attempts atomic.Int64
			count := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				attempts.Add(1)
				return next(ctx, req)
			}
			client := dial(t, serve(t, new(service), append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(count)},
				limited(lim, nil, c.rule)...)...), grpc.WithDefaultServiceConfig(retrying))
			var trailer metadata.MD
			_, err := client.EmptyCall(t.Context(), &pb.Empty{}, grpc.Trailer(&trailer))
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))
			assert.Equal(t, []string{c.pushback}, trailer[pushback])
			assert.EqualValues(t, 1, attempts.Load(), "no retry")
			retry, _, _ := detailsOf(t, err)
			assert.Equal(t, c.retry, retry.GetRetryDelay().AsDuration())
			assert.Equal(t, c.retry != 0, retry != nil)
		})
	}
}

// Nested interceptors, of which each could deny, set the pushback once. Each
// spends.
func TestNested(t *testing.T) {
	limits := map[stint.Name]stint.Limit{perAddress: stint.PerMinute(4), perKey: stint.PerMinute(1)}
	lim, _ := newLimiter(t, limits)
	var seen []rules.Decision
	s := &service{empty: func(ctx context.Context) error {
		seen = rules.Decisions(ctx)
		return nil
	}}
	outer := limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)},
		grpclimit.Rule{Key: grpclimit.Shared(everyone), Shadow: true})
	inner := limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)},
		grpclimit.Rule{Key: grpclimit.Shared(everyone)}, grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "k"), Optional: true})
	c := dial(t, serve(t, s, append(outer, inner...)...))
	require.NoError(t, call(t, c, "k", "a"))
	assert.EqualValues(t, 2, left(t, lim, local), "each")
	assert.EqualValues(t, 3, left(t, lim, everyone.Key("")), "each")
	var labels []string
	for _, d := range seen {
		labels = append(labels, d.Label)
	}
	assert.Equal(t, "address everyone address everyone key", strings.Join(labels, " "))

	var trailer metadata.MD
	_, err := c.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), "k", "a"), &pb.Empty{}, grpc.Trailer(&trailer))
	assert.Equal(t, "rate limit exceeded: key", status.Convert(err).Message())
	assert.Len(t, trailer[pushback], 1)
	assert.EqualValues(t, 1, left(t, lim, local), "outer tokens stay spent")
	assert.EqualValues(t, 2, left(t, lim, everyone.Key("")), "of an inner denial nothing is spent")
}

// broken is a Decider that fails.
type broken struct{ stint.Decider }

func (broken) Do(context.Context, []stint.Request, []stint.Decision) (stint.Decision, error) {
	return stint.Decision{}, stint.ErrNotDurable
}

func TestErrors(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	negative := func(grpclimit.Call) int64 { return -1 }
	own := errors.New("a KeyFunc's own error")
	for name, c := range map[string]struct {
		lim     stint.Decider
		opts    grpclimit.Options
		rule    grpclimit.Rule
		sent    []string
		want    codes.Code
		err     error // that the observers get
		pass    bool  // with FailOpen
		shadows codes.Code
	}{
		"no id":       {rule: grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "k")}, want: codes.InvalidArgument, err: rules.ErrNoID},
		"two ids":     {rule: grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "k")}, sent: []string{"k", "1", "k", "2"}, want: codes.InvalidArgument, err: rules.ErrNoID},
		"refused id":  {rule: grpclimit.Rule{Key: grpclimit.ByMetadata(perIP, "k")}, sent: []string{"k", "x"}, want: codes.InvalidArgument, err: stint.ErrInvalidID},
		"negative":    {rule: grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), CostFunc: negative}, want: codes.InvalidArgument, err: stint.ErrNegativeCost},
		"over burst":  {rule: grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Cost: 6}, want: codes.ResourceExhausted, err: stint.ErrCostOverBurst},
		"limiter":     {lim: broken{lim}, rule: grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)}, want: codes.Unavailable, err: stint.ErrNotDurable, pass: true},
		"undeclared":  {rule: grpclimit.Rule{Key: grpclimit.ByPeer(99)}, want: codes.Unavailable, err: stint.ErrUnknownName, pass: true},
		"own error":   {rule: grpclimit.Rule{Key: func(grpclimit.Call) (stint.Key, error) { return stint.Key{}, own }}, want: codes.Unavailable, err: own, pass: true},
		"a count's":   {rule: grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "k"), LockOutMax: 1}, sent: []string{"k", "a lock-outs"}, want: codes.InvalidArgument, err: stint.ErrInvalidID},
		"not Unix":    {rule: grpclimit.Rule{Key: grpclimit.ByMetadata(perIP, "k")}, sent: []string{"k", "unix"}, want: codes.InvalidArgument, err: stint.ErrInvalidID},
		"no subject":  {rule: grpclimit.Rule{Key: grpclimit.ByTLSSubject(perKey)}, want: codes.InvalidArgument, err: rules.ErrNoID},
		"no target":   {rule: grpclimit.Rule{Key: grpclimit.ByTarget(perKey)}, want: codes.InvalidArgument, err: rules.ErrNoID},
		"first of no": {rule: grpclimit.Rule{Key: rules.FirstOf[grpclimit.Call]()}, want: codes.InvalidArgument, err: rules.ErrNoID},
	} {
		t.Run(name, func(t *testing.T) {
			if c.lim == nil {
				c.lim = lim
			}
			for _, mode := range []string{"closed", "open", "shadow"} {
				var failed []error
				c.opts.Observers = []grpclimit.Observer{{Error: func(_ grpclimit.Call, err error) { failed = append(failed, err) }}}
				c.opts.FailOpen, c.rule.Shadow = mode == "open", mode == "shadow"
				opts := c.opts
				client := dial(t, serve(t, new(service), limited(c.lim, &opts, c.rule)...))
				err := call(t, client, c.sent...)
				want := c.want
				if mode == "shadow" || mode == "open" && c.pass {
					want = codes.OK
				}
				assert.Equal(t, want, status.Code(err), "%s: %v", mode, err)
				require.Len(t, failed, 1, mode)
				assert.ErrorIs(t, failed[0], c.err, mode)
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
	assert.Panics(t, func() { grpclimit.Server(nil, nil) })
	assert.Panics(t, func() { grpclimit.Server((*stint.Limiter)(nil), nil) })
	assert.Panics(t, func() { grpclimit.Server((*hostlimit.Limiter)(nil), nil) })
	assert.Panics(t, func() { grpclimit.Server(lim, &grpclimit.Options{Exempt: []string{"x"}}) })
	assert.Panics(t, func() { grpclimit.Client(lim, nil) })
	assert.Panics(t, func() { grpclimit.Client(nil, &grpclimit.ClientOptions{Key: key}) })
}
