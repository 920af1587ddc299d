package grpclimit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
)

// limitedStream is a stream whose messages may spend.
type limitedStream struct {
	grpc.ServerStream
	ctx   context.Context
	pass  *pass
	rules [2][]*applied         // for messages received, and sent
	ended atomic.Pointer[error] // the status that ends the stream
}

// Context returns the context that has the decisions.
func (l *limitedStream) Context() context.Context { return l.ctx }

// RecvMsg returns the status of the denial if the message is denied.
func (l *limitedStream) RecvMsg(msg any) error {
	if len(l.rules[0]) == 0 {
		return l.ServerStream.RecvMsg(msg)
	}
	if ended := l.ended.Load(); ended != nil {
		return *ended
	}
	if err := l.ServerStream.RecvMsg(msg); err != nil {
		return err
	}
	return l.spend(msg, l.rules[0])
}

// SendMsg does not send a message that is denied, and returns the status of the
// denial.
func (l *limitedStream) SendMsg(msg any) error {
	if len(l.rules[1]) == 0 {
		return l.ServerStream.SendMsg(msg)
	}
	if err := l.spend(msg, l.rules[1]); err != nil {
		return err
	}
	return l.ServerStream.SendMsg(msg)
}

// spend spends for a message. After an error the stream ends with that error,
// whatever the handler returns.
func (l *limitedStream) spend(msg any, rules []*applied) error {
	if ended := l.ended.Load(); ended != nil {
		return *ended
	}
	p := l.pass
	mine := make([]*applied, len(rules))
	each := make([]applied, len(rules))
	p.c.mu.Lock()
	for i, a := range rules {
		each[i] = applied{by: a.by, rule: a.rule, idle: a.idle, message: true}
	}
	p.c.mu.Unlock()
	for i, a := range rules {
		each[i].Decision = Decision{
			Label: p.names.Of(p.lim)[a.RuleKey.Name].Label, RuleKey: a.RuleKey,
			Cost: a.rule.messageCost(msg), Shadow: a.Shadow,
		}
		each[i].Key = a.RuleKey
		mine[i] = &each[i]
	}
	d, err := p.spend(l.ctx, mine)
	if err != nil {
		if err = p.failed(l.ctx, err); err != nil {
			return l.end(err)
		}
		return nil // FailOpen
	}
	p.learn(l.ctx, mine, d.Allowed)
	p.observe(l.ctx, mine)
	p.keep(rules, mine)
	if !d.Allowed {
		return l.end(p.denied(l.ctx, mine))
	}
	for i, a := range mine {
		if p.lockOut(l.ctx, a); a.changed {
			p.c.mu.Lock()
			rules[i].changed = true
			p.c.mu.Unlock()
		}
	}
	return nil
}

// keep lets Decisions show the last message.
func (p *pass) keep(rules, mine []*applied) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for i, a := range rules {
		if !mine[i].decided { // a Shadow rule that was replaced
			continue
		}
		d := &mine[i].Decision // without RuleKey and Shadow, which stay and are read without the lock
		a.Decision.Decision, a.Label, a.Cost, a.decided = d.Decision, d.Label, d.Cost, true
	}
}

// end returns the first status that ended the stream.
func (l *limitedStream) end(err error) error {
	if l.ended.CompareAndSwap(nil, &err) {
		return err
	}
	return *l.ended.Load()
}
