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
		var all []rules.Rule[request, Outcome]
		for _, ru := range layer {
			key := func(r request) (stint.Key, error) {
				if r.ID == "" {
					return stint.Key{}, rules.ErrNoID
				}
				return ru.Name.Key(r.ID), nil
			}
			if spec, _ := lim.Limits().Spec(ru.Name); spec.ID == stint.Shared {
				key = func(request) (stint.Key, error) { return ru.Name.Key(""), nil }
			}
			as := rules.Rule[request, Outcome]{Key: key, Cost: ru.Cost, Optional: ru.Optional, LockOut: ru.LockOut,
				LockOutMax: ru.Longest, Shadow: ru.Shadow, Settle: ru.Settle, InFlight: ru.InFlight}
			if ru.Count {
				as.Count = rules.OneOf(Failed)
			}
			if ru.Refund {
				as.Refund = rules.OneOf(Broken)
			}
			all = append(all, as)
		}
		doors = append(doors, rules.New(lim, nil, all...))
	}
	return func(req Request) (reached bool) {
		var pass func(ctx context.Context, layer int)
		pass = func(ctx context.Context, layer int) {
			if layer == len(doors) {
				req.run(func(cost int64) {
					for _, ru := range layers[layer-1] {
						rules.Settle(ctx, ru.Name, cost)
					}
				})
				reached = true
				return
			}
			p, d, err := doors[layer].Begin(request{req, ctx})
			defer p.Leave()
			switch {
			case err != nil || !d.Allowed:
				return
			case p != nil:
				ctx = p
			}
			pass(ctx, layer+1)
			p.End(req.Outcome)
		}
		pass(context.Background(), 0)
		return reached
	}
}
