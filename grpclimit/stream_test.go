package grpclimit_test

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/grpclimit"
	"github.com/stint-go/stint/rules"
)

// exchange sends n messages to an echo, and returns how many came back, and the
// error that ended the stream.
func exchange(t testing.TB, c pb.TestServiceClient, n int, opts ...grpc.CallOption) (echoes int, err error) {
	t.Helper()
	stream, err := c.FullDuplexCall(t.Context(), opts...)
	require.NoError(t, err)
	for range n {
		if err := stream.Send(&pb.StreamingOutputCallRequest{}); err != nil {
			break // the status comes from Recv
		}
		if _, err := stream.Recv(); err != nil {
			return echoes, err
		}
		echoes++
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	return echoes, err
}

// A stream of 100 messages ends at the eleventh if the limit is 10.
func TestMessages(t *testing.T) {
	two := func(grpclimit.Call) int64 { return 2 }
	for name, c := range map[string]struct {
		rules  []grpclimit.Rule
		echoes int
		left   int64
		held   time.Duration
		passes bool
	}{
		"received":        {rules: []grpclimit.Rule{{Pattern: "received"}}, echoes: 10},
		"sent":            {rules: []grpclimit.Rule{{Pattern: "sent"}}, echoes: 10},
		"both":            {rules: []grpclimit.Rule{{Pattern: "received"}, {Pattern: "sent"}}, echoes: 5},
		"cost":            {rules: []grpclimit.Rule{{Pattern: "received", Cost: 3}}, echoes: 3, left: 1},
		"cost of each":    {rules: []grpclimit.Rule{{Pattern: "received", CostFunc: two}}, echoes: 5},
		"shadow":          {rules: []grpclimit.Rule{{Pattern: "received", Shadow: true}}, echoes: 100, passes: true},
		"the call":        {rules: []grpclimit.Rule{{}}, echoes: 100, left: 9, passes: true},
		"locks out":       {rules: []grpclimit.Rule{{Pattern: "received", LockOut: time.Hour}}, echoes: 10, held: time.Hour},
		"in flight, too":  {rules: []grpclimit.Rule{{Pattern: "received"}, {InFlight: 1, CostFunc: func(grpclimit.Call) int64 { return 0 }}}, echoes: 10},
		"of other method": {rules: []grpclimit.Rule{{Pattern: "received /a.B/C"}}, echoes: 100, left: 10, passes: true},
	} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(10)})
			for i := range c.rules {
				c.rules[i].Key = grpclimit.ByPeer(perAddress)
			}
			client := dial(t, serve(t, new(service), limited(lim, nil, c.rules...)...))
			var trailer metadata.MD
			echoes, err := exchange(t, client, 100, grpc.Trailer(&trailer))
			assert.Equal(t, c.echoes, echoes)
			assert.Equal(t, c.left, left(t, lim, local))
			assert.Equal(t, c.held, heldFor(t, lim, local))
			if c.passes {
				assert.Equal(t, io.EOF, err)
				return
			}
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))
			retry, quota, _ := detailsOf(t, err)
			assert.Positive(t, retry.GetRetryDelay().AsDuration())
			assert.Equal(t, "address", quota.GetViolations()[0].GetSubject())
			assert.Len(t, trailer[pushback], 1)
			assert.NoError(t, call(t, client), "a rule with Messages is not for unary calls")
		})
	}
}

// A stream ends with the denial, even if its handler returns something else,
// and stays denied if the handler goes on.
func TestMessagesIgnored(t *testing.T) {
	for name, returned := range map[string]error{"nothing": nil, "another error": errors.New("other")} {
		t.Run(name, func(t *testing.T) {
			lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(2), perKey: stint.PerDay(1)})
			s := &service{duplex: func(stream pb.TestService_FullDuplexCallServer) error {
				for range 3 {
					stream.Recv()
				}
				_, err := stream.Recv()
				assert.Equal(t, codes.ResourceExhausted, status.Code(err))
				assert.Equal(t, codes.ResourceExhausted, status.Code(stream.Send(&pb.StreamingOutputCallResponse{})))
				return returned
			}}
			c := dial(t, serve(t, s, limited(lim, nil,
				grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Pattern: "received"},
				grpclimit.Rule{Key: grpclimit.ByPeer(perKey), Pattern: "sent"})...))
			stream, err := c.FullDuplexCall(t.Context())
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
			}
			_, err = stream.Recv()
			assert.Equal(t, "rate limit exceeded: address", status.Convert(err).Message())
			assert.EqualValues(t, 1, left(t, lim, perKey.Key("127.0.0.1")), "what is denied already is not spent")
		})
	}
}

// Of nested interceptors the outer one denies what the stream receives, and then
// the inner one what it sends, because the handler goes on. The pushback is set
// once: two values would end all retries.
func TestMessagesNested(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(24), perKey: stint.PerDay(24)})
	spend(t, lim, local, 24)
	spend(t, lim, perKey.Key("127.0.0.1"), 24)
	s := &service{duplex: func(stream pb.TestService_FullDuplexCallServer) error {
		_, err := stream.Recv()
		assert.Equal(t, "rate limit exceeded: address", status.Convert(err).Message())
		err = stream.Send(&pb.StreamingOutputCallResponse{})
		assert.Equal(t, "rate limit exceeded: key", status.Convert(err).Message())
		return nil
	}}
	c := dial(t, serve(t, s, append(
		limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Pattern: "received"}),
		limited(lim, nil, grpclimit.Rule{Key: grpclimit.ByPeer(perKey), Pattern: "sent"})...)...))
	stream, err := c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
	_, err = stream.Recv()
	assert.Equal(t, "rate limit exceeded: address", status.Convert(err).Message())
	assert.Equal(t, []string{"3600000"}, stream.Trailer()[pushback])
}

// A Limiter that fails ends the stream, unless FailOpen is set.
func TestMessagesFail(t *testing.T) {
	lim, _ := newLimiter(t, nil)
	rule := grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Pattern: "received"}
	for _, open := range []bool{false, true} {
		client := dial(t, serve(t, new(service), limited(broken{lim}, &grpclimit.Options{FailOpen: open}, rule)...))
		echoes, err := exchange(t, client, 5)
		if open {
			assert.Equal(t, 5, echoes)
			assert.Equal(t, io.EOF, err)
		} else {
			assert.Zero(t, echoes)
			assert.Equal(t, codes.Unavailable, status.Code(err))
		}
	}
}

// A stream sends and receives at the same time. The race detector looks for the
// rest.
func TestMessagesConcurrent(t *testing.T) {
	lim, _ := newLimiter(t, map[stint.Name]stint.Limit{perAddress: stint.PerDay(150)})
	const n = 100
	s := &service{duplex: func(stream pb.TestService_FullDuplexCallServer) error {
		var all sync.WaitGroup
		all.Go(func() {
			for i, err := 0, error(nil); i < n && err == nil; i++ {
				_, err = stream.Recv()
				rules.Decisions(stream.Context())
			}
		})
		all.Go(func() {
			for i, err := 0, error(nil); i < n && err == nil; i++ {
				err = stream.Send(&pb.StreamingOutputCallResponse{})
			}
		})
		all.Wait()
		return nil
	}}
	var seen atomic.Int64
	opts := &grpclimit.Options{Observers: []grpclimit.Observer{{Decisions: func(_ grpclimit.Call, ds []rules.Decision) {
		if ds[0].Allowed {
			seen.Add(1)
		}
	}}}}
	c := dial(t, serve(t, s, limited(lim, opts,
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Pattern: "received"},
		grpclimit.Rule{Key: grpclimit.ByPeer(perAddress), Pattern: "sent"})...))
	stream, err := c.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for range n {
		stream.Send(&pb.StreamingOutputCallRequest{})
	}
	for err == nil {
		_, err = stream.Recv()
	}
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.EqualValues(t, 150, seen.Load())
}
