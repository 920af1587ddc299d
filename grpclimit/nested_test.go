package grpclimit_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/httplimit"
)

// thrice is an interceptor that calls the next ones three times, and does between
// in between.
func thrice(codes *[]codes.Code, between func(context.Context)) grpc.ServerOption {
	return grpc.ChainUnaryInterceptor(func(
		ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler,
	) (any, error) {
		for range 3 {
			_, err := next(ctx, req)
			*codes = append(*codes, status.Code(err))
			between(ctx)
		}
		return &pb.Empty{}, nil
	})
}

// An interceptor may call nested ones again, for another try or for each part of
// a batch. Once these have denied, they do not let the next try pass, and nothing
// is returned that was not spent.
func TestNestedDeniesAgain(t *testing.T) {
	for name, beside := range map[string]grpclimit.Rule{
		"spends": {}, "Settle": {Settle: true}, "RefundCode": {RefundCode: grpclimit.ServerError},
		"Shadow": {Shadow: true},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			key := perKey.Key("k")
			spend(t, lim, key, 3)
			spend(t, lim, local, 5)
			var got []codes.Code
			var decided int
			beside.Key, beside.Cost = grpclimit.ByMetadata(perKey, "k"), 2
			opts := limited(lim, nil, grpclimit.Rule{Key: grpclimit.Shared(everyone)})
			opts = append(opts, thrice(&got, func(ctx context.Context) {
				if beside.Settle && len(got) == 1 {
					short, err := grpclimit.Settle(ctx, perKey, 1)
					assert.NoError(t, err)
					assert.EqualValues(t, 1, short, "nothing was spent")
				}
				if len(got) == 2 {
					assert.EqualValues(t, 2, left(t, lim, key))
					assert.NoError(t, lim.Reset(local))
				}
				decided = len(grpclimit.Decisions(ctx))
			}))
			opts = append(opts, limited(lim, nil, beside, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)})...)
			require.NoError(t, call(t, dial(t, serve(t, new(service), opts...)), "k", "k"))
			assert.Equal(t, []codes.Code{exhausted, exhausted, ok}, got)
			assert.Zero(t, left(t, lim, key))
			assert.EqualValues(t, 4, left(t, lim, local))
			assert.Equal(t, 3, decided, "one decision for each bucket")
		})
	}
}

// A rule that has spent nothing in the end decides anew when an outer interceptor
// calls it again.
func TestNestedSpendsAfterNothing(t *testing.T) {
	for name, c := range map[string]struct {
		rule  grpclimit.Rule
		codes []codes.Code
		left  int64
	}{
		"refunded, then not":   {grpclimit.Rule{RefundCode: grpclimit.ServerError}, []codes.Code{codes.Internal, ok, ok}, 4},
		"refunded thrice":      {grpclimit.Rule{RefundCode: grpclimit.ServerError}, slices.Repeat([]codes.Code{codes.Internal}, 3), 5},
		"not counted, then so": {grpclimit.Rule{CountCode: grpclimit.AuthFailed}, []codes.Code{ok, codes.PermissionDenied, ok}, 4},
		"in flight":            {grpclimit.Rule{CountCode: grpclimit.AuthFailed, InFlight: 1}, []codes.Code{ok, codes.PermissionDenied, ok}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			var got []codes.Code
			var decided int
			s := &service{empty: func(context.Context) error { return status.Error(c.codes[len(got)], "") }}
			c.rule.Key = grpclimit.ByMetadata(perKey, "k")
			opts := limited(lim, nil, grpclimit.Rule{Key: grpclimit.Shared(everyone)})
			opts = append(opts, thrice(&got, func(ctx context.Context) { decided = len(grpclimit.Decisions(ctx)) }))
			opts = append(opts, limited(lim, nil, c.rule)...)
			require.NoError(t, call(t, dial(t, serve(t, s, opts...)), "k", "k"))
			assert.Equal(t, c.codes, got)
			assert.Equal(t, c.left, left(t, lim, perKey.Key("k")))
			assert.EqualValues(t, 4, left(t, lim, everyone.Key("")))
			assert.Equal(t, 2, decided, "one decision for each bucket")
		})
	}
}

// Each call of nested interceptors has a place while it runs.
func TestNestedPlacesAgain(t *testing.T) {
	for name, shadow := range map[string]bool{"a rule": false, "a Shadow rule": true} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, nil)
			var got []codes.Code
			var running [][]httplimit.Running
			s := &service{empty: func(context.Context) error {
				running = append(running, slices.Collect(httplimit.InFlightOf(lim)))
				return nil
			}}
			opts := append(limited(lim, nil, grpclimit.Rule{Key: grpclimit.Shared(everyone)}), thrice(&got, func(context.Context) {}))
			opts = append(opts, limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), InFlight: 1, Shadow: shadow})...)
			require.NoError(t, call(t, dial(t, serve(t, s, opts...))))
			one := []httplimit.Running{{Key: local, Running: 1}}
			assert.Equal(t, [][]httplimit.Running{one, one, one}, running)
			assert.Empty(t, slices.Collect(httplimit.InFlightOf(lim)))
			assert.EqualValues(t, 4, left(t, lim, local), "it spends once")
		})
	}
}

// failsOnce fails once.
type failsOnce struct {
	stint.Decider
	failed *atomic.Bool
}

func (f failsOnce) SpendContext(ctx context.Context, key stint.Key, cost int64) (stint.Decision, error) {
	if f.failed.CompareAndSwap(false, true) {
		return stint.Decision{}, stint.ErrNotDurable
	}
	return f.Decider.SpendContext(ctx, key, cost)
}

// A call that passes because of FailOpen has spent nothing, so a nested rule of
// the same bucket decides. The call keeps its place.
func TestFailOpenNested(t *testing.T) {
	for name, outer := range map[string]grpclimit.Rule{
		"the Limiter fails": {Key: grpclimit.ByPeer(perAddress), InFlight: 1},
		"a KeyFunc fails": {Key: func(context.Context, *grpclimit.Call) (stint.Key, error) {
			return stint.Key{}, stint.ErrClosed
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newLimiter(t, nil)
			lim := failsOnce{l, new(atomic.Bool)}
			rules := []grpclimit.Rule{outer}
			if outer.InFlight == 0 {
				lim.failed.Store(true)
				rules = append([]grpclimit.Rule{{Key: grpclimit.ByPeer(perAddress), InFlight: 1}}, rules...)
			}
			var running []httplimit.Running
			s := &service{empty: func(context.Context) error {
				running = slices.Collect(httplimit.InFlightOf(lim))
				return nil
			}}
			opts := append(limited(lim, &grpclimit.Options{FailOpen: true}, rules...),
				limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), InFlight: 1})...)
			require.NoError(t, call(t, dial(t, serve(t, s, opts...))))
			assert.EqualValues(t, 4, left(t, l, local))
			assert.Equal(t, []httplimit.Running{{Key: local, Running: 1}}, running)
			assert.Empty(t, slices.Collect(httplimit.InFlightOf(lim)))
		})
	}
}
