package grpclimit_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/rules"
)

// A call that its client cancels gives its place back, and its tokens if
// Refund says so.
func TestCancel(t *testing.T) {
	for name, c := range map[string]struct {
		refund func(codes.Code) bool
		left   []int64 // after each call
	}{
		"refunds": {rules.OneOf(codes.Canceled), []int64{10, 10}},
		"spends":  {grpclimit.ServerError, []int64{9, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(10)})
			started := make(chan struct{})
			s := &service{
				empty: func(ctx context.Context) error {
					started <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				},
				duplex: func(stream pb.TestService_FullDuplexCallServer) error {
					started <- struct{}{}
					_, err := stream.Recv()
					return err
				},
			}
			rule := grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), InFlight: 1, Refund: c.refund}
			unary, stream := grpclimit.Server(lim, nil, rule)
			ended := make(chan struct{}, 2)
			client := dial(t, serve(t, s,
				grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
					next grpc.UnaryHandler) (any, error) {
					defer func() { ended <- struct{}{} }()
					return unary(ctx, req, info, next)
				}),
				grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
					next grpc.StreamHandler) error {
					defer func() { ended <- struct{}{} }()
					return stream(srv, ss, info, next)
				})))
			calls := []func(context.Context) error{
				func(ctx context.Context) error { _, err := client.EmptyCall(ctx, &pb.Empty{}); return err },
				func(ctx context.Context) error { _, err := client.FullDuplexCall(ctx); return err },
			}
			for i, call := range calls {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go call(ctx)
				<-started // so it had the place
				cancel()
				<-ended
				require.Empty(t, slices.Collect(rules.InFlightOf(lim)))
				assert.Equal(t, c.left[i], left(t, lim, local))
			}
		})
	}
}
