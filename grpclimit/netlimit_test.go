package grpclimit_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
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
			block := make(chan struct{})
			unary, _ := grpclimit.Server(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress)})
			l := listen(t, "tcp", "127.0.0.1:0")
			serveOn(t, netlimit.Listener(l, lim, &netlimit.Options{Rate: perIP, InFlight: 2}),
				&service{empty: func(ctx context.Context) error {
					select {
					case <-block:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}},
				grpc.UnaryInterceptor(unary))
			dial := func() (pb.TestServiceClient, *grpc.ClientConn) {
				conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithDisableRetry())
				require.NoError(t, err)
				t.Cleanup(func() { conn.Close() })
				return pb.NewTestServiceClient(conn), conn
			}
			call := func(c pb.TestServiceClient) error {
				_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
				return err
			}
			first, firstConn := dial()
			second, _ := dial()
			require.NoError(t, call(first))
			require.NoError(t, call(second))
			b, err := lim.Bucket(perAddress.Key("127.0.0.1"))
			require.NoError(t, err)
			require.EqualValues(t, 98, b.Remaining, "the server sees the address")
			soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err = first.EmptyCall(soon, &pb.Empty{})
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			stream, err := first.FullDuplexCall(t.Context())
			require.NoError(t, err)
			require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
			_, err = stream.Recv()
			require.NoError(t, err)

			third, thirdConn := dial()
			require.Equal(t, codes.Unavailable, status.Code(call(third)), "two are open")
			require.NoError(t, thirdConn.Close())
			require.NoError(t, firstConn.Close())
			// The server notices a while after the client, and each try of a client
			// that has no place spends nothing.
			require.Eventually(t, func() bool {
				c, conn := dial()
				err := call(c)
				if err != nil {
					conn.Close()
				}
				return err == nil
			}, 20*time.Second, time.Millisecond, "one has closed")
			require.NoError(t, call(second))
			raw, err := net.Dial("tcp", l.Addr().String())
			if err == nil { // Dial may notice the reset, or only Read
				defer raw.Close()
				raw.Write([]byte("x"))
				_, err = raw.Read(make([]byte, 1))
			}
			require.Error(t, err, "two are open, and no token is left")
			close(block)
		})
	}
}
