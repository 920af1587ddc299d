package decidertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// call is a call that caseClosedUnder repeats until the Decider is closed.
type call struct {
	do    func(n int) (done bool, err error) // for the n-th time; done: it changed a bucket
	check func(e *env, done, lost int64)
	done  int64
	lost  int64 // how many calls may have changed it or not
	last  error
}

// caseClosedUnder closes a Decider while other goroutines call it. Each call
// returns its usual answer or ErrClosed, unless its answer is lost, and none
// hangs. A Decider with the same buckets then knows everything that the answers
// said. The callers never pause, so a busy machine may answer some of them with
// ErrNotDurable.
func caseClosedUnder(e *env) {
	for range testlength.Of(5, 1) {
		limits := limitsOf(e, usualNames().WithLimits(map[stint.Name]stint.Limit{plain: {Burst: 1e9, Count: 1e9, Period: 24 * time.Hour}}))
		e.openWith(limits, newClock())
		closer := method[interface{ Close() error }](e)
		calls := e.callsUntilClosed(limits)
		var begun, ended sync.WaitGroup
		for _, c := range calls {
			begun.Add(1)
			ended.Go(func() {
				for n := 0; c.last == nil; n++ {
					done, err := c.do(n)
					if n == 0 {
						begun.Done()
					}
					switch {
					case errors.Is(err, stint.ErrNotDurable):
						c.lost++
					case err == nil && done:
						c.done++
					default:
						c.last = err
					}
				}
			})
		}
		begun.Wait()
		require.NoError(e, closer.Close())
		ended.Wait()
		for name, c := range calls {
			if e.unanswered(c.last) {
				c.lost++
			} else {
				require.ErrorIs(e, c.last, stint.ErrClosed, name)
			}
		}
		if e.subject.Forgets {
			continue
		}
		d, err := e.subject.Open(e.T, e.config)
		require.NoError(e, err)
		e.Limiter = d
		for _, c := range calls {
			if c.check != nil {
				c.check(e, c.done, c.lost)
			}
		}
	}
}

// callsUntilClosed returns calls by their names. Each has buckets of its own.
func (e *env) callsUntilClosed(limits *stint.Limits) map[string]*call {
	const before = 1e9 // spent, for Refund
	d, now := e.Limiter, e.clock.now()
	// spent requires that a bucket lacks what was spent, and no more than that, unless
	// an answer was lost, or the tokens are in a lease.
	spent := func(key stint.Key) func(e *env, done, lost int64) {
		return func(e *env, done, lost int64) {
			used := 1e9 - e.left(key)
			require.GreaterOrEqual(e, used, done, "%v", key)
			if e.level != stint.Leased || e.subject.has(LeasedFigures) {
				require.LessOrEqual(e, used, done+lost, "%v", key)
			}
		}
	}
	calls := map[string]*call{
		"Spend": {check: spent(plain.Key("spend")), do: func(int) (bool, error) {
			d, err := d.Spend(plain.Key("spend"), 1)
			return d.Allowed, err
		}},
		"Check": {check: spent(plain.Key("check")), do: func(int) (bool, error) {
			_, err := d.Check(plain.Key("check"), 1)
			return false, err
		}},
		"Do": {check: func(e *env, done, lost int64) {
			spent(plain.Key("a"))(e, done, lost)
			spent(plain.Key("b"))(e, done, lost)
		}, do: func(int) (bool, error) {
			d, err := d.Do(e.Context(), []stint.Request{plain.Key("a").Cost(1), plain.Key("b").Cost(1)}, nil)
			return d.Allowed, err
		}},
		"Refund": {check: func(e *env, done, lost int64) {
			returned := before - (1e9 - e.left(plain.Key("refund")))
			require.LessOrEqual(e, returned, done+lost)
			if e.level != stint.Leased || e.subject.has(LeasedFigures) {
				require.GreaterOrEqual(e, returned, done)
			}
		}, do: func(int) (bool, error) {
			_, err := d.Refund(plain.Key("refund").Cost(1).SpentAt(now))
			return true, err
		}},
		"Bucket": {do: func(int) (bool, error) {
			_, err := d.Bucket(plain.Key("check"))
			return false, err
		}},
		"Wait": {check: spent(plain.Key("wait")), do: func(int) (bool, error) {
			_, err := d.Wait(e.Context(), plain.Key("wait").Cost(1))
			return true, err
		}},
		"Wait, whose context ends": {check: func(e *env, done, lost int64) {
			key := plain.Key("abandoned")
			require.GreaterOrEqual(e, 1e9-e.left(key), done)
			if e.level != stint.Leased || e.subject.has(LeasedFigures) { // another process may be about to return the last one
				require.Eventually(e, func() bool { return 1e9-e.left(key) <= done+lost }, 20*time.Second,
					time.Millisecond, "nothing stays spent")
			}
		}, do: func(int) (bool, error) {
			ctx, cancel := context.WithCancel(e.Context())
			go cancel()
			_, err := d.Wait(ctx, plain.Key("abandoned").Cost(1))
			if errors.Is(err, context.Canceled) {
				return false, nil
			}
			return true, err
		}},
	}
	e.spend(plain.Key("refund"), before)
	if e.subject.has(Holds) {
		calls["Hold"] = &call{do: func(n int) (bool, error) {
			_, err := d.Hold(other.Key("hold"), now.Add(time.Duration(n+1)*time.Minute))
			return true, err
		}, check: func(e *env, done, lost int64) {
			b, err := e.Bucket(other.Key("hold"))
			require.NoError(e, err)
			held := int64(b.HeldUntil.Sub(now).Round(time.Minute) / time.Minute)
			require.GreaterOrEqual(e, held, done)
			require.LessOrEqual(e, held, done+lost)
		}}
	}
	if e.subject.has(Holds) {
		calls["SetHold"] = &call{do: func(int) (bool, error) { return false, d.SetHold(other.Key("released"), time.Time{}) }}
	}
	if m, ok := d.(interface{ Reset(...stint.Key) error }); ok && e.subject.has(Holds) {
		calls["Reset"] = &call{do: func(int) (bool, error) { return false, m.Reset(plain.Key("reset")) }}
	}
	if m, ok := d.(interface{ SetLimits(*stint.Limits) error }); ok {
		calls["SetLimits"] = &call{do: func(int) (bool, error) { return false, m.SetLimits(limits) }}
	}
	if m, ok := d.(interface {
		SetOverrides(...stint.Override) error
	}); ok {
		calls["SetOverrides"] = &call{do: func(n int) (bool, error) {
			return false, m.SetOverrides(stint.Override{Key: plain.Key(fmt.Sprint("vip ", n%2)), Limit: stint.PerMinute(6)})
		}}
	}
	return calls
}

func (e *env) unanswered(err error) bool {
	return e.subject.Unanswered != nil && errors.Is(err, e.subject.Unanswered)
}
