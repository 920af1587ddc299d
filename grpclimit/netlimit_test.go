package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/netlimit"
)

// A gRPC server on a Listener of netlimit: connections over the limit fail, and
// calls, streams, deadlines and keys by address work on the others. If the limit
// is Leased, the first Read of a connection decides.
func TestNetlimit(t *testing.T) {
	for _, level := range []stint.Durability{stint.Memory, stint.Leased} {
		t.Run(level.String(), func(t *testing.T) {
			conns := stint.PerMinute(3)
			conns.Durability = level
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perIP: conns, perAddress: stint.PerMinute(100)})
			unary, _ := grpclimit.Server(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)})
			l := listen(t, "tcp", "127.0.0.1:0")
			serveOn(t, netlimit.Listener(l, lim, &netlimit.Options{Rate: perIP, InFlight: 2}),
				&service{empty: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}, grpc.UnaryInterceptor(unary))
			dial := func() (pb.TestServiceClient, *grpc.ClientConn) {
				conn := connect(t, l.Addr().String(), grpc.WithDisableRetry())
				return pb.NewTestServiceClient(conn), conn
			}
			first, firstConn := dial()
			second, _ := dial()
			require.Equal(t, ok, ask(t, first, ok))
			require.Equal(t, ok, ask(t, second, ok))
			require.EqualValues(t, 98, left(t, lim, local), "the server sees the address")
			soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := first.EmptyCall(soon, &pb.Empty{})
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			stream, err := first.FullDuplexCall(t.Context())
			require.NoError(t, err)
			require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
			_, err = stream.Recv()
			require.NoError(t, err)

			third, thirdConn := dial()
			require.Equal(t, codes.Unavailable, ask(t, third, ok), "two are open")
			require.NoError(t, thirdConn.Close())
			require.NoError(t, firstConn.Close())
			// The server notices a while after the client, and each try of a client
			// that has no place spends nothing.
			require.Eventually(t, func() bool {
				c, conn := dial()
				code := ask(t, c, ok)
				if code != ok {
					conn.Close()
				}
				return code == ok
			}, 20*time.Second, time.Millisecond, "one has closed")
			require.Equal(t, ok, ask(t, second, ok))
		})
	}
}
