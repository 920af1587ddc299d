package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/rules"
)

const (
	ok        = codes.OK
	exhausted = codes.ResourceExhausted
)

// recovering turns panics into Internal, as the usual interceptor does.
func recovering(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = status.Errorf(codes.Internal, "panic: %v", v)
		}
	}()
	return next(ctx, req)
}

// TestRules: which calls a rule applies to, what they cost, and which codes count.
// TestRulesEverywhere runs the other fields of a Rule.
func TestRules(t *testing.T) {
	unauthenticated := codes.Unauthenticated
	for name, c := range map[string]struct {
		rule  grpclimit.Rule
		asked []codes.Code
		want  []codes.Code
		left  int64
	}{
		"cost of the request": {
			rule: grpclimit.Rule{CostFunc: func(c grpclimit.Call) int64 {
				return int64(c.Message.(*pb.SimpleRequest).GetResponseStatus().GetCode())
			}},
			asked: []codes.Code{codes.Unknown, codes.Canceled}, want: []codes.Code{codes.Unknown, codes.Canceled},
		},
		"other method": {rule: grpclimit.Rule{Pattern: "/grpc.testing.TestService/EmptyCall"},
			asked: []codes.Code{ok}, want: []codes.Code{ok}, left: 3},
		"method": {rule: grpclimit.Rule{Pattern: "/grpc.testing.TestService/UnaryCall"},
			asked: []codes.Code{ok}, want: []codes.Code{ok}, left: 2},
		"service": {rule: grpclimit.Rule{Pattern: "/grpc.testing.TestService/*"},
			asked: []codes.Code{ok}, want: []codes.Code{ok}, left: 2},
		"other service": {rule: grpclimit.Rule{Pattern: "/grpc.testing.Test/*"},
			asked: []codes.Code{ok}, want: []codes.Code{ok}, left: 3},
		"counts codes": {rule: grpclimit.Rule{Count: grpclimit.AuthFailed},
			asked: []codes.Code{ok, unauthenticated, ok, codes.PermissionDenied, unauthenticated, ok},
			want:  []codes.Code{ok, unauthenticated, ok, codes.PermissionDenied, unauthenticated, exhausted}},
		"refunds codes": {rule: grpclimit.Rule{Refund: grpclimit.ServerError},
			asked: []codes.Code{codes.Internal, codes.Unavailable, ok, codes.NotFound}, left: 1,
			want: []codes.Code{codes.Internal, codes.Unavailable, ok, codes.NotFound}},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(3)})
			c.rule.Key = grpclimit.ByPeer(perAddress)
			client := dial(t, serve(t, new(service), limited(lim, nil, c.rule)...))
			var got []codes.Code
			for _, code := range c.asked {
				got = append(got, ask(t, client, code))
			}
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.left, left(t, lim, local))
		})
	}
}

// A panic is the code Internal. Nothing is left in flight.
func TestPanic(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(3)})
	s := &service{empty: func(context.Context) error { panic("oops") }}
	s.duplex = func(pb.TestService_FullDuplexCallServer) error { panic("oops") }
	unary, stream := grpclimit.Server(lim, nil, grpclimit.Rule{
		Key: grpclimit.ByPeer(perAddress), Refund: grpclimit.ServerError, InFlight: 1, LockOut: time.Hour, Cost: 3,
	})
	c := dial(t, serve(t, s, grpc.ChainUnaryInterceptor(recovering, unary), grpc.ChainStreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer func() { err = status.Errorf(codes.Internal, "panic: %v", recover()) }()
			return next(srv, ss)
		}, stream)))
	for range 3 {
		assert.Equal(t, codes.Internal, status.Code(call(t, c)))
		assert.EqualValues(t, 3, left(t, lim, local))
		str, err := c.FullDuplexCall(t.Context())
		require.NoError(t, err)
		_, err = str.Recv()
		assert.Equal(t, codes.Internal, status.Code(err))
		assert.EqualValues(t, 3, left(t, lim, local))
	}
	assert.Empty(t, slices.Collect(rules.InFlightOf(lim)))
}

// Health and reflection pass without tokens, unless Exempt says otherwise.
func TestExempt(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.Blocked})
	try := func(opts *grpclimit.Options) (got []codes.Code) {
		cc := connect(t, serve(t, new(service), limited(lim, opts, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)})...))
		_, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{})
		got = append(got, status.Code(err))
		v1, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(t.Context())
		require.NoError(t, err)
		v1.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		_, err = v1.Recv()
		got = append(got, status.Code(err))
		alpha, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
			"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") // with the same messages
		require.NoError(t, err)
		alpha.SendMsg(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		err = alpha.RecvMsg(new(reflectionpb.ServerReflectionResponse))
		got = append(got, status.Code(err))
		return append(got, status.Code(call(t, pb.NewTestServiceClient(cc))))
	}
	assert.Equal(t, []codes.Code{ok, ok, ok, exhausted}, try(nil))
	assert.Equal(t, []codes.Code{exhausted, exhausted, exhausted, exhausted}, try(&grpclimit.Options{Exempt: []string{}}))
	assert.Equal(t, []codes.Code{exhausted, exhausted, exhausted, ok},
		try(&grpclimit.Options{Exempt: []string{"/grpc.testing.TestService/*"}}))
}

// At most InFlight calls of a key run, of streams and unary calls together, and
// with nested interceptors. A denied call spends nothing.
func TestInFlight(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(100)})
	started, release := make(chan struct{}), make(chan struct{})
	s := &service{
		empty: func(context.Context) error { started <- struct{}{}; <-release; return nil },
		duplex: func(pb.TestService_FullDuplexCallServer) error {
			started <- struct{}{}
			<-release
			return nil
		},
	}
	var full []rules.Decision
	opts := &grpclimit.Options{Observers: []grpclimit.Observer{{Decisions: func(_ grpclimit.Call, ds []rules.Decision) {
		if !ds[0].Allowed {
			full = append(full, ds...)
		}
	}}}}
	rule := grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), InFlight: 2}
	c := dial(t, serve(t, s, limited(lim, opts, rule)...))
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, call(t, c)) })
	<-started
	stream, err := c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	<-started

	err = call(t, c)
	assert.Equal(t, exhausted, status.Code(err))
	retry, quota, _ := detailsOf(t, err)
	assert.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
	require.Len(t, quota.GetViolations(), 1)
	assert.Equal(t, "too many calls at the same time", quota.GetViolations()[0].GetDescription())
	assert.EqualValues(t, 98, left(t, lim, local), "of a call without a place nothing is spent")
	require.Len(t, full, 1)
	assert.Equal(t, "address", full[0].Label)
	assert.Equal(t, rules.InFlight{Limit: 2, Running: 2, Denied: true}, full[0].InFlight)

	release <- struct{}{}
	release <- struct{}{}
	running.Wait()
	_, err = stream.Recv()
	assert.ErrorContains(t, err, "EOF")
	running.Go(func() { assert.NoError(t, call(t, c)) })
	<-started
	release <- struct{}{}
	running.Wait()
	assert.Empty(t, slices.Collect(rules.InFlightOf(lim)))
}

func TestObservers(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(2), failures: stint.PerDay(1)})
	var seen []string
	var out strings.Builder
	opts := &grpclimit.Options{Observers: []grpclimit.Observer{
		grpclimit.LogDenials(slog.New(slog.NewTextHandler(&out, nil)), time.Hour),
		{Decisions: func(c grpclimit.Call, ds []rules.Decision) {
			seen = append(seen, c.Method[strings.LastIndex(c.Method, "/")+1:]+":")
			for _, d := range ds {
				seen = append(seen, fmt.Sprint(d.Label, " ", d.Allowed, d.After, d.Shadow))
			}
		}},
		{},
	}}
	c := dial(t, serve(t, new(service), limited(lim, opts,
		grpclimit.Rule{Key: grpclimit.ByPeer(failures), Shadow: true},
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)},
		grpclimit.Rule{Key: grpclimit.ByPeer(perKey), Count: grpclimit.AuthFailed},
	)...))
	ask(t, c, codes.Unauthenticated)
	ask(t, c, ok)
	ask(t, c, ok)
	assert.Equal(t, []string{
		"UnaryCall:", "address true false false", "key true true false", "login true false true",
		"UnaryCall:", "key true false false",
		"UnaryCall:", "address true false false", "key true true false", "login false false true",
		"UnaryCall:", "address false false false", "key true true false", "login false false true",
	}, seen)
	assert.Equal(t, 2, strings.Count(out.String(), "request denied"), out.String())
	assert.Contains(t, out.String(), "limit=address id=127.0.0.1")
}

// A call whose handler runs in many goroutines, with panics, refunds and
// settlements. The race detector looks for the rest.
func TestConcurrent(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(1000), perKey: stint.PerDay(1_000_000)})
	var inside, calls atomic.Int64
	s := &service{empty: func(ctx context.Context) error {
		assert.LessOrEqual(t, inside.Add(1), int64(4))
		defer inside.Add(-1)
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				rules.Settle(ctx, perKey, int64(i))
				rules.Decisions(ctx)
			})
		}
		all.Wait()
		switch calls.Add(1) % 3 {
		case 0:
			panic("oops")
		case 1:
			return errors.New("failed")
		}
		return nil
	}}
	unary, _ := grpclimit.Server(lim, nil,
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), InFlight: 4, Refund: grpclimit.ServerError},
		grpclimit.Rule{Key: grpclimit.Shared(everyone), Shadow: true, InFlight: 1},
		grpclimit.Rule{Key: grpclimit.ByPeer(perKey), Settle: true, Cost: 10})
	c := dial(t, serve(t, s, grpc.ChainUnaryInterceptor(recovering, unary)))
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				if err := call(t, c); err == nil {
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	b, err := lim.Bucket(local)
	require.NoError(t, err)
	assert.Equal(t, allowed.Load(), 1000-b.Remaining, "all others were refunded, or not admitted")
	assert.Empty(t, slices.Collect(rules.InFlightOf(lim)))
}
