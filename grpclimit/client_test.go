package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
)

// limiting returns dial options with the interceptors of a client.
func limiting(lim stint.Decider, opts *grpclimit.ClientOptions) []grpc.DialOption {
	unary, stream := grpclimit.Client(lim, opts)
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}
}

// refusing returns a status with RetryInfo, unless wait is 0.
func refusing(code codes.Code, wait time.Duration) error {
	st := status.New(code, "refused")
	if wait != 0 {
		st, _ = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	return st.Err()
}

// ending is a service whose calls end with an error.
func ending(err error) *service {
	return &service{
		empty:  func(context.Context) error { return err },
		duplex: func(pb.TestService_FullDuplexCallServer) error { return err },
	}
}

func TestClientQuota(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(2)})
	addr := serve(t, new(service))
	c := dial(t, addr, limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.ByTarget(perAddress)})...)
	require.NoError(t, call(t, c))
	_, err := exchange(t, c, 3)
	require.ErrorContains(t, err, "EOF")

	err = call(t, c)
	var quota *grpclimit.QuotaError
	require.ErrorAs(t, err, &quota)
	assert.Equal(t, perAddress.Key(addr), quota.Key)
	assert.Equal(t, 30*time.Minute, quota.RetryAfter)
	assert.Equal(t, stint.PerHour(2), quota.Limit)
	assert.NotContains(t, err.Error(), addr)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	retry, _, _ := detailsOf(t, err)
	assert.Equal(t, 30*time.Minute, retry.GetRetryDelay().AsDuration())
	_, err = c.FullDuplexCall(t.Context())
	require.ErrorAs(t, err, &quota)

	clock.pass(30 * time.Minute)
	assert.NoError(t, call(t, c))
}

// A server can ask for a hold.
func TestClientHold(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		most time.Duration
		want time.Duration
	}{
		"ResourceExhausted":   {err: refusing(codes.ResourceExhausted, time.Hour), want: time.Hour},
		"Unavailable":         {err: refusing(codes.Unavailable, time.Hour), want: time.Hour},
		"longer than MaxHold": {err: refusing(codes.Unavailable, 48*time.Hour), want: 24 * time.Hour},
		"MaxHold":             {err: refusing(codes.Unavailable, time.Hour), most: time.Minute, want: time.Minute},
		"other code":          {err: refusing(codes.Internal, time.Hour)},
		"no RetryInfo":        {err: refusing(codes.Unavailable, 0)},
		"negative":            {err: refusing(codes.Unavailable, -time.Hour)},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				lim, _ := newLimiter(t, nil)
				addr := serve(t, ending(c.err))
				opts := &grpclimit.ClientOptions{Key: grpclimit.ByTarget(perAddress), MaxHold: c.most}
				client := dial(t, addr, limiting(lim, opts)...)
				err := error(nil)
				if stream {
					_, err = exchange(t, client, 3)
				} else {
					err = call(t, client)
				}
				assert.Equal(t, status.Code(c.err), status.Code(err))
				assert.Equal(t, c.want, heldFor(t, lim, perAddress.Key(addr)))
				var quota *grpclimit.QuotaError
				assert.Equal(t, c.want > 0, errors.As(call(t, client), &quota))
			})
		}
	}
}

// Tokens of a call that had no connection are returned, and no others.
func TestClientRefund(t *testing.T) {
	for addr, want := range map[string]int64{
		"127.0.0.1:1": 5, serve(t, ending(refusing(codes.Unavailable, 0))): 3, // no server, and one that refuses
	} {
		lim, _ := newLimiter(t, nil)
		client := dial(t, addr, limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.Single(everyone)})...)
		assert.Equal(t, codes.Unavailable, status.Code(call(t, client)))
		if stream, err := client.FullDuplexCall(t.Context()); err == nil {
			_, err = stream.Recv()
			assert.Equal(t, codes.Unavailable, status.Code(err))
		}
		assert.Equal(t, want, left(t, lim, everyone.Key("")), addr)
	}
}

func TestClientErrors(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{off: stint.Blocked, perKey: stint.PerHour(1)})
	addr := serve(t, new(service))
	own := errors.New("a KeyFunc's own error")
	failing := func(grpclimit.Call) (stint.Key, error) { return stint.Key{}, own }
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	soon, cancelSoon := context.WithTimeout(t.Context(), time.Minute)
	defer cancelSoon()
	spend(t, lim, perKey.Key(addr), 1)
	ofAddress, ofKey, ofOff := grpclimit.ByTarget(perAddress), grpclimit.ByTarget(perKey), grpclimit.ByTarget(off)
	undeclared := grpclimit.ByTarget(99)
	for name, c := range map[string]struct {
		ctx  context.Context
		opts grpclimit.ClientOptions
		is   error
		code codes.Code
	}{
		"key":           {t.Context(), grpclimit.ClientOptions{Key: failing}, own, codes.Unknown},
		"blocked":       {t.Context(), grpclimit.ClientOptions{Key: ofOff}, stint.ErrBlocked, exhausted},
		"blocked, wait": {t.Context(), grpclimit.ClientOptions{Key: ofOff, Wait: true}, stint.ErrBlocked, exhausted},
		"too late":      {soon, grpclimit.ClientOptions{Key: ofKey, Wait: true}, context.DeadlineExceeded, exhausted},
		"cancelled":     {cancelled, grpclimit.ClientOptions{Key: ofKey}, nil, codes.Canceled},
		"over burst": {t.Context(), grpclimit.ClientOptions{Key: ofAddress, Cost: func(grpclimit.Call) int64 { return 6 }},
			stint.ErrCostOverBurst, codes.Unknown},
		"undeclared": {t.Context(), grpclimit.ClientOptions{Key: undeclared}, stint.ErrUnknownName, codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := dial(t, addr, limiting(lim, &c.opts)...).EmptyCall(c.ctx, &pb.Empty{})
			assert.Equal(t, c.code, status.Code(err), "%v", err)
			if c.is != nil {
				assert.ErrorIs(t, err, c.is)
			}
		})
	}
	assert.EqualValues(t, 5, left(t, lim, perAddress.Key(addr)))
}

// A call with several attempts spends once, because gRPC retries below
// interceptors.
func TestClientRetries(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	attempts := 0
	s := &service{empty: func(context.Context) error {
		attempts++
		if attempts < 3 {
			return refusing(codes.ResourceExhausted, 0)
		}
		return nil
	}}
	c := dial(t, serve(t, s), append(limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.Single(everyone)}),
		grpc.WithDefaultServiceConfig(retrying))...)
	require.NoError(t, call(t, c))
	assert.Equal(t, 3, attempts)
	assert.EqualValues(t, 4, left(t, lim, everyone.Key("")))
}

// failing is a Decider that cannot hold or refund.
type failing struct{ stint.Decider }

func (failing) Hold(stint.Key, time.Time) (time.Time, error) {
	return time.Time{}, stint.ErrNotDurable
}

func (failing) Refund(...stint.Request) (stint.Decision, error) {
	return stint.Decision{}, stint.ErrNotDurable
}

func TestClientOnError(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	var failed []error
	opts := &grpclimit.ClientOptions{Key: grpclimit.Single(everyone),
		OnError: func(_ context.Context, err error) { failed = append(failed, err) }}
	for _, addr := range []string{serve(t, ending(refusing(codes.Unavailable, time.Hour))), "127.0.0.1:1"} {
		assert.Equal(t, codes.Unavailable, status.Code(call(t, dial(t, addr, limiting(failing{lim}, opts)...))))
	}
	require.Len(t, failed, 2)
	assert.ErrorIs(t, errors.Join(failed...), stint.ErrNotDurable)
}

// Of three quotas, the innermost denies: the call was not sent, so the others get
// their tokens back, and are not held, because no server has asked for that.
func TestClientNested(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1)})
	addr := serve(t, new(service))
	c := dial(t, addr, slices.Concat(limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.ByTarget(failures)}),
		limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.Single(everyone)}),
		limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.ByTarget(perKey)}))...)
	require.NoError(t, call(t, c))
	var quota *grpclimit.QuotaError
	require.ErrorAs(t, call(t, c), &quota)
	assert.Equal(t, perKey, quota.Key.Name)
	_, err := c.FullDuplexCall(t.Context())
	require.ErrorAs(t, err, &quota)
	for _, key := range []stint.Key{everyone.Key(""), failures.Key(addr)} {
		assert.Zero(t, heldFor(t, lim, key))
		assert.EqualValues(t, 4, left(t, lim, key))
	}
}

func ofK(grpclimit.Call) (stint.Key, error) { return perKey.Key("k"), nil }

// A refusal without RetryInfo doubles the wait, until a success: of a call, and of a
// stream with one reply, of which gRPC does not receive the status again. A message
// that is too large is no refusal.
func TestClientBackoff(t *testing.T) {
	for _, stream := range []bool{false, true} {
		lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(3600)})
		s := &service{}
		c := dial(t, serve(t, s), limiting(lim, &grpclimit.ClientOptions{Key: ofK})...)
		answer := func(answer error) time.Duration {
			s.empty = func(context.Context) error { return answer }
			err := error(nil)
			if stream {
				in, _ := c.StreamingInputCall(t.Context())
				_, err = in.CloseAndRecv()
			} else {
				err = call(t, c)
			}
			require.Equal(t, status.Code(answer), status.Code(err), "%v", err)
			held := heldFor(t, lim, perKey.Key("k"))
			clock.pass(held)
			return held
		}
		slowDown := status.Error(exhausted, "slow down")
		assert.Zero(t, answer(status.Error(exhausted, "grpc: received message larger than max (9 vs. 4)")))
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			assert.Equal(t, want, answer(slowDown))
		}
		assert.Zero(t, answer(nil))
		assert.Equal(t, time.Second, answer(slowDown))
	}
}

// Settle replaces the bound of a call by the true cost, once.
func TestClientSettle(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerDay(100)})
	settle := func(_ context.Context, _ any, done func(int64)) {
		done(10)
		done(90)
	}
	bound := func(grpclimit.Call) int64 { return 40 }
	c := dial(t, serve(t, new(service)), limiting(lim, &grpclimit.ClientOptions{Key: ofK, Cost: bound, Settle: settle})...)
	require.NoError(t, call(t, c))
	assert.EqualValues(t, 90, left(t, lim, perKey.Key("k")))
	echoes, err := exchange(t, c, 3)
	assert.Equal(t, io.EOF, err)
	assert.Equal(t, 3, echoes)
	assert.EqualValues(t, 80, left(t, lim, perKey.Key("k")))
}
