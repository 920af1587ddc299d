package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
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

// A hold that a server asks for is still there after the client was killed, in its
// next run.
func TestClientHold(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		most time.Duration
		want time.Duration // about
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
			t.Run(name, func(t *testing.T) {
				s := &service{
					empty:  func(context.Context) error { return c.err },
					duplex: func(pb.TestService_FullDuplexCallServer) error { return c.err },
				}
				addr, path := serve(t, s), filepath.Join(t.TempDir(), "quota.db")
				open := func() *stint.Limiter {
					lim, err := stint.Open(path, newLimits(t, nil), nil)
					require.NoError(t, err)
					return lim
				}
				opts := &grpclimit.ClientOptions{Key: grpclimit.ByTarget(perAddress), MaxHold: c.most}
				lim := open()
				client := dial(t, addr, limiting(lim, opts)...)
				err := error(nil)
				if stream {
					_, err = exchange(t, client, 3)
				} else {
					err = call(t, client)
				}
				assert.Equal(t, status.Code(c.err), status.Code(err))
				killed, err := os.ReadFile(path) // what a kill would leave
				require.NoError(t, err)
				require.NoError(t, lim.Close())
				require.NoError(t, os.WriteFile(path, killed, 0o600))

				lim = open() // the next run
				defer lim.Close()
				held := heldFor(t, lim, perAddress.Key(addr))
				assert.LessOrEqual(t, held, c.want)
				assert.Greater(t, held, c.want-30*time.Second)
				s.empty = nil
				err = call(t, dial(t, addr, limiting(lim, opts)...))
				var quota *grpclimit.QuotaError
				assert.Equal(t, c.want > 0, errors.As(err, &quota), "%v", err)
			})
		}
	}
}

// Tokens of a call that had no connection are returned, and no others.
func TestClientRefund(t *testing.T) {
	for _, c := range []struct {
		name string
		s    *service // nil: no server listens
		left int64
	}{
		{"no server", nil, 5},
		{"refused by the server", &service{
			empty:  func(context.Context) error { return refusing(codes.Unavailable, 0) },
			duplex: func(pb.TestService_FullDuplexCallServer) error { return refusing(codes.Unavailable, 0) },
		}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			addr := "127.0.0.1:1"
			if c.s != nil {
				addr = serve(t, c.s)
			}
			client := dial(t, addr, limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.Shared(everyone)})...)
			assert.Equal(t, codes.Unavailable, status.Code(call(t, client)))
			if stream, err := client.FullDuplexCall(t.Context()); err == nil {
				_, err = stream.Recv()
				assert.Equal(t, codes.Unavailable, status.Code(err))
			}
			assert.Equal(t, c.left, left(t, lim, everyone.Key("")))
		})
	}
}

func TestClientErrors(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{off: stint.Blocked, perKey: stint.PerHour(1)})
	addr := serve(t, new(service))
	own := errors.New("a KeyFunc's own error")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	soon, cancelSoon := context.WithTimeout(t.Context(), time.Minute)
	defer cancelSoon()
	spend(t, lim, perKey.Key(addr), 1)
	for name, c := range map[string]struct {
		ctx  context.Context
		opts grpclimit.ClientOptions
		is   error
		code codes.Code
	}{
		"key":           {opts: grpclimit.ClientOptions{Key: func(grpclimit.Call) (stint.Key, error) { return stint.Key{}, own }}, is: own, code: codes.Unknown},
		"blocked":       {opts: grpclimit.ClientOptions{Key: grpclimit.ByTarget(off)}, is: stint.ErrBlocked, code: codes.ResourceExhausted},
		"blocked, wait": {opts: grpclimit.ClientOptions{Key: grpclimit.ByTarget(off), Wait: true}, is: stint.ErrBlocked, code: codes.ResourceExhausted},
		"too late":      {ctx: soon, opts: grpclimit.ClientOptions{Key: grpclimit.ByTarget(perKey), Wait: true}, is: context.DeadlineExceeded, code: codes.ResourceExhausted},
		"cancelled":     {ctx: cancelled, opts: grpclimit.ClientOptions{Key: grpclimit.ByTarget(perKey)}, code: codes.Canceled},
		"over burst": {opts: grpclimit.ClientOptions{Key: grpclimit.ByTarget(perAddress),
			Cost: func(grpclimit.Call) int64 { return 6 }}, is: stint.ErrCostOverBurst, code: codes.Unknown},
		"undeclared": {opts: grpclimit.ClientOptions{Key: grpclimit.ByTarget(99)}, is: stint.ErrUnknownName, code: codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			_, err := dial(t, addr, limiting(lim, &c.opts)...).EmptyCall(ctx, &pb.Empty{})
			if c.is != nil {
				assert.ErrorIs(t, err, c.is)
			}
			assert.Equal(t, c.code, status.Code(err), "%v", err)
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
	c := dial(t, serve(t, s), append(limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.Shared(everyone)}),
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
	opts := &grpclimit.ClientOptions{Key: grpclimit.Shared(everyone),
		OnError: func(_ context.Context, err error) { failed = append(failed, err) }}
	s := &service{empty: func(context.Context) error { return refusing(codes.Unavailable, time.Hour) }}
	assert.Equal(t, codes.Unavailable, status.Code(call(t, dial(t, serve(t, s), limiting(failing{lim}, opts)...))))
	assert.Equal(t, codes.Unavailable, status.Code(call(t, dial(t, "127.0.0.1:1", limiting(failing{lim}, opts)...))))
	require.Len(t, failed, 2)
	assert.ErrorIs(t, errors.Join(failed...), stint.ErrNotDurable)
}

// Of three quotas, the innermost denies: the call was not sent, so the others get
// their tokens back, and are not held, because no server has asked for that.
func TestClientNested(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(1)})
	addr := serve(t, new(service))
	c := dial(t, addr, slices.Concat(limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.ByTarget(failures)}),
		limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.Shared(everyone)}),
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

// A refusal without RetryInfo doubles the wait, until a success. A message that
// is too large is no refusal.
func TestClientBackoff(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perKey: stint.PerHour(3600)})
	var answer error
	s := &service{empty: func(context.Context) error { return answer }}
	c := dial(t, serve(t, s), limiting(lim, &grpclimit.ClientOptions{Key: ofK})...)
	answer = status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 4)")
	assert.Equal(t, exhausted, status.Code(call(t, c)))
	answer = status.Error(codes.ResourceExhausted, "slow down")
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		assert.Equal(t, exhausted, status.Code(call(t, c)))
		assert.Equal(t, want, heldFor(t, lim, perKey.Key("k")))
		clock.pass(want)
	}
	answer = nil
	assert.NoError(t, call(t, c))
	answer = status.Error(codes.ResourceExhausted, "slow down")
	assert.Equal(t, exhausted, status.Code(call(t, c)))
	assert.Equal(t, time.Second, heldFor(t, lim, perKey.Key("k")))
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

// A stream with one reply that succeeds ends the doubling of holds, although gRPC
// does not receive again for its status.
func TestClientStreamWithOneReply(t *testing.T) {
	lim, clock := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerHour(1000)})
	s := &collecting{}
	l := listen(t, "tcp", "127.0.0.1:0")
	server := grpc.NewServer()
	pb.RegisterTestServiceServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	addr := l.Addr().String()
	c := dial(t, addr, limiting(lim, &grpclimit.ClientOptions{Key: grpclimit.ByTarget(perAddress)})...)
	call := func(end error) time.Duration {
		s.err = end
		stream, err := c.StreamingInputCall(t.Context())
		require.NoError(t, err)
		_, err = stream.CloseAndRecv()
		require.Equal(t, end == nil, err == nil, "%v", err)
		return heldFor(t, lim, perAddress.Key(addr))
	}
	require.Equal(t, time.Second, call(refusing(codes.ResourceExhausted, 0)))
	clock.pass(2 * time.Second)
	require.Zero(t, call(nil))
	require.Equal(t, time.Second, call(refusing(codes.ResourceExhausted, 0)))
}

// collecting is a service whose streams end with err.
type collecting struct {
	pb.UnimplementedTestServiceServer
	err error
}

func (s *collecting) StreamingInputCall(
	stream grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse],
) error {
	if s.err != nil {
		return s.err
	}
	return stream.SendAndClose(&pb.StreamingInputCallResponse{})
}
