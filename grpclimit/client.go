package grpclimit

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// ClientOptions configure the interceptors of Client.
type ClientOptions struct {
	// Key finds the bucket: ByTarget has one for each server, and Single has one
	// for all servers. If Key returns an error, the call fails with that error.
	Key KeyFunc

	// Cost is how many tokens a call takes; nil means 1.
	Cost func(Call) int64

	// Wait makes a call wait for its tokens. It fails with a *QuotaError at once
	// if its turn is after the context's deadline, if the limit's Queue is full,
	// or if the limit is stint.Blocked. If Wait is not set, each call without
	// tokens fails at once.
	Wait bool

	// OnWait is called before a call waits, with the time until its turn as far as it
	// is known then: a hold may delay it. It is not called for a call that fails at
	// once because its turn is after the deadline.
	OnWait func(ctx context.Context, wait time.Duration)

	// MaxHold limits how long a server can keep the client away; 0 means 24
	// hours. After that a call is sent again.
	MaxHold time.Duration

	// Settle makes Cost an upper bound, such as max_tokens. It is called with the
	// reply of a call, and with each message that a stream receives, and passes the
	// true cost to done when it knows it. Only the first call of done counts. If
	// there is none, the bound stays spent. nil means that Cost is the true cost.
	Settle func(ctx context.Context, reply any, done func(cost int64))

	// OnError is called if the Limiter could not do what a server asks, could not
	// refund, or could not settle. The call returns what it would have returned.
	OnError func(ctx context.Context, err error)
}

// Client returns interceptors that keep a client within a quota, and away from a
// server for as long as its RetryInfo asks. Both last across runs of the
// program, in the Limiter's file. Close the Limiter before the program exits.
//
// A call spends its tokens before it is sent, and a stream when it begins. They
// are returned if the call never had a connection. If a call or a stream ends
// with ResourceExhausted or Unavailable and has RetryInfo, the key is held for
// that long, but at most for MaxHold. Until then every call fails with a
// *QuotaError, or waits if Wait is set. A longer hold stays.
//
// If ResourceExhausted has no RetryInfo, the key is held for a second. The next
// one doubles the time, up to an hour or MaxHold, until a call succeeds, as in
// httplimit.Transport. A message that is too large for gRPC is no such refusal.
//
// gRPC retries below interceptors: a call with several attempts, because of a
// retryPolicy, spends once. Set the quota so that it covers the attempts, or
// make retries in the program.
//
// Client panics on mistakes in the program: no Limiter or no Key.
func Client(lim stint.Decider, opts *ClientOptions) (grpc.UnaryClientInterceptor, grpc.StreamClientInterceptor) {
	if lim == nil || opts == nil || opts.Key == nil {
		panic("grpclimit: Client: want a limiter and a Key")
	}
	c := &client{opts: *opts}
	c.Limiter, c.Wait, c.MaxHold = lim, opts.Wait, opts.MaxHold
	if opts.OnWait != nil {
		c.OnWait = func(ctx context.Context, _ stint.Key, wait time.Duration) { opts.OnWait(ctx, wait) }
	}
	return c.unary, c.stream
}

type client struct {
	rules.Client
	opts ClientOptions
}

// A QuotaError says that a call was not sent, and when it may be. Its code is
// ResourceExhausted, with RetryInfo. What it wraps is in the documentation of
// rules.QuotaError.
type QuotaError struct{ *rules.QuotaError }

// GRPCStatus lets status.Code and status.Convert read the error.
func (e *QuotaError) GRPCStatus() *status.Status {
	st := status.New(codes.ResourceExhausted, e.Error())
	if errors.Is(e, stint.ErrBlocked) {
		return st
	}
	if detailed, err := st.WithDetails(retryInfo(e.RetryAfter)); err == nil {
		return detailed
	}
	return st
}

func (c *client) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	turn, err := c.begin(Call{Ctx: ctx, Method: method, Message: req, Target: cc.Target()})
	if err != nil {
		return err
	}
	var to peer.Peer
	err = invoke(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Peer(&to))...)
	if err != nil && to.Addr == nil {
		c.failed(ctx, turn.Refund())
	}
	c.obey(ctx, turn, err)
	if err == nil {
		c.settle(ctx, turn, reply)
	}
	return err
}

func (c *client) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	turn, err := c.begin(Call{Ctx: ctx, Method: method, Stream: true, Target: cc.Target()})
	if err != nil {
		return nil, err
	}
	cs, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		c.failed(ctx, turn.Refund()) // a stream begins as soon as it has a connection
		c.obey(ctx, turn, err)
		return nil, err
	}
	return &clientStream{ClientStream: cs, client: c, turn: turn, one: !desc.ServerStreams}, nil
}

// clientStream obeys the status at the end of a stream.
type clientStream struct {
	grpc.ClientStream
	client *client
	turn   *rules.Turn
	one    bool // the server sends one message, and gRPC does not receive again for the status
	once   sync.Once
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if err != nil || s.one {
		s.once.Do(func() { s.client.obey(s.Context(), s.turn, err) })
	}
	if err == nil {
		s.client.settle(s.Context(), s.turn, msg)
	}
	return err
}

// settle lets the program find the true cost of a call in a message of the server.
func (c *client) settle(ctx context.Context, turn *rules.Turn, msg any) {
	if c.opts.Settle == nil {
		return
	}
	c.opts.Settle(ctx, msg, func(cost int64) {
		if _, err := turn.Settle(cost); !errors.Is(err, rules.ErrSettled) {
			c.failed(ctx, err)
		}
	})
}

// begin spends the tokens of a call. The error says why the call must not be sent.
func (c *client) begin(call Call) (*rules.Turn, error) {
	ctx := call.Ctx
	key, err := c.opts.Key(call)
	if err != nil {
		return nil, err
	}
	cost := int64(1)
	if c.opts.Cost != nil {
		cost = c.opts.Cost(call)
	}
	turn, err := c.Begin(ctx, key, cost)
	if over := (*rules.QuotaError)(nil); errors.As(err, &over) {
		return nil, &QuotaError{over}
	}
	if err != nil && ctx.Err() != nil {
		return nil, status.Error(status.FromContextError(ctx.Err()).Code(), err.Error())
	}
	return turn, err
}

// obey does what the status of a call asks. The error of another quota of this
// client is not a server's.
func (c *client) obey(ctx context.Context, turn *rules.Turn, ended error) {
	if errors.As(ended, new(*QuotaError)) {
		return
	}
	a := rules.Answer{OK: ended == nil || ended == io.EOF}
	if st, ok := status.FromError(ended); ok && !a.OK {
		switch st.Code() {
		case codes.ResourceExhausted:
			a.Refused = !strings.Contains(st.Message(), "message larger than max")
			a.Wait, _ = RetryAfter(ended)
		case codes.Unavailable:
			a.Wait, _ = RetryAfter(ended)
		}
	}
	c.failed(ctx, turn.Obey(a))
}

func (c *client) failed(ctx context.Context, err error) {
	if err != nil && c.opts.OnError != nil {
		c.opts.OnError(ctx, err)
	}
}
