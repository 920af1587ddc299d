package rules

import (
	"context"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// A Decision is what a rule decided about a request.
type Decision struct {
	stint.Decision // Key and Limit are those of the bucket that decided

	Label   string    // of the limit of Key
	RuleKey stint.Key // bucket of the rule: not Key, if its total or floor decided
	Cost    int64
	Shadow  bool // of a Shadow rule: it stops no request
	After   bool // of a rule that counts outcomes, and has not spent yet

	InFlight InFlight      // of a rule with InFlight
	Locked   time.Duration // rest of a hold that began after the decision
}

// InFlight has the requests of a Key that run at the time of a decision.
type InFlight struct {
	Limit   int64 // how many may run; 0 means no bound
	Running int64 // with this request, if it has a place
	Denied  bool  // there was no place, so that the rule has not asked the Limiter, unless Shadow is set
	Shadow  bool  // the bound is that of a Shadow rule: it stops no request
}

// A Verdict is what a rule tells a client, as metrics count it.
type Verdict struct {
	Denied   bool
	Shadow   bool // it stops no request: of a Shadow rule, or of the bound of one
	InFlight bool // denied because there was no place in flight
}

// Verdict returns what the client was told.
func (d *Decision) Verdict() Verdict {
	v := Verdict{Shadow: d.Shadow || d.Allowed && d.InFlight.Denied,
		InFlight: d.InFlight.Denied && (d.Allowed || !d.InFlight.Shadow)}
	v.Denied = !d.Allowed || v.InFlight
	return v
}

// Decisions returns the decisions about a request so far, of all doors around it,
// the outermost first. It has those of doors with Options.Decisions, and of doors
// whose rules may change their decisions. It returns nil without such a door.
func Decisions(ctx context.Context) []Decision {
	if p := passOf(ctx); p != nil {
		return p.decisions()
	}
	return nil
}

// decisions returns the decisions of all doors around a pass, and its own.
func (p *Pass[R, O]) decisions() (ds []Decision) {
	if outer := p.around(); outer != nil {
		ds = outer.decisions()
	}
	ds = slices.Grow(ds, len(p.parts))
	for d := range p.Each {
		ds = append(ds, *d)
	}
	return ds
}
