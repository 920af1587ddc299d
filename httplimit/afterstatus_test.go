package httplimit

import (
	"testing"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

func TestAfterStatus(t *testing.T) {
	login := func(ru Rule) []Rule { ru.Key = ByIP(failures); return []Rule{ru} }
	lockOut := func(ru Rule) []Rule { ru.LockOut = time.Hour; return login(ru) }
	succeeded := func(status int) bool { return !AuthFailed(status) }
	locked := `
		401: 401 401 401 401
		200: 200 200 200
		401: 401
		RateLimit: "login";r=0;t=3600
		+59m
		200: 429
		Retry-After: 60
		+61s
		200: 200`
	runScenarios(t, map[string]scenario{
		"counts a status": {rules: login(Rule{Count: AuthFailed}), script: `
			200: 200 200 200 200 200 200
			left login 5
			Observed: login checked
			RateLimit: "login";r=5;t=12
			401: 401
			Observed: login checked, login allowed
			RateLimit: "login";r=4;t=12
			403: 403 403 403 403 429
			200: 429
			+12s
			200: 200 200
			401: 401 429`},
		"locks out, counted":  {rules: lockOut(Rule{Count: AuthFailed}), script: locked},
		"locks out, refunded": {rules: lockOut(Rule{Refund: succeeded}), script: locked},
		"locks out with too little for the cost, counted": {rules: lockOut(Rule{Cost: 2, Count: AuthFailed}), script: `
			401: 401 401 429
			held login 1h0m0s`},
		"enough for a smaller cost": {rules: lockOut(Rule{CostFunc: costing(4)}), script: `
			401: 401 429
			held login 0s`},
		"costs nothing": {rules: lockOut(Rule{CostFunc: costing(0)}), script: `
			401: 401
			spend login 5
			401: 401
			left login 0
			held login 0s`},
		"refunded, with a queue since": {
			limits: map[stint.Name]stint.Limit{failures: {Burst: 5, Count: 5, Period: time.Minute, Queue: 10}},
			rules:  lockOut(Rule{Refund: rules.OneOf(200)}), script: `
			200: 200
			held login 0s`,
			inside: func(lim limiter, _ *testClock) {
				for range 2 {
					queues, ok := lim.(*stint.Limiter)
					if !ok {
						return
					}
					if _, err := queues.Reserve(ofClient["login"].Cost(4)); err != nil {
						panic(err)
					}
				}
			}},
		"others refunded since": {rules: lockOut(Rule{Refund: succeeded}), script: `
			spend login 4
			401: 401
			left login 4
			held login 0s`,
			inside: func(lim limiter, _ *testClock) {
				if _, err := lim.Refund(ofClient["login"].Cost(4).SpentAt(lim.Now())); err != nil {
					panic(err)
				}
			}},
		"another refunded since": {rules: lockOut(Rule{Refund: succeeded}), script: `
			spend login 4
			401: 401
			left login 1
			held login 0s`,
			inside: func(lim limiter, _ *testClock) {
				if _, err := lim.Refund(ofClient["login"].Cost(1).SpentAt(lim.Now())); err != nil {
					panic(err)
				}
			}},
		"refunded, held since": {rules: login(Rule{Refund: rules.OneOf(200)}), script: `
			200: 200
			RateLimit: "login";r=0;t=3600
			left login 5`,
			inside: func(lim limiter, clock *testClock) { lim.Hold(ofClient["login"], clock.now().Add(time.Hour)) }},
		"slow handler": {rules: lockOut(Rule{Cost: 5, Refund: rules.OneOf(200)}), script: `
			401: 401
			held login 1h0m0s`,
			inside: func(_ limiter, clock *testClock) { clock.pass(2 * time.Minute) }}, // all tokens come back
		"longer hold stays": {rules: lockOut(Rule{Cost: 5, Refund: rules.OneOf(200)}), script: `
			401: 401
			RateLimit: "login";r=0;t=86400
			held login 24h0m0s`,
			inside: func(lim limiter, clock *testClock) {
				if _, err := lim.Hold(ofClient["login"], clock.now().Add(24*time.Hour)); err != nil {
					panic(err)
				}
			}},
	})
}
