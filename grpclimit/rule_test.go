package grpclimit_test

import (
	"context"
	"fmt"
	"slices"
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

// TestRules: which calls a rule applies to, and what they cost. TestRulesEverywhere
// runs the other fields of a Rule.
func TestRules(t *testing.T) {
	const methods = "/grpc.testing.TestService/"
	for name, c := range map[string]struct {
		rule  grpclimit.Rule
		asked []codes.Code
		left  int64
	}{
		"cost of the request": {
			rule: grpclimit.Rule{CostFunc: func(c grpclimit.Call) int64 {
				return int64(c.Message.(*pb.SimpleRequest).GetResponseStatus().GetCode())
			}},
			asked: []codes.Code{codes.Unknown, codes.Canceled}},
		"other method":  {rule: grpclimit.Rule{Pattern: methods + "EmptyCall"}, asked: []codes.Code{ok}, left: 3},
		"method":        {rule: grpclimit.Rule{Pattern: methods + "UnaryCall"}, asked: []codes.Code{ok}, left: 2},
		"service":       {rule: grpclimit.Rule{Pattern: methods + "*"}, asked: []codes.Code{ok}, left: 2},
		"other service": {rule: grpclimit.Rule{Pattern: "/grpc.testing.Test/*"}, asked: []codes.Code{ok}, left: 3},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(3)})
			c.rule.Key = grpclimit.ByPeer(perAddress)
			client := dial(t, serve(t, new(service), limited(lim, nil, c.rule)...))
			for _, code := range c.asked {
				assert.Equal(t, code, ask(t, client, code))
			}
			assert.Equal(t, c.left, left(t, lim, local))
		})
	}
}

// Which codes are failures of the server, and of the client to authenticate.
func TestCodes(t *testing.T) {
	var server, auth []codes.Code
	for code := ok; code <= codes.Unauthenticated; code++ {
		if grpclimit.ServerError(code) {
			server = append(server, code)
		}
		if grpclimit.AuthFailed(code) {
			auth = append(auth, code)
		}
	}
	assert.Equal(t, []codes.Code{codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal,
		codes.Unavailable, codes.DataLoss}, server)
	assert.Equal(t, []codes.Code{codes.PermissionDenied, codes.Unauthenticated}, auth)
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

// Of one key a stream and a unary call do not run together. The details of the
// denial say so, and observers know the method.
func TestInFlight(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(100)})
	started, release := make(chan struct{}), make(chan struct{})
	s := &service{duplex: func(pb.TestService_FullDuplexCallServer) error {
		close(started)
		<-release
		return nil
	}}
	var seen []string
	observer := grpclimit.Observer{Decisions: func(c grpclimit.Call, ds []rules.Decision) {
		seen = append(seen, fmt.Sprint(c.Method[len("/grpc.testing.TestService/"):], " ", ds[0].Allowed, ds[0].InFlight))
	}}
	opts := &grpclimit.Options{Observers: []grpclimit.Observer{observer}}
	rule := grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), InFlight: 1}
	c := dial(t, serve(t, s, limited(lim, opts, rule)...))
	stream, err := c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	<-started
	err = call(t, c)
	assert.Equal(t, exhausted, status.Code(err))
	retry, quota, _ := detailsOf(t, err)
	assert.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
	require.Len(t, quota.GetViolations(), 1)
	assert.Equal(t, "too many calls at the same time", quota.GetViolations()[0].GetDescription())
	assert.EqualValues(t, 99, left(t, lim, local), "of a call without a place nothing is spent")
	close(release)
	_, err = stream.Recv()
	assert.ErrorContains(t, err, "EOF")
	assert.NoError(t, call(t, c))
	assert.Equal(t, []string{"FullDuplexCall true {1 1 false false}", "EmptyCall false {1 1 true false}",
		"EmptyCall true {1 1 false false}"}, seen)
}
