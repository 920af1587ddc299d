package grpclimit_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
			ended := make(chan struct{}, 2) // rules count an outcome after they refund
			counts := grpclimit.Rule{Key: grpclimit.ByPeer(perKey), Count: rules.OneOf(codes.Canceled)}
			watch := grpclimit.Observer{Decisions: func(_ grpclimit.Call, ds []rules.Decision) {
				if ds[0].Label == "key" {
					ended <- struct{}{}
				}
			}}
			opts := &grpclimit.Options{Observers: []grpclimit.Observer{watch}}
			client := dial(t, serve(t, s, limited(lim, opts, rule, counts)...))
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
