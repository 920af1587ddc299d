package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/rules"
)

const (
	CallsPerAddress  stint.Name = 1
	FailedLogins     stint.Name = 2
	MessagesPerCall  stint.Name = 3
	CallsPerServer   stint.Name = 4
	TokensPerAddress stint.Name = 5
)

// openExample returns a Limiter of a few limits. A real program calls stint.Open.
func openExample() *stint.Limiter {
	limits, err := stint.NewLimits(stint.Names{
		CallsPerAddress:  {Label: "calls", Limit: stint.PerMinute(2)},
		FailedLogins:     {Label: "login", Limit: stint.PerHour(1)},
		MessagesPerCall:  {Label: "messages", Limit: stint.PerHour(3)},
		CallsPerServer:   {Label: "server", Limit: stint.PerDay(1)},
		TokensPerAddress: {Label: "tokens", Limit: stint.PerDay(1000)},
	})
	if err != nil {
		panic(err)
	}
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // makes the output the same in each run
	limiter, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return noon }})
	if err != nil {
		panic(err)
	}
	return limiter
}

// start serves the test service of gRPC, and returns a client.
func start(s *service, unary grpc.UnaryServerInterceptor, stream grpc.StreamServerInterceptor, opts ...grpc.DialOption) (
	c pb.TestServiceClient, stop func(),
) {
	server := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	pb.RegisterTestServiceServer(server, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go server.Serve(listener)
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	cc, err := grpc.NewClient(listener.Addr().String(), opts...)
	if err != nil {
		panic(err)
	}
	return pb.NewTestServiceClient(cc), func() {
		cc.Close()
		server.Stop()
	}
}

func ExampleServer() {
	limiter := openExample()
	defer limiter.Close()
	unary, stream := grpclimit.Server(limiter, nil, grpclimit.Rule{Key: grpclimit.ByPeer(CallsPerAddress)})
	client, stop := start(new(service), unary, stream)
	defer stop()
	for range 3 {
		_, err := client.EmptyCall(context.Background(), &pb.Empty{})
		wait, _ := grpclimit.RetryAfter(err)
		fmt.Println(status.Code(err), wait)
	}
	// Output:
	// OK 0s
	// OK 0s
	// ResourceExhausted 30s
}

// Only failed logins spend.
func ExampleRule() {
	limiter := openExample()
	defer limiter.Close()
	unary, stream := grpclimit.Server(limiter, nil, grpclimit.Rule{
		Pattern: "/grpc.testing.TestService/UnaryCall",
		Key:     grpclimit.ByPeer(FailedLogins),
		Count:   grpclimit.AuthFailed,
		LockOut: 24 * time.Hour,
	})
	client, stop := start(new(service), unary, stream)
	defer stop()
	for _, code := range []codes.Code{codes.OK, codes.OK, codes.Unauthenticated, codes.OK} {
		login := &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Code: int32(code)}}
		_, err := client.UnaryCall(context.Background(), login)
		wait, _ := grpclimit.RetryAfter(err)
		fmt.Println(status.Code(err), wait)
	}
	// Output:
	// OK 0s
	// OK 0s
	// Unauthenticated 0s
	// ResourceExhausted 24h0m0s
}

// A stream may receive three messages in an hour.
func ExampleRule_messages() {
	limiter := openExample()
	defer limiter.Close()
	unary, stream := grpclimit.Server(limiter, nil, grpclimit.Rule{
		Key: grpclimit.ByPeer(MessagesPerCall), Pattern: "received",
	})
	client, stop := start(new(service), unary, stream)
	defer stop()
	echo, err := client.FullDuplexCall(context.Background())
	for n := 1; err == nil; n++ {
		if err = echo.Send(&pb.StreamingOutputCallRequest{}); err == nil {
			_, err = echo.Recv()
		}
		fmt.Println(n, status.Code(err))
	}
	// Output:
	// 1 OK
	// 2 OK
	// 3 OK
	// 4 ResourceExhausted
}

// The cost of a call is known at its end. The handler reports it.
func ExampleServer_settle() {
	limiter := openExample()
	defer limiter.Close()
	unary, stream := grpclimit.Server(limiter, nil, grpclimit.Rule{
		Key: grpclimit.ByPeer(TokensPerAddress), Cost: 500, Settle: true,
	})
	client, stop := start(&service{empty: func(ctx context.Context) error {
		_, err := rules.Settle(ctx, TokensPerAddress, 120)
		return err
	}}, unary, stream)
	defer stop()
	if _, err := client.EmptyCall(context.Background(), &pb.Empty{}); err != nil {
		fmt.Println(err)
	}
	d, err := limiter.Check(TokensPerAddress.Key("127.0.0.1"), 0)
	fmt.Println(d.Remaining, err)
	// Output: 880 <nil>
}

func ExampleServer_decisions() {
	limiter := openExample()
	defer limiter.Close()
	opts := &grpclimit.Options{Decisions: true}
	unary, stream := grpclimit.Server(limiter, opts, grpclimit.Rule{Key: grpclimit.ByPeer(CallsPerAddress)})
	client, stop := start(&service{empty: func(ctx context.Context) error {
		for _, d := range rules.Decisions(ctx) {
			fmt.Println(d.Label, "leaves", d.Remaining)
		}
		return nil
	}}, unary, stream)
	defer stop()
	client.EmptyCall(context.Background(), &pb.Empty{})
	// Output: calls leaves 1
}

// Of a flood of denials the log has one line for each client and minute.
func ExampleServer_logDenials() {
	limiter := openExample()
	defer limiter.Close()
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey { // makes the output the same in each run
				return slog.Attr{}
			}
			return a
		},
	}))
	opts := &grpclimit.Options{Observers: []grpclimit.Observer{rules.LogDenials[grpclimit.Call](logger, time.Minute)}}
	unary, stream := grpclimit.Server(limiter, opts, grpclimit.Rule{Key: grpclimit.ByPeer(CallsPerServer)})
	client, stop := start(new(service), unary, stream)
	defer stop()
	for range 100 {
		client.EmptyCall(context.Background(), &pb.Empty{})
	}
	// Output: level=WARN msg="request denied" limit=server id=127.0.0.1 retry_after=24h0m0s shadow=false left_out=0
}

func ExampleClient() {
	limiter := openExample() // a file keeps the quota across runs
	defer limiter.Close()
	unary, stream := grpclimit.Client(limiter, &grpclimit.ClientOptions{Key: grpclimit.ByTarget(CallsPerServer)})
	client, stop := start(new(service), nil, nil,
		grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream))
	defer stop()
	for range 2 {
		_, err := client.EmptyCall(context.Background(), &pb.Empty{})
		var quota *grpclimit.QuotaError
		if errors.As(err, &quota) {
			fmt.Println("not sent: wait", quota.RetryAfter)
			continue
		}
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// not sent: wait 24h0m0s
}

func ExampleSetRetryAfter() {
	st, err := status.New(codes.ResourceExhausted, "rate limit exceeded").WithDetails()
	if err != nil {
		panic(err)
	}
	h := make(http.Header)
	grpclimit.SetRetryAfter(h, st.Err())
	fmt.Printf("%q\n", h.Get("Retry-After"))
	over := &rules.QuotaError{RetryAfter: 1500 * time.Millisecond} // of a client's own quota
	grpclimit.SetRetryAfter(h, &grpclimit.QuotaError{QuotaError: over})
	fmt.Printf("%q\n", h.Get("Retry-After"))
	// Output:
	// ""
	// "2"
}

func ExampleRetryAfterHandler() {
	denial := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // as a transcoder answers
		w.Header().Set("Trailer-Grpc-Retry-Pushback-Ms", "1500")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	w := httptest.NewRecorder()
	grpclimit.RetryAfterHandler(denial).ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	fmt.Println(w.Code, w.Header().Get("Retry-After"))
	// Output: 429 2
}
