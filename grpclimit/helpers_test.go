package grpclimit_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthserver "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
)

const (
	perAddress stint.Name = 1 + iota
	failures
	perKey
	everyone
	off
	perIP
)

var names = stint.Names{
	perAddress: {Label: "address"},
	failures:   {Label: "login"},
	perKey:     {Label: "key"},
	everyone:   {Label: "everyone", IDs: stint.Single},
	off:        {Label: "off"},
	perIP:      {Label: "ip", IDs: stint.IPAddress},
}

// testClock stands still until pass is called.
type testClock struct {
	base time.Time
	gone atomic.Int64
}

func (c *testClock) now() time.Time       { return c.base.Add(time.Duration(c.gone.Load())) }
func (c *testClock) pass(d time.Duration) { c.gone.Add(int64(d)) }

// newLimits returns limits: those in others, and otherwise 5 a minute.
func newLimits(t testing.TB, others map[stint.Name]stint.Limit) *stint.Limits {
	t.Helper()
	defaults := make(map[stint.Name]stint.Limit)
	for name := range names {
		if defaults[name] = stint.PerMinute(5); name == off {
			defaults[name] = stint.Unlimited
		}
	}
	for name, l := range others {
		defaults[name] = l
	}
	limits, err := stint.NewLimits(names.WithLimits(defaults))
	require.NoError(t, err)
	return limits
}

// newLimiter returns a Limiter whose clock stands still.
func newLimiter(t testing.TB, others map[stint.Name]stint.Limit) (*stint.Limiter, *testClock) {
	t.Helper()
	clock := &testClock{base: time.Date(2021, 2, 3, 4, 5, 6, 0, time.UTC)}
	lim, err := stint.New(stint.NewMemStore(), newLimits(t, others), &stint.Options{Now: clock.now})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim, clock
}

// service is the test service of gRPC. Each function replaces a method.
type service struct {
	pb.UnimplementedTestServiceServer
	empty  func(ctx context.Context) error
	duplex func(stream pb.TestService_FullDuplexCallServer) error
}

func (s *service) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	if s.empty != nil {
		if err := s.empty(ctx); err != nil {
			return nil, err
		}
	}
	return &pb.Empty{}, nil
}

// StreamingInputCall is EmptyCall as a stream with one reply.
func (s *service) StreamingInputCall(stream pb.TestService_StreamingInputCallServer) error {
	if _, err := s.EmptyCall(stream.Context(), nil); err != nil {
		return err
	}
	return stream.SendAndClose(&pb.StreamingInputCallResponse{})
}

// UnaryCall returns the code in the request.
func (s *service) UnaryCall(_ context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if code := codes.Code(r.GetResponseStatus().GetCode()); code != codes.OK {
		return nil, status.Error(code, "as asked")
	}
	return &pb.SimpleResponse{}, nil
}

func (s *service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	if s.duplex != nil {
		return s.duplex(stream)
	}
	for { // an echo
		_, err := stream.Recv()
		if err != nil {
			if status.Code(err) == codes.Unknown { // io.EOF
				return nil
			}
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

func listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	return l
}

// serve starts a server on the loopback interface and returns its address.
func serve(t testing.TB, s *service, opts ...grpc.ServerOption) string {
	t.Helper()
	l := listen(t, "tcp", "127.0.0.1:0")
	serveOn(t, l, s, opts...)
	return l.Addr().String()
}

func serveOn(t testing.TB, l net.Listener, s *service, opts ...grpc.ServerOption) {
	t.Helper()
	srv := grpc.NewServer(opts...)
	pb.RegisterTestServiceServer(srv, s)
	healthpb.RegisterHealthServer(srv, healthserver.NewServer())
	reflection.Register(srv)
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
}

// limited returns server options with interceptors.
func limited(lim stint.Decider, opts *grpclimit.Options, rules ...grpclimit.Rule) []grpc.ServerOption {
	unary, stream := grpclimit.Server(lim, opts, rules...)
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream)}
}

// dial returns a client of a server.
func dial(t testing.TB, target string, opts ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	return pb.NewTestServiceClient(connect(t, target, opts...))
}

func connect(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	cc, err := grpc.NewClient(target, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// call calls EmptyCall with metadata: keys and values.
func call(t testing.TB, c pb.TestServiceClient, kv ...string) error {
	t.Helper()
	_, err := c.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), kv...), &pb.Empty{})
	return err
}

// ask calls UnaryCall, which returns the code.
func ask(t testing.TB, c pb.TestServiceClient, code codes.Code) codes.Code {
	t.Helper()
	_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Code: int32(code)}})
	return status.Code(err)
}

// answers returns the codes of n calls.
func answers(t testing.TB, n int, c pb.TestServiceClient, kv ...string) []codes.Code {
	t.Helper()
	all := make([]codes.Code, n)
	for i := range all {
		all[i] = status.Code(call(t, c, kv...))
	}
	return all
}

// trailerOf returns the trailer of an EmptyCall, and its error.
func trailerOf(t testing.TB, c pb.TestServiceClient, kv ...string) (metadata.MD, error) {
	t.Helper()
	var header, trailer metadata.MD
	_, err := c.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), kv...), &pb.Empty{},
		grpc.Header(&header), grpc.Trailer(&trailer))
	require.NotContains(t, header, "ratelimit")
	require.True(t, err == nil || len(header) == 0, "a client does not retry after a header")
	return trailer, err
}

// detailsOf returns the details of a status.
func detailsOf(t testing.TB, err error) (retry *errdetails.RetryInfo, quota *errdetails.QuotaFailure, info *errdetails.ErrorInfo) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			require.Nil(t, retry)
			retry = d
		case *errdetails.QuotaFailure:
			require.Nil(t, quota)
			quota = d
		case *errdetails.ErrorInfo:
			require.Nil(t, info)
			info = d
		default:
			t.Fatalf("a detail of the type %T", d)
		}
	}
	return retry, quota, info
}

func left(t testing.TB, lim stint.Decider, key stint.Key) int64 {
	t.Helper()
	d, err := lim.Do(t.Context(), []stint.Request{{Key: key, Mode: stint.CheckOnly}}, nil)
	require.NoError(t, err)
	return d.Remaining
}

func heldFor(t testing.TB, lim stint.Decider, key stint.Key) time.Duration {
	t.Helper()
	b, err := lim.Bucket(key)
	require.NoError(t, err)
	if b.HeldUntil.IsZero() {
		return 0
	}
	return b.HeldUntil.Sub(lim.Now())
}

func spend(t testing.TB, lim stint.Decider, key stint.Key, n int64) {
	t.Helper()
	d, err := lim.Do(t.Context(), []stint.Request{key.Cost(n)}, nil)
	require.NoError(t, err)
	require.True(t, d.Allowed)
}

// local is the bucket of clients of serve.
var local = perAddress.Key("127.0.0.1")
