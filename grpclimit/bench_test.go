package grpclimit_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
)

// transportStream is what a server's context has for trailers.
type transportStream struct{ grpc.ServerTransportStream }

func (transportStream) Method() string               { return "/grpc.testing.TestService/EmptyCall" }
func (transportStream) SetTrailer(metadata.MD) error { return nil }

// BenchmarkServer calls interceptors as a server does, without a network: a
// bare one, one with a rule for calls that pass, and one for calls that are
// denied.
func BenchmarkServer(b *testing.B) {
	bare := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		return next(ctx, req)
	}
	interceptor := func(limit stint.Limit, rules ...grpclimit.Rule) grpc.UnaryServerInterceptor {
		limits := newLimits(b, map[stint.Name]stint.Limit{perAddress: limit, perKey: limit})
		lim, err := stint.New(stint.NewMemStore(), limits, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { lim.Close() })
		unary, _ := grpclimit.Server(lim, nil, rules...)
		return unary
	}
	many, byPeer := stint.PerSecond(1_000_000_000), grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)}
	settling := byPeer
	settling.InFlight, settling.Refund = 10, grpclimit.ServerError
	for _, c := range []struct {
		name      string
		intercept grpc.UnaryServerInterceptor
	}{
		{"bare", bare},
		{"shared", interceptor(many, grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "key")})},
		{"peer", interceptor(many, byPeer)},
		{"two rules", interceptor(many, byPeer, grpclimit.Rule{Key: grpclimit.ByMetadata(perKey, "key")})},
		{"in flight and refund", interceptor(many, settling)},
		{"denied", interceptor(stint.PerDay(1), byPeer)},
	} {
		b.Run(c.name, func(b *testing.B) {
			ctx := peer.NewContext(b.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 4711}})
			ctx = grpc.NewContextWithServerTransportStream(ctx, transportStream{})
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("key", "k-17"))
			info := &grpc.UnaryServerInfo{FullMethod: "/grpc.testing.TestService/EmptyCall"}
			req, resp := &pb.Empty{}, &pb.Empty{}
			handler := func(context.Context, any) (any, error) { return resp, nil }
			b.ReportAllocs()
			for b.Loop() {
				c.intercept(ctx, req, info, handler)
			}
		})
	}
}

// BenchmarkCall measures unary calls to a server on loopback: a plain one, one whose
// rule allows the calls, and one whose rule denies them. The three take turns, and it
// reports medians, which other work on the machine disturbs little.
func BenchmarkCall(b *testing.B) {
	const turn = 10
	limits := newLimits(b, map[stint.Name]stint.Limit{perAddress: stint.PerSecond(1_000_000_000), perKey: stint.Blocked})
	lim, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(b, err)
	b.Cleanup(func() { lim.Close() })
	names, want := []string{"plain", "allowed", "denied"}, []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted}
	clients, took := make([]pb.TestServiceClient, len(names)), make([][]time.Duration, len(names))
	for i := range names {
		var opts []grpc.ServerOption
		if i > 0 {
			unary, _ := grpclimit.Server(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer([]stint.Name{perAddress, perKey}[i-1])})
			opts = append(opts, grpc.UnaryInterceptor(unary))
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		s := grpc.NewServer(opts...)
		pb.RegisterTestServiceServer(s, &service{})
		go s.Serve(ln)
		b.Cleanup(s.Stop)
		conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(b, err)
		b.Cleanup(func() { conn.Close() })
		clients[i] = pb.NewTestServiceClient(conn)
	}
	for b.Loop() {
		for i, c := range clients {
			begun := time.Now()
			for range turn {
				if _, err := c.EmptyCall(b.Context(), &pb.Empty{}); status.Code(err) != want[i] {
					b.Fatal(err)
				}
			}
			took[i] = append(took[i], time.Since(begun)/turn)
		}
	}
	b.ReportMetric(0, "ns/op") // of all three
	for i, name := range names {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2]), name+"-ns")
	}
}
