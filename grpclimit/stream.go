package grpclimit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/stint-go/stint/rules"
)

// limitedStream is a stream whose messages may spend.
type limitedStream struct {
	grpc.ServerStream
	*server
	call  Call                  // with the context of the handler
	told  *atomic.Bool          // a denial has set the trailer, here or in an interceptor around
	ended atomic.Pointer[error] // the status that ends the stream

	mu   sync.Mutex
	last []rules.Decision // about the last message of each bucket
}

type streamKey struct{}

func streamOf(ctx context.Context) *limitedStream {
	l, _ := ctx.Value(streamKey{}).(*limitedStream)
	return l
}

// limit returns a stream whose context has the decisions of p.
func (s *server) limit(ss grpc.ServerStream, p *pass, call Call) *limitedStream {
	l := &limitedStream{ServerStream: ss, server: s, call: call, told: new(atomic.Bool)}
	if outer := streamOf(call.Ctx); outer != nil {
		l.told = outer.told
	}
	if p != nil {
		l.call.Ctx = p.Context()
	}
	l.call.Ctx = context.WithValue(l.call.Ctx, streamKey{}, l)
	return l
}

// Context returns the context that has the decisions.
func (l *limitedStream) Context() context.Context { return l.call.Ctx }

// RecvMsg returns the status of the denial if the message is denied.
func (l *limitedStream) RecvMsg(msg any) error {
	if ended := l.ended.Load(); ended != nil {
		return *ended
	}
	if err := l.ServerStream.RecvMsg(msg); err != nil {
		return err
	}
	return l.spend(msg, received)
}

// SendMsg does not send a message that is denied, and returns the status of the
// denial.
func (l *limitedStream) SendMsg(msg any) error {
	if err := l.spend(msg, sent); err != nil {
		return err
	}
	return l.ServerStream.SendMsg(msg)
}

// spend spends for a message. After an error the stream ends with that error,
// whatever the handler returns.
func (l *limitedStream) spend(msg any, way way) error {
	if ended := l.ended.Load(); ended != nil {
		return *ended
	}
	if !l.counts[way] {
		return nil
	}
	call := l.call
	call.Message, call.way = msg, way
	p, d, err := l.door.Begin(call)
	if err != nil {
		return l.end(l.failed(call.Ctx, err))
	}
	defer p.Leave()
	defer l.remember(p)
	if !d.Allowed {
		return l.end(l.denied(call.Ctx, p))
	}
	p.End(codes.OK)
	return nil
}

// remember notes the decisions about a message for the trailer.
func (l *limitedStream) remember(p *pass) {
	if p == nil || !l.opts.RateLimit {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range p.Each {
		i := slices.IndexFunc(l.last, func(before rules.Decision) bool { return before.RuleKey == d.RuleKey })
		if i < 0 {
			i, l.last = len(l.last), append(l.last, rules.Decision{})
		}
		l.last[i] = *d
	}
}

// end returns the first status that ended the stream.
func (l *limitedStream) end(err error) error {
	if l.ended.CompareAndSwap(nil, &err) {
		return err
	}
	return *l.ended.Load()
}
