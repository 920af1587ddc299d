package conformance_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	connectrpc "connectrpc.com/connect"
	"connectrpc.com/vanguard/vanguardgrpc"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/httplimit"
)

const perAddress stint.Name = 1

// newLimiter returns a Limiter that admits one request a minute. Its clock moves
// only when pass is called.
func newLimiter(t *testing.T) (lim *stint.Limiter, pass func(time.Duration)) {
	limits, err := stint.NewLimits(stint.Names{perAddress: {Label: "address", Limit: stint.PerMinute(1)}})
	require.NoError(t, err)
	base, gone := time.Date(2021, 2, 3, 4, 5, 6, 0, time.UTC), new(atomic.Int64)
	now := func() time.Time { return base.Add(time.Duration(gone.Load())) }
	lim, err = stint.New(stint.NewMemStore(), limits, &stint.Options{Now: now})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lim.Close()) })
	return lim, func(d time.Duration) { gone.Add(int64(d)) }
}

// service is the test service of gRPC, which answers empty calls.
type service struct {
	pb.UnimplementedTestServiceServer
}

func (service) EmptyCall(context.Context, *pb.Empty) (*pb.Empty, error) { return &pb.Empty{}, nil }

// limited returns the options of a server that limits the addresses of its peers.
func limited(lim *stint.Limiter) []grpc.ServerOption {
	unary, stream := grpclimit.Server(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)})
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream)}
}

// serve starts a limited server on the loopback interface, and returns its address.
func serve(t *testing.T, lim *stint.Limiter) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(limited(lim)...)
	pb.RegisterTestServiceServer(srv, service{})
	go srv.Serve(l)
	t.Cleanup(srv.Stop)
	return l.Addr().String()
}

func dial(t *testing.T, addr string) pb.TestServiceClient {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return pb.NewTestServiceClient(conn)
}

// A client of grpc-gateway sees 429 with Retry-After.
func TestGateway(t *testing.T) {
	lim, pass := newLimiter(t)
	client := dial(t, serve(t, lim))
	mux := runtime.NewServeMux(runtime.WithErrorHandler(func(
		ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error,
	) {
		grpclimit.SetRetryAfter(w.Header(), err)
		runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
	}))
	// What generated code does.
	require.NoError(t, mux.HandlePath("GET", "/empty", func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		_, m := runtime.MarshalerForRequest(mux, r)
		ctx, err := runtime.AnnotateContext(r.Context(), mux, r, "/grpc.testing.TestService/EmptyCall")
		require.NoError(t, err)
		resp, err := client.EmptyCall(ctx, &pb.Empty{})
		if err != nil {
			runtime.HTTPError(ctx, mux, m, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, m, w, r, resp)
	}))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	get := func() *http.Response {
		res, err := srv.Client().Get(srv.URL + "/empty")
		require.NoError(t, err)
		res.Body.Close()
		return res
	}
	res := get()
	assert.Equal(t, http.StatusOK, res.StatusCode)
	assert.Empty(t, res.Header.Get("Retry-After"))
	pass(1500 * time.Millisecond)
	res = get()
	assert.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	assert.Equal(t, "59", res.Header.Get("Retry-After"))
}

// Rules of httplimit around a gateway count the statuses that it writes.
func TestGatewayMiddleware(t *testing.T) {
	lim, _ := newLimiter(t)
	mux := runtime.NewServeMux()
	// What generated code does after the server's answer.
	require.NoError(t, mux.HandlePath("GET", "/private", func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		_, m := runtime.MarshalerForRequest(mux, r)
		runtime.HTTPError(r.Context(), mux, m, w, r, status.Error(codes.Unauthenticated, "who are you?"))
	}))
	srv := httptest.NewServer(httplimit.Middleware(lim, nil,
		httplimit.Rule{Key: httplimit.ByIP(perAddress), Count: httplimit.AuthFailed})(mux))
	defer srv.Close()
	for _, want := range []int{http.StatusUnauthorized, http.StatusTooManyRequests} {
		res, err := srv.Client().Get(srv.URL + "/private")
		require.NoError(t, err)
		res.Body.Close()
		assert.Equal(t, want, res.StatusCode)
	}
}

// refusedByConnect calls twice with a client of connect-go, and returns the denial
// of the second call.
func refusedByConnect(
	t *testing.T, c *http.Client, url string, between func(), opts ...connectrpc.ClientOption,
) *connectrpc.Error {
	client := connectrpc.NewClient[pb.Empty, pb.Empty](c, url+"/grpc.testing.TestService/EmptyCall", opts...)
	_, err := client.CallUnary(t.Context(), connectrpc.NewRequest(&pb.Empty{}))
	require.NoError(t, err)
	between()
	_, err = client.CallUnary(t.Context(), connectrpc.NewRequest(&pb.Empty{}))
	var refused *connectrpc.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, connectrpc.CodeResourceExhausted, refused.Code())
	return refused
}

// A client of connect-go that speaks gRPC understands the denial.
func TestConnect(t *testing.T) {
	lim, _ := newLimiter(t)
	addr := serve(t, lim)
	var h2c http.Protocols
	h2c.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &h2c}
	defer transport.CloseIdleConnections()
	refused := refusedByConnect(t, &http.Client{Transport: transport}, "http://"+addr, func() {}, connectrpc.WithGRPC())
	assert.Equal(t, "60000", refused.Meta().Get("Grpc-Retry-Pushback-Ms"))
	var wait time.Duration
	for _, d := range refused.Details() {
		value, err := d.Value()
		require.NoError(t, err)
		if retry, ok := value.(*errdetails.RetryInfo); ok {
			wait = retry.GetRetryDelay().AsDuration()
		}
	}
	assert.Equal(t, time.Minute, wait)
}

// A client of the Connect protocol, which a transcoder in front of the gRPC
// server speaks, sees 429 with Retry-After.
func TestConnectProtocol(t *testing.T) {
	lim, pass := newLimiter(t)
	srv := grpc.NewServer(limited(lim)...)
	defer srv.Stop()
	pb.RegisterTestServiceServer(srv, service{})
	transcoder, err := vanguardgrpc.NewTranscoder(srv)
	require.NoError(t, err)
	web := httptest.NewServer(grpclimit.RetryAfterHandler(transcoder))
	defer web.Close()
	refused := refusedByConnect(t, web.Client(), web.URL, func() { pass(1500 * time.Millisecond) })
	assert.Equal(t, "59", refused.Meta().Get("Retry-After"), "%v", refused.Meta())
}
