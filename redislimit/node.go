package redislimit

import (
	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/away"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// openNode returns what decides while the server is away.
func (l *Limiter) openNode() (*away.Node, error) {
	o, nodes := &l.opts, l.opts.Nodes
	if !o.mayHave(AwayShare) {
		nodes = 0
	}
	return away.Open(away.Config{
		Server: l.server, Learn: l.learn, Nodes: nodes, Shares: l.hasShare,
		Decides: o.mayHave(AwayShare) || o.mayHave(AwayOpen), Level: o.Durability,
		Local: o.Local, Options: o.LocalOptions, Timeout: o.Timeout, Now: o.Now, Elapsed: l.elapsed,
		Prefix: o.Prefix, Name: o.keyOf, Label: l.labeled,
		Limit:  func(key stint.Key) stint.Limit { limit, _ := l.Limits().For(key); return limit },
		Loaded: func() *script.Since { return &l.inForce.Load().since },
		Begin:  l.begin, Closing: l.closing, Note: l.note,
		Tell: l.tell,
	}, l.Limits().Names())
}

// learn asks what the server is, unless it is known to be a single one.
func (l *Limiter) learn() error {
	if l.server.Spreads() {
		return l.look()
	}
	return nil
}

func (l *Limiter) hasShare(name stint.Name) bool {
	return l.opts.away(name) == AwayShare
}

// saw tells the node what the server answered.
func (l *Limiter) saw(t *script.Trip) {
	for _, r := range t.Requests {
		if !l.hasShare(r.Bucket.Name) {
			continue
		}
		a := script.Answer{Now: r.Now, Hold: r.Hold} // with the TAT of a bucket that the node has to know
		switch t.Op {
		case script.Spend, script.Check, script.Part:
			if r.Limited() {
				a.TAT = r.TAT
			}
			if r.Wait == 0 && (t.Op == script.Check || t.Op == script.Spend && (!t.Allowed || r.Mode == stint.CheckOnly)) {
				a.TAT -= r.Need // the reply is what a spend would have left
			}
		case script.Refund:
			if r.Limited() && r.Need > 0 {
				l.node.SawRefund(stint.Request{Key: r.Bucket, Cost: r.Need / r.Interval, Limit: r.Limit, Spent: r.Spent})
			}
			continue
		case script.Reset:
			l.node.SawReset(r.Bucket)
		}
		l.sawBucket(r.Bucket, &a, r.Most)
	}
}

// sawBucket tells the node the TAT and the end of the hold of a bucket, if the limit
// has a share.
func (l *Limiter) sawBucket(key stint.Key, a *script.Answer, most int64) {
	if !l.hasShare(key.Name) {
		return
	}
	if a.TAT > a.Now {
		l.node.SawTAT(key, a.TAT, most)
	}
	l.node.SawHold(key, a.Hold)
}
