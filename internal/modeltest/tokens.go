package modeltest

import "math/big"

// Tokens is a token bucket as a textbook explains it: a number of tokens that
// grows with time, never over burst. It has exact rationals, no TAT, and
// nothing to overflow.
type Tokens struct {
	burst    *big.Rat
	interval *big.Rat // nanoseconds a token takes to come back
	level    *big.Rat // tokens at `since`; below 0 while turns wait
	since    *big.Int
}

// NewTokens returns a full bucket.
func NewTokens(burst, count, period int64) *Tokens {
	interval := new(big.Int).Add(big.NewInt(period), big.NewInt(count-1))
	interval.Div(interval, big.NewInt(count)) // rounded up: against the caller
	b := new(big.Rat).SetInt64(burst)
	return &Tokens{b, new(big.Rat).SetInt(interval), b, new(big.Int)}
}

// clock returns now within the range of the limiter's arithmetic.
func (m *Tokens) clock(now int64) *big.Int {
	end := new(big.Int).Lsh(big.NewInt(1), 63)
	end.Sub(end, big.NewInt(1+36525*24*60*60*1_000_000_000))
	n := big.NewInt(now)
	switch {
	case now < 0:
		return new(big.Int)
	case n.Cmp(end) > 0:
		return end
	}
	return n
}

// tokens returns the content of the bucket. For a time before the last change,
// it returns less than at that change.
func (m *Tokens) tokens(now int64) *big.Rat {
	passed := new(big.Int).Sub(m.clock(now), m.since)
	n := new(big.Rat).SetInt(passed)
	n.Quo(n, m.interval).Add(n, m.level)
	if n.Cmp(m.burst) > 0 {
		return m.burst
	}
	return n
}

func (m *Tokens) set(now int64, level *big.Rat) { m.level, m.since = level, m.clock(now) }

// wait returns the nanoseconds in which n tokens return.
func (m *Tokens) wait(n *big.Rat) *big.Int {
	if n.Sign() <= 0 {
		return new(big.Int)
	}
	// an integer, because tokens and time change by integers
	return new(big.Rat).Mul(n, m.interval).Num()
}

// Spend takes cost tokens if the bucket has them, and as many as it must leave.
// Otherwise it returns the nanoseconds until it has them.
func (m *Tokens) Spend(now, cost, leave int64) (retryAfter int64) {
	if cost == 0 && leave == 0 {
		return 0 // even if the bucket has less than none
	}
	left := new(big.Rat).Sub(m.tokens(now), new(big.Rat).SetInt64(cost))
	lacks := new(big.Rat).Sub(new(big.Rat).SetInt64(leave), left)
	if lacks.Sign() > 0 {
		return m.wait(lacks).Int64()
	}
	m.set(now, left)
	return 0
}

// Reserve takes cost tokens, even if the bucket does not have them. It returns
// the nanoseconds until it has them. If the bucket would be full only after the
// last nanosecond of an int64, ok is false and nothing is taken.
func (m *Tokens) Reserve(now, cost int64) (delay int64, ok bool) {
	left := new(big.Rat).Sub(m.tokens(now), new(big.Rat).SetInt64(cost))
	full := new(big.Int).Add(m.clock(now), m.wait(new(big.Rat).Sub(m.burst, left)))
	delay = m.wait(new(big.Rat).Neg(left)).Int64()
	if !full.IsInt64() {
		return delay, false
	}
	m.set(now, left)
	return delay, true
}

// Refund gives cost tokens back, as many as fit.
func (m *Tokens) Refund(now, cost int64) {
	have := m.tokens(now)
	if have.Cmp(m.burst) == 0 {
		return
	}
	level := new(big.Rat).Add(have, new(big.Rat).SetInt64(cost))
	if level.Cmp(m.burst) > 0 {
		level = m.burst
	}
	m.set(now, level)
}

// Clamp sets a negative level to 0.
func (m *Tokens) Clamp(now int64) {
	if m.tokens(now).Sign() < 0 {
		m.set(now, new(big.Rat))
	}
}

// Remaining returns the whole tokens in the bucket.
func (m *Tokens) Remaining(now int64) int64 {
	n := m.tokens(now)
	if n.Sign() < 0 {
		return 0
	}
	return new(big.Int).Div(n.Num(), n.Denom()).Int64()
}

// ResetAfter returns the nanoseconds until the bucket is full.
func (m *Tokens) ResetAfter(now int64) int64 {
	return m.wait(new(big.Rat).Sub(m.burst, m.tokens(now))).Int64()
}
