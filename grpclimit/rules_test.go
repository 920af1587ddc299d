package grpclimit_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/internal/rulestest"
)

// door returns a door of rulestest: a server on the loopback interface, with the
// interceptors of each layer, for unary calls or for streams.
func door(streams bool) rulestest.Door {
	return func(t testing.TB, lim stint.Decider, layers ...[]rulestest.Rule) func(rulestest.Request) bool {
		var do rulestest.Request // of the innermost call
		reached := false
		handle := func(ctx context.Context) error {
			req := do
			req.Handle(ctx, layers[len(layers)-1])
			reached = true
			return status.Error(map[rulestest.Outcome]codes.Code{"": ok, rulestest.OK: ok,
				rulestest.Failed: codes.Unauthenticated, rulestest.Broken: codes.Internal}[req.Outcome], "as asked")
		}
		s := &service{empty: handle}
		s.duplex = func(stream pb.TestService_FullDuplexCallServer) error { return handle(stream.Context()) }
		var opts []grpc.ServerOption
		for _, layer := range layers {
			byID := func(name stint.Name) grpclimit.KeyFunc { return grpclimit.ByMetadata(name, "id") }
			opts = append(opts, limited(lim, nil, rulestest.RulesOf(lim, layer, byID, grpclimit.Single,
				grpclimit.AuthFailed, grpclimit.ServerError)...)...)
		}
		client := dial(t, serve(t, s, opts...))
		return func(req rulestest.Request) bool {
			do, reached = req, false
			ctx := t.Context()
			if req.ID != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "id", req.ID)
			}
			if !streams {
				client.EmptyCall(ctx, &pb.Empty{})
				return reached
			}
			stream, err := client.FullDuplexCall(ctx)
			require.NoError(t, err)
			_, err = stream.Recv() // the end
			require.Error(t, err)
			return reached
		}
	}
}

// TestRulesEverywhere runs the rules with every kind of limit, on a Limiter, the
// owner of a file and a guest.
func TestRulesEverywhere(t *testing.T) {
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprint("limiter, streams ", streams), func(t *testing.T) {
			t.Parallel()
			rulestest.Run(t, door(streams), rulestest.Limiter())
		})
	}
	for _, role := range []hostlimit.Role{hostlimit.RoleOwner, hostlimit.RoleGuest} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			rulestest.Run(t, door(false), rulestest.Host(role))
		})
	}
}
