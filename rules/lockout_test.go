package rules

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// jail counts as fail2ban does: an address that fails maxRetry times within
// findTime is banned for banTime, and begins anew after that.
type jail struct {
	maxRetry          int
	findTime, banTime time.Duration

	failures []time.Time
	until    time.Time // end of the ban
}

// fail notes a failure, or a ban of another jail, and reports whether it bans.
func (j *jail) fail(at time.Time) bool {
	j.failures = append(j.failures, at)
	for at.Sub(j.failures[0]) >= j.findTime {
		j.failures = j.failures[1:]
	}
	if len(j.failures) < j.maxRetry {
		return false
	}
	j.failures, j.until = nil, at.Add(j.banTime)
	return true
}

// guess is a wrong password that reached the check, and the lock-outs after it.
type guess struct {
	at       time.Duration
	lockOuts time.Duration // the rest of the longest one
}

// Two rules do what two jails of fail2ban do: five failures in ten minutes lock
// out for five minutes, and twenty in a day for a day. fail2ban counts in a
// sliding window, and a bucket refills, so an attacker gets at most twice as many
// guesses, and a burst more.
func TestLockOutBesideFail2ban(t *testing.T) {
	const days = 4
	rng := rand.New(rand.NewPCG(61, 2))
	attackers := map[string]func() time.Duration{"random": func() time.Duration { return time.Duration(rng.ExpFloat64() * float64(20*time.Minute)) }}
	for _, gap := range []time.Duration{time.Second, 10 * time.Second, 50 * time.Second, 2 * time.Minute, 3 * time.Minute, 10 * time.Minute,
		time.Hour, 72 * time.Minute, 76 * time.Minute, 2 * time.Hour} {
		attackers[gap.String()] = func() time.Duration { return gap }
	}
	for name, gap := range attackers {
		t.Run(name, func(t *testing.T) {
			var tries []time.Duration
			for at := time.Duration(0); at < days*24*time.Hour; at += gap() {
				tries = append(tries, at)
			}
			ours, theirs := guesses(t, tries), guessesInJails(tries)
			require.LessOrEqual(t, len(ours), 2*len(theirs)+20)
			if tries[4] < 2*time.Minute && name != "random" { // before a token is back
				require.Equal(t, theirs[:5], ours[:5], "the same five guesses")
				require.Equal(t, 5*time.Minute, ours[4].lockOuts)
				require.Equal(t, 24*time.Hour, ours[19].lockOuts, "the twentieth locks out for a day, as there")
				require.Equal(t, 24*time.Hour, theirs[19].lockOuts)
				require.InDelta(t, len(theirs), len(ours), days)
			}
			if gap := tries[1]; gap >= 76*time.Minute { // 19 a day
				require.Len(t, ours, len(tries), "neither locks out")
				require.Len(t, theirs, len(tries))
			}
		})
	}
}

// guesses returns the wrong passwords that two rules let through.
func guesses(t *testing.T, tries []time.Duration) (all []guess) {
	clock := modeltest.NewClock()
	clock.Set(noon.UnixNano())
	lim := newLimiterAt(t, clock.Now, stint.Names{
		ofA: {Label: "a", Limit: stint.Limit{Burst: 5, Count: 5, Period: 10 * time.Minute}},
		ofB: {Label: "b", Limit: stint.PerDay(20)},
	})
	d := New(lim, nil, rule(ofA, ruleOf{Cost: 1, Count: isFailed, LockOut: 5 * time.Minute}),
		rule(ofB, ruleOf{Cost: 1, Count: isFailed, LockOut: 24 * time.Hour}))
	for _, at := range tries {
		clock.Set(noon.Add(at).UnixNano())
		p, decision := pass(t, d, req{ctx: t.Context()})
		if decision.Allowed {
			end(p, failed)
			var locked time.Duration
			for d := range p.Each {
				locked = max(locked, d.Locked)
			}
			all = append(all, guess{at, locked})
			continue
		}
		p.Leave()
	}
	return all
}

// guessesInJails returns those that fail2ban would let through.
func guessesInJails(tries []time.Duration) (all []guess) {
	jails := []*jail{
		{maxRetry: 5, findTime: 10 * time.Minute, banTime: 5 * time.Minute},
		{maxRetry: 20, findTime: 24 * time.Hour, banTime: 24 * time.Hour},
	}
	for _, at := range tries {
		now, until := noon.Add(at), time.Time{}
		for _, j := range jails {
			if j.until.After(until) {
				until = j.until
			}
		}
		if until.After(now) {
			continue
		}
		g := guess{at: at}
		for _, j := range jails {
			if j.fail(now) {
				g.lockOuts = j.banTime
			}
		}
		all = append(all, g)
	}
	return all
}

// A longer hold of an operator stays, also if it comes just before the lock-out.
func TestLockOutBesideALongerHold(t *testing.T) {
	lim := newLimiterAt(t, func() time.Time { return noon })
	operators := noon.Add(48 * time.Hour)
	p := begin(t, lim, 5, ruleOf{LockOut: time.Hour})
	_, err := lim.Hold(ofA.Key("x"), operators)
	require.NoError(t, err)
	end(p, 0)
	b, err := lim.Bucket(ofA.Key("x"))
	require.NoError(t, err)
	require.True(t, operators.Equal(b.HeldUntil), fmt.Sprint(b.HeldUntil))
	for d := range p.Each {
		require.Equal(t, 48*time.Hour, d.Locked)
	}
}
