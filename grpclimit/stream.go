package grpclimit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
)

// limitedStream is a stream whose messages may spend.
type limitedStream struct {
	grpc.ServerStream
	pass  *pass
	ended atomic.Pointer[error] // the status that ends the stream
}

// Context returns the context that has the decisions.
func (l *limitedStream) Context() context.Context { return l.pass }

// RecvMsg returns the status of the denial if the message is denied.
func (l *limitedStream) RecvMsg(msg any) error {
	if !l.pass.counts(Received) {
		return l.ServerStream.RecvMsg(msg)
	}
	if ended := l.ended.Load(); ended != nil {
		return *ended
	}
	if err := l.ServerStream.RecvMsg(msg); err != nil {
		return err
	}
	return l.spend(msg, Received)
}

// SendMsg does not send a message that is denied, and returns the status of the
// denial.
func (l *limitedStream) SendMsg(msg any) error {
	if l.pass.counts(Sent) {
		if err := l.spend(msg, Sent); err != nil {
			return err
		}
	}
	return l.ServerStream.SendMsg(msg)
}

// counts reports whether some rule is for messages in a direction.
func (s *server) counts(way Messages) bool {
	for i := range s.rules {
		if s.rules[i].Messages&way != 0 {
			return true
		}
	}
	return false
}

// spend spends for a message. After an error the stream ends with that error,
// whatever the handler returns.
func (l *limitedStream) spend(msg any, way Messages) error {
	if ended := l.ended.Load(); ended != nil {
		return *ended
	}
	p := l.pass
	d, ds, err := p.Spend(p, func(rule int) (cost int64, ok bool) {
		ru := &p.rules[rule]
		if ru.Messages&way == 0 {
			return 0, false
		}
		return ru.messageCost(msg), true
	}, func(err error) { p.fail(p, err) })
	if err != nil {
		if err = p.failed(p, err); err != nil {
			return l.end(err)
		}
		return nil // FailOpen
	}
	if p.observe(p, ds); !d.Allowed {
		return l.end(p.denied(p, ds))
	}
	return nil
}

// end returns the first status that ended the stream.
func (l *limitedStream) end(err error) error {
	if l.ended.CompareAndSwap(nil, &err) {
		return err
	}
	return *l.ended.Load()
}
