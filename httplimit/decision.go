package httplimit

import (
	"math/bits"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// shown is a decision in the fields of a response.
type shown struct {
	*rules.Decision
	lim stint.Decider
}

func (m *middleware) shown(d *rules.Decision) shown { return shown{d, m.lim} }

// tells reports whether the fields show the decision.
func (a shown) tells() bool { return !a.Shadow && (a.Limit.Count > 0 || a.concurrent()) }

// stricterThan reports whether the response fields show a rather than b.
func (a shown) stricterThan(b shown) bool {
	if a.RetryAfter != b.RetryAfter { // only a denial has one
		return a.RetryAfter > b.RetryAfter
	}
	left, _ := a.state(nil)
	least, _ := b.state(nil)
	return left < least
}

// state returns the number of tokens that the client has left, and a window in
// seconds, in which it can use no more than these. The window ends when the
// next token returns, after at least 1 s. During a hold nothing is left, and
// the window ends with the hold, or with the first token after it. For a full
// bucket the window is the time in which a spent token returns. For a quota that
// follows the calendar the window ends with its period. fixed is the policy of the
// decision, or nil.
func (a shown) state(fixed *policy) (left, window int64) {
	switch {
	case fixed != nil:
		left, window = a.rolling(fixed.interval)
	case a.concurrent():
		return max(0, a.InFlight.Limit-a.InFlight.Running), 1
	default:
		left, window = a.tokens()
	}
	if locked := seconds(a.Locked); locked > 0 {
		if left > 0 || locked > window {
			window = locked
		}
		left = 0
	}
	return left, window
}

// tokens is state for the tokens of a bucket, without a hold that began after the
// decision.
func (a shown) tokens() (left, window int64) {
	if a.Limit.FollowsCalendar() {
		if !a.Allowed && a.RetryAfter != a.ResetAfter { // in a hold
			return 0, seconds(a.RetryAfter)
		}
		reset := a.ResetAfter
		if reset == 0 { // the quota is full
			_, end := a.period()
			reset = end.Sub(a.now())
		}
		return a.Remaining, max(1, seconds(reset))
	}
	return a.rolling(a.Limit.Interval())
}

// rolling is tokens for a limit that does not follow the calendar.
func (a shown) rolling(interval time.Duration) (left, window int64) {
	kept, gone := int64(0), a.Limit.Burst-a.Remaining // kept by a total, for its floors
	if a.ResetAfter <= time.Duration(gone-1)*interval {
		kept = gone - int64((a.ResetAfter+interval-1)/interval)
	}
	empty := a.ResetAfter - time.Duration(a.Limit.Burst-kept)*interval // until the first token, less one interval
	if held := a.RetryAfter > empty+time.Duration(a.Cost)*interval; held && !a.Allowed {
		return 0, seconds(a.RetryAfter)
	}
	return a.Remaining, max(1, seconds(empty+time.Duration(a.Remaining+1)*interval))
}

// concurrent reports whether the response fields show the bound on requests in
// flight instead of the tokens: if it denied, or if there is no other limit.
func (a shown) concurrent() bool {
	if a.InFlight.Limit == 0 || a.InFlight.Shadow {
		return false
	}
	return a.InFlight.Denied && !a.Allowed || a.Limit.Count == 0 && a.Limit != stint.Blocked
}

func (a shown) quota() int64 {
	if a.concurrent() {
		return max(0, a.InFlight.Limit)
	}
	return a.Limit.Burst
}

// window returns the time in which an empty bucket refills by the limit as it was
// configured, without the rounding of its Interval, or the length of the period for a
// quota that follows the calendar.
func (a shown) window() time.Duration {
	if a.Limit.FollowsCalendar() {
		start, end := a.period()
		return end.Sub(start)
	}
	l := a.Limit
	high, low := bits.Mul64(uint64(l.Burst), uint64(l.Period)) // Burst × Period ÷ Count is at most the Tolerance
	window, rest := bits.Div64(high, low, uint64(l.Count))
	return time.Duration(window + min(rest, 1))
}

// period returns the period of the calendar that the decision was made in. The
// clock of the decision may differ a little from now.
func (a shown) period() (start, end time.Time) {
	now := a.now()
	start, end = a.Limit.PeriodAt(now)
	if a.ResetAfter > 0 && end.Sub(now)-a.ResetAfter > end.Sub(start)/2 { // it has ended since
		start, end = a.Limit.PeriodAt(start.Add(-1))
	}
	return start, end
}

// now returns the time by the clock of the decision. A Decider that is not a
// Limiter may have to ask for it, so for that it is the time of this machine.
func (a shown) now() time.Time {
	if lim, ok := a.lim.(*stint.Limiter); ok {
		return lim.Now()
	}
	return time.Now()
}

// seconds returns d in seconds, rounded up, and at least 0.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
