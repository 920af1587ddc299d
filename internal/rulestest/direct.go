package rulestest

import (
	"context"
	"testing"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Direct is the Door of package rules, without a protocol.
func Direct(_ testing.TB, lim stint.Decider, layers ...[]Rule) func(Request) bool {
	var doors []*rules.Door
	for _, layer := range layers {
		var all []rules.Rule
		for _, ru := range layer {
			as := rules.Rule{Optional: ru.Optional, LockOut: ru.LockOut, LockOutMax: ru.Longest, Shadow: ru.Shadow,
				Settle: ru.Settle, InFlight: ru.InFlight}
			if ru.Count {
				as.Count = func(outcome int) bool { return outcome == 401 }
			}
			if ru.Refund {
				as.Refund = func(outcome int) bool { return outcome >= 500 }
			}
			all = append(all, as)
		}
		doors = append(doors, rules.New(lim, all...))
	}
	return func(req Request) (reached bool) {
		codes := map[Outcome]int{Failed: 401, Broken: 500}
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
			var asks []rules.Ask
			for i, ru := range layers[layer] {
				ask := rules.Ask{Rule: i, Key: ru.Name.Key(req.ID), Cost: max(ru.Cost, 1)}
				if spec, _ := lim.Limits().Spec(ru.Name); spec.ID == stint.Shared {
					ask.Key = ru.Name.Key("")
				} else if req.ID == "" {
					ask.Err = rules.ErrNoID
				}
				asks = append(asks, ask)
			}
			p, d, err := doors[layer].Begin(ctx, nil, asks...)
			if err != nil {
				return
			}
			defer p.Leave()
			if !d.Allowed {
				return
			}
			pass(p, layer+1)
			p.End(codes[req.Outcome], func(error) {})
		}
		pass(context.Background(), 0)
		return reached
	}
}
