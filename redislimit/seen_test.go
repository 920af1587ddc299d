package redislimit

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// hooked is a Client that calls a function before and after each call of a script,
// with the operation of its first request, or "" for leases.
type hooked struct {
	*rueidisClient
	before, after func(op script.Op)
}

func (h *hooked) Eval(ctx context.Context, command, text string, keys, args []string) (any, error) {
	op := script.Op("")
	switch text {
	case script.Decisions.SHA:
		op = script.Op(args[2][:1])
	case script.Leasing.SHA:
	default:
		return h.rueidisClient.Eval(ctx, command, text, keys, args)
	}
	h.before(op)
	reply, err := h.rueidisClient.Eval(ctx, command, text, keys, args)
	h.after(op)
	return reply, err
}

// hookedLimiter returns a Limiter with a clock that stands still, so that a denial is
// repeated until it is forgotten. Its client may be changed.
func hookedLimiter(t *testing.T, limit stint.Limit) (*Limiter, *hooked, *testClock) {
	s, prefix := commonServer(t)
	nothing, clock := func(script.Op) {}, newTestClock()
	h := &hooked{clientAt(t, s.url, 20*time.Second), nothing, nothing}
	return newOn(t, h, testLimits(t, limit), Options{Prefix: prefix, Now: clock.now}), h, clock
}

// A denial that was under way when tokens came back is not repeated after that.
func TestDenialDuringRefund(t *testing.T) {
	t.Parallel()
	key := perID.Key("a")
	for name, refund := range map[string]func(*Limiter) error{
		"Refund": func(l *Limiter) error {
			_, err := l.Refund(key.Cost(5).SpentAt(inFuture))
			return err
		},
		"Refund of two": func(l *Limiter) error {
			_, err := l.Refund(stint.Request{Key: key, Cost: 5, Spent: inFuture}, stint.Request{Key: everyone.Key(""), Cost: 5, Spent: inFuture})
			return err
		},
		"Reset": func(l *Limiter) error { return l.Reset(key) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, h, _ := hookedLimiter(t, stint.PerHour(20))
			l.spend(t, key, 19)
			decided, refunded, done := make(chan bool), make(chan bool), make(chan bool)
			h.after = func(op script.Op) {
				if op == script.Spend {
					close(decided)
					<-refunded
				} else {
					close(refunded)
					<-done
				}
			}
			go func() {
				defer close(done)
				if d, err := l.Spend(key, 2); err != nil || d.Allowed {
					t.Error(d, err)
				}
			}()
			<-decided
			require.NoError(t, refund(l))
			h.after = h.before
			require.True(t, l.spend(t, key, 2).Allowed)
		})
	}
}

// A denial from before a spend was undone is not repeated after that.
func TestDenialBeforeUndo(t *testing.T) {
	t.Parallel()
	l, h, _ := hookedLimiter(t, stint.PerHour(20))
	key := perID.Key("a")
	l.spend(t, key, 19)
	denied := make(chan bool)
	h.before = func(op script.Op) {
		if op == script.Undo {
			<-denied
		}
	}
	reqs := []stint.Request{{Key: key, Cost: 1}} // two trips, and the second one denies
	for i := range script.MaxTogether - 1 {
		reqs = append(reqs, stint.Request{Key: perID.Key(strconv.Itoa(i)), Cost: 1})
	}
	l.spend(t, other.Key("empty"), 7)
	require.False(t, l.spendAll(t, append(reqs, stint.Request{Key: other.Key("empty"), Cost: 1})...).Allowed)
	require.False(t, l.spend(t, key, 1).Allowed)
	close(denied)
	eventually(t, "the token is back", func() bool {
		d, err := l.Spend(key, 1)
		return err == nil && d.Allowed
	})
}

// A denial that was under way when limits changed is not repeated after that.
func TestDenialDuringSetLimits(t *testing.T) {
	t.Parallel()
	key := perID.Key("a")
	for name, limit := range map[string]stint.Limit{"flushed": stint.PerDay(20), "leased": leasedLimit(stint.PerDay(20))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, h, clock := hookedLimiter(t, limit)
			for _, cost := range []int64{10, 5, 5} { // the third one is by a lease
				require.True(t, l.spend(t, key, cost).Allowed)
			}
			l.settled(t)
			l.leases.Forget(key)
			h.after = func(op script.Op) {
				if (op == "") != (name == "leased") {
					t.Errorf("operation %q", op)
				}
				clock.pass(time.Microsecond)
				if err := l.SetLimits(testLimits(t, stint.PerSecond(20))); err != nil {
					t.Error(err)
				}
			}
			require.False(t, l.spend(t, key, 1).Allowed)
			h.after = h.before
			require.LessOrEqual(t, l.spend(t, key, 1).RetryAfter, time.Second, "that of the limits in force")
		})
	}
}
