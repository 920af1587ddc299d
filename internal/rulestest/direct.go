package rulestest

import (
	"context"
	"testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// request is a Request on its way through doors of package rules.
type request struct {
	Request
	ctx context.Context
}

func (r request) Context() context.Context { return r.ctx }

// Direct is the Door of package rules, without a protocol.
func Direct(_ testing.TB, lim stint.Decider, layers ...[]Rule) func(Request) bool {
	var doors []*rules.Door[request, Outcome]
	for _, layer := range layers {
		byID := func(name stint.Name) rules.KeyFunc[request] {
			return func(r request) (stint.Key, error) {
				if r.ID == "" {
					return stint.Key{}, rules.ErrNoID
				}
				return name.Key(r.ID), nil
			}
		}
		shared := func(name stint.Name) rules.KeyFunc[request] {
			return func(request) (stint.Key, error) { return name.Key(""), nil }
		}
		doors = append(doors, rules.New(lim, nil,
			RulesOf(lim, layer, byID, shared, rules.OneOf(Failed), rules.OneOf(Broken))...))
	}
	return func(req Request) (reached bool) {
		var pass func(ctx context.Context, layer int)
		pass = func(ctx context.Context, layer int) {
			if layer == len(doors) {
				req.Handle(ctx, layers[layer-1])
				reached = true
				return
			}
			p, d, err := doors[layer].Begin(request{req, ctx})
			defer p.Leave()
			switch {
			case err != nil || !d.Allowed:
				return
			case p != nil && p.InContext():
				ctx = p.Context()
			}
			pass(ctx, layer+1)
			p.End(req.Outcome)
		}
		pass(context.Background(), 0)
		return reached
	}
}
