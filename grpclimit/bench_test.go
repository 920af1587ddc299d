package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

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
