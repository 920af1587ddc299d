package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// throttle is one command CL.THROTTLE or GCRA.
type throttle struct {
	request stint.Request
	never   bool // it asks for more than a full bucket has, so the request only looks
	gcra    bool // the reply is that of GCRA
}

// left returns the tokens that are left, as redis-cell computes them: in whole
// microseconds, so that it may count a token that comes back within a thousandth
// of its time. If a token takes less than a millisecond, that would be far off,
// and the count is exact.
func (t *throttle) left(d *stint.Decision) int64 {
	interval := t.request.Limit.Period
	if interval < time.Millisecond {
		return d.Remaining
	}
	return int64(max(0, (t.request.Limit.Tolerance()-d.ResetAfter)/time.Microsecond) / (interval / time.Microsecond))
}

// The errors of redis-cell, as its module sends them: without ERR, and those of
// its own checks with "Store error". Errors that only stint has lack the latter.
const (
	throttleError = "Cell error: "
	cellError     = "Store error: "
	throttleUsage = cellError + "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"
)

// longestPeriod is the most seconds that a time.Duration has.
const longestPeriod = math.MaxInt64 / int64(time.Second)

// parseThrottle reads a CL.THROTTLE. wrong is the error if it is malformed, in
// redis-cell's words if it has them.
func (c *serveConn) parseThrottle(command [][]byte) (t throttle, wrong string) {
	if len(command) != 5 && len(command) != 6 {
		return t, throttleError + throttleUsage
	}
	numbers := [4]int64{3: 1}
	for i, arg := range command[2:] {
		n, err := strconv.ParseInt(string(arg), 10, 64)
		if err != nil {
			return t, fmt.Sprintf(throttleError+cellError+"Couldn't parse as integer: %s", arg)
		}
		numbers[i] = n
	}
	burst, count, period, quantity := numbers[0], numbers[1], numbers[2], numbers[3]
	key := command[1]
	switch {
	case wrongKey(key) != "":
		return t, throttleError + wrongKey(key)
	case burst < 0:
		return t, throttleError + "max_burst must be 0 or more"
	case burst == math.MaxInt64:
		return t, throttleError + "max_burst must be less than 9223372036854775807"
	case count < 0 || period < 0:
		return t, throttleError + "count and period must not be negative"
	case quantity < 0:
		return t, throttleError + "quantity must not be negative"
	case period > longestPeriod:
		return t, fmt.Sprintf(throttleError+"period is %d, want at most %d seconds", period, longestPeriod)
	}
	// As redis-cell computes it: the time of a token is a float's, cut to a
	// nanosecond.
	var interval int64
	if count > 0 {
		interval = int64(float64(period*int64(time.Second)) / float64(count))
	}
	if interval == 0 {
		return t, throttleError + cellError + "Zero rates are not supported"
	}
	return c.throttleOf(key, burst, time.Duration(interval), quantity, false), ""
}

// parseGCRA reads a GCRA key max_burst tokens_per_period period [TOKENS n], as
// Redis does: the time of a token is rounded to a microsecond, and is at least one.
// wrong is the error if it is malformed, in Redis's words.
func (c *serveConn) parseGCRA(command [][]byte) (t throttle, wrong string) {
	if len(command) < 5 || len(command) > 7 {
		return t, "ERR wrong number of arguments for 'gcra' command"
	}
	burst, burstErr := strconv.ParseInt(string(command[2]), 10, 64)
	count, countErr := strconv.ParseInt(string(command[3]), 10, 64)
	period, err := strconv.ParseFloat(string(command[4]), 64)
	tokens, tokensErr := int64(1), error(nil)
	if len(command) == 7 {
		tokens, tokensErr = strconv.ParseInt(string(command[6]), 10, 64)
	}
	switch {
	case wrongKey(command[1]) != "":
		return t, "ERR " + wrongKey(command[1])
	case burstErr != nil || countErr != nil || tokensErr != nil:
		return t, "ERR value is not an integer or out of range"
	case burst < 0 || burst == math.MaxInt64:
		return t, "ERR value is out of range, must be positive"
	case count < 1:
		return t, "ERR value is out of range, value must between 1 and 9223372036854775807"
	case err != nil || math.IsNaN(period):
		return t, "ERR value is not a valid float"
	case period <= 0 || period >= 1e12:
		return t, "ERR period must be > 0 and < 1e12"
	case len(command) > 5 && !strings.EqualFold(string(command[5]), "tokens"):
		return t, "ERR syntax error"
	case len(command) == 6:
		return t, "ERR Missing TOKENS value"
	case tokens < 0:
		return t, "ERR value is out of range, value must between 0 and 9223372036854775807"
	}
	micros := math.Max(1, math.Floor(period*1e6/float64(count)+0.5))
	if micros > float64(math.MaxInt64/int64(time.Microsecond)) {
		return t, "ERR a token takes more than 292 years: use a shorter period"
	}
	return c.throttleOf(command[1], burst, time.Duration(micros)*time.Microsecond, tokens, true), ""
}

// wrongKey says what is wrong with a key; it returns "" if nothing is.
func wrongKey(key []byte) string {
	if len(key) == 0 || len(key) > 512 {
		return fmt.Sprintf("the key has %d bytes: want 1 to 512", len(key))
	}
	return ""
}

// throttleOf returns a command whose arguments have been read.
func (c *serveConn) throttleOf(key []byte, burst int64, interval time.Duration, tokens int64, gcra bool) throttle {
	limit := stint.Limit{Burst: burst + 1, Count: 1, Period: interval, Durability: c.server.durability}
	t := throttle{gcra: gcra, never: tokens > limit.Burst}
	if t.never {
		tokens = 0
	}
	t.request = stint.Request{Key: c.server.throttle.Key(string(key)), Cost: tokens, Limit: limit}
	return t
}

// error returns the reply of a command that failed.
func (t *throttle) error(err error) string {
	if t.gcra {
		return "ERR " + reason(err)
	}
	return throttleError + reason(err)
}

// collect appends a command to those that are decided next, or replies what is
// wrong with it.
func (c *serveConn) collect(t throttle, wrong string) {
	if wrong != "" {
		c.decide()
		c.out.Error(wrong)
		return
	}
	if len(c.throttles) == mostTogether {
		c.decide()
	}
	c.throttles = append(c.throttles, t)
}

// decide decides the commands that collect has kept, each for itself, waits for
// their commits together, and replies in their order.
func (c *serveConn) decide() {
	if len(c.throttles) == 0 {
		return
	}
	c.requests = c.requests[:0]
	for _, t := range c.throttles {
		c.requests = append(c.requests, t.request)
	}
	c.decisions = append(c.decisions[:0], make([]stint.Decision, len(c.requests))...)
	var each stint.EachError
	errors.As(c.server.limiter.DoEach(context.Background(), c.requests, c.decisions), &each)
	for i, t := range c.throttles {
		if each == nil || each[i] == nil {
			c.answer(&t, &c.decisions[i])
		} else {
			c.out.Error(t.error(each[i]))
		}
	}
	c.throttles = c.throttles[:0]
}

func (c *serveConn) answer(t *throttle, d *stint.Decision) {
	// As in redis-cell, a look at a bucket that lacks more than it can hold, because
	// the burst became smaller, is denied.
	if over := d.ResetAfter - t.request.Limit.Tolerance(); t.request.Cost == 0 && d.Allowed && over > 0 {
		d.Allowed, d.RetryAfter = false, over
	}
	if t.never {
		d.Allowed, d.RetryAfter = false, -time.Second
	}
	c.out.Array(5)
	if !t.gcra {
		c.five(t.request.Limit.Burst, t.left(d), d)
		return
	}
	limited, retry := int64(1), d.RetryAfter.Seconds()
	if d.Allowed {
		limited, retry = 0, -1
	}
	c.out.Int(limited)
	c.out.Int(t.request.Limit.Burst)
	c.out.Int(d.Remaining)
	c.out.Double(retry)
	c.out.Double(d.ResetAfter.Seconds())
}

// five writes the integers of a decision.
func (c *serveConn) five(burst, left int64, d *stint.Decision) {
	limited, retry := int64(1), seconds(d.RetryAfter)
	if d.Allowed {
		limited, retry = 0, -1
	}
	c.out.Int(limited)
	c.out.Int(burst)
	c.out.Int(left)
	c.out.Int(retry)
	c.out.Int(seconds(d.ResetAfter))
}

// seconds rounds up, so that a client does not retry too early. A negative
// duration is -1, and so is that of stint.Blocked, which never ends.
func seconds(d time.Duration) int64 {
	if d < 0 || d == math.MaxInt64 {
		return -1
	}
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}
