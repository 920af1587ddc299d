package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// Key finds the bucket: ByTarget has one for each server, and Shared has one
	// for all servers. If Key returns an error, the call fails with that error.
	Key KeyFunc

	// Cost is how many tokens a call takes; nil means 1.
	Cost func(context.Context, *Call) int64

	// Wait makes a call wait for its tokens. It fails with a *QuotaError at once
	// if its turn is after the context's deadline, if the limit's Queue is full,
	// or if the limit is stint.Blocked. If Wait is not set, each call without
	// tokens fails at once.
	Wait bool

	// MaxHold limits how long a server can keep the client away; 0 means 24
	// hours. After that a call is sent again.
	MaxHold time.Duration

	// OnError is called if the Limiter could not do what a server asks, or could
	// not refund. The call returns what it would have returned.
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
// gRPC retries below interceptors: a call with several attempts, because of a
// retryPolicy, spends once. Set the quota so that it covers the attempts, or
// make retries in the program.
//
// Client panics on mistakes in the program: no Limiter or no Key.
func Client(lim stint.Decider, opts *ClientOptions) (grpc.UnaryClientInterceptor, grpc.StreamClientInterceptor) {
	if rules.IsMissing(lim) || opts == nil || opts.Key == nil {
		panic("grpclimit: Client: want a limiter and a Key")
	}
	c := &client{lim: lim, opts: *opts}
	return c.unary, c.stream
}

type client struct {
	lim  stint.Decider
	opts ClientOptions
}

// A QuotaError says that a call was not sent, and when it may be. Its code is
// ResourceExhausted, with RetryInfo.
type QuotaError struct {
	Key        stint.Key
	Limit      stint.Limit   // zero if the bucket has no limit
	RetryAfter time.Duration // until the call would pass

	err error
}

// Error has no id.
func (e *QuotaError) Error() string {
	if e.err == stint.ErrBlocked {
		return "grpclimit: the limit blocks all calls"
	}
	wait := (e.RetryAfter + time.Second - 1).Truncate(time.Second)
	return fmt.Sprintf("grpclimit: the quota is used up: try again in %v", wait)
}

// Unwrap returns stint.ErrBlocked if the limit is stint.Blocked. If Wait is set,
// it returns context.DeadlineExceeded if the turn of the call is after its
// deadline, or stint.ErrQueueFull if the queue is full. Otherwise it returns
// nil.
func (e *QuotaError) Unwrap() error { return e.err }

// GRPCStatus lets status.Code and status.Convert read the error.
func (e *QuotaError) GRPCStatus() *status.Status {
	st := status.New(codes.ResourceExhausted, e.Error())
	if e.err == stint.ErrBlocked {
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
	key, cost, at, err := c.begin(ctx, &Call{Method: method, Request: req, Target: cc.Target()})
	if err != nil {
		return err
	}
	var to peer.Peer
	err = invoke(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Peer(&to))...)
	if err == nil {
		return nil
	}
	if to.Addr == nil {
		c.refund(ctx, key, cost, at)
	}
	c.obey(ctx, key, err)
	return err
}

func (c *client) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	key, cost, at, err := c.begin(ctx, &Call{Method: method, Stream: true, Target: cc.Target()})
	if err != nil {
		return nil, err
	}
	cs, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		c.refund(ctx, key, cost, at) // a stream begins as soon as it has a connection
		c.obey(ctx, key, err)
		return nil, err
	}
	return &clientStream{ClientStream: cs, client: c, key: key}, nil
}

// clientStream obeys the status at the end of a stream.
type clientStream struct {
	grpc.ClientStream
	client *client
	key    stint.Key
	once   sync.Once
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if err != nil {
		s.once.Do(func() { s.client.obey(s.Context(), s.key, err) })
	}
	return err
}

// begin spends the tokens of a call, no earlier than at. The error says why the
// call must not be sent.
func (c *client) begin(ctx context.Context, call *Call) (key stint.Key, cost int64, at time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return key, 0, at, status.FromContextError(err).Err()
	}
	if key, err = c.opts.Key(ctx, call); err != nil {
		return key, 0, at, err
	}
	if cost = 1; c.opts.Cost != nil {
		cost = c.opts.Cost(ctx, call)
	}
	if at, err = c.spend(ctx, key, cost); err != nil {
		return key, 0, at, err
	}
	if err := ctx.Err(); err != nil { // cancelled during the commit
		c.refund(ctx, key, cost, at)
		return key, 0, at, status.FromContextError(err).Err()
	}
	return key, cost, at, nil
}

// spend takes the tokens of a call, no earlier than at.
func (c *client) spend(ctx context.Context, key stint.Key, cost int64) (at time.Time, err error) {
	var d stint.Decision
	var why error
	if c.opts.Wait {
		at, err = c.lim.Wait(ctx, key.Cost(cost))
		switch {
		case err == nil:
			return at, nil
		case errors.Is(err, stint.ErrQueueFull):
			why = stint.ErrQueueFull
		case errors.Is(err, stint.ErrBlocked):
			why = stint.ErrBlocked
		case ctx.Err() != nil:
			return at, status.FromContextError(ctx.Err()).Err()
		case errors.Is(err, context.DeadlineExceeded):
			why = context.DeadlineExceeded
		default:
			return at, err
		}
		d, err = c.lim.Check(key, cost)
	} else {
		at = c.lim.Now()
		if d, err = c.lim.Spend(key, cost); d.Allowed {
			return at, err
		}
		if d.Limit == stint.Blocked {
			why = stint.ErrBlocked
		}
	}
	if err != nil {
		return at, err
	}
	return at, &QuotaError{Key: key, Limit: d.Limit, RetryAfter: d.RetryAfter, err: why}
}

// refund returns the tokens of a call that was not sent.
func (c *client) refund(ctx context.Context, key stint.Key, cost int64, at time.Time) {
	_, err := c.lim.RefundAll(stint.Request{Key: key, Cost: cost, Spent: at})
	c.failed(ctx, err)
}

// obey holds the key for as long as the status of a call asks. The error of
// another quota of this client is not a server's.
func (c *client) obey(ctx context.Context, key stint.Key, ended error) {
	if errors.As(ended, new(*QuotaError)) {
		return
	}
	st, ok := status.FromError(ended)
	if !ok || st.Code() != codes.ResourceExhausted && st.Code() != codes.Unavailable {
		return
	}
	wait, _ := RetryAfter(ended)
	if wait <= 0 {
		return
	}
	wait = min(wait, cmp.Or(c.opts.MaxHold, 24*time.Hour))
	_, err := c.lim.ExtendHold(key, c.lim.Now().Add(wait))
	c.failed(ctx, err)
}

func (c *client) failed(ctx context.Context, err error) {
	if err != nil && c.opts.OnError != nil {
		c.opts.OnError(ctx, err)
	}
}
