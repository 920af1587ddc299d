package share

import (
	"iter"
	"math"
	"math/big"
	"strconv"
)

// Sum is what floors promise together. The zero Sum has no floors. A copy is
// independent, because a Sum never changes the numbers that it points to.
type Sum struct {
	burst *big.Int   // may be more than an int64
	most  int64      // burst, or math.MaxInt64 if that is less
	rate  *big.Float // tokens per nanosecond, about
}

// A rate has 256 bits and is below 2⁶⁴, so each rounding is off by less than
// 2⁻¹⁹¹, and all that there can be by less than margin.
const precision = 256

var margin = new(big.Float).SetMantExp(big.NewFloat(1), -120)

// quotient returns n÷d.
func quotient(n, d int64) *big.Float {
	x := new(big.Float).SetPrec(precision).SetInt64(n)
	return x.Quo(x, new(big.Float).SetInt64(d))
}

// Add adds n floors with a burst, which regain a token in each interval. If n is
// negative, it takes them out again.
func (s *Sum) Add(n, burst, interval int64) {
	if s.burst == nil {
		s.burst, s.rate = new(big.Int), new(big.Float).SetPrec(precision)
	}
	bursts := new(big.Int).Mul(big.NewInt(n), big.NewInt(burst))
	s.burst = bursts.Add(bursts, s.burst)
	if s.most = math.MaxInt64; s.burst.IsInt64() {
		s.most = s.burst.Int64()
	}
	s.rate = new(big.Float).Add(s.rate, quotient(n, interval))
}

// Burst returns the tokens that all floors hold when they are full, or
// math.MaxInt64 if they are more.
func (s *Sum) Burst() int64 { return s.most }

// FitsBurst reports whether a full total holds more than full floors do.
func (s *Sum) FitsBurst(total int64) bool { return s.most < total }

// FitsRate reports whether a total that regains a token in each interval
// regains no fewer than the floors do together. It is exact: if the rounded sum
// is too close to decide, it adds up the rates of all floors as fractions. It
// does not always do so, because the sum of a thousand different fractions has
// a denominator of thousands of digits, and an override is checked in
// microseconds.
func (s *Sum) FitsRate(interval int64, all iter.Seq[int64]) bool {
	if s.rate == nil {
		return true
	}
	left := quotient(1, interval)
	left.Sub(left, s.rate)
	if new(big.Float).Abs(left).Cmp(margin) > 0 {
		return left.Sign() > 0
	}
	return exactRate(all).Cmp(big.NewRat(1, interval)) <= 0
}

// exactRate returns the sum of the inverses of intervals.
func exactRate(all iter.Seq[int64]) *big.Rat {
	count := make(map[int64]int64)
	for interval := range all {
		count[interval]++
	}
	sum := new(big.Rat)
	for interval, n := range count {
		sum.Add(sum, big.NewRat(n, interval))
	}
	return sum
}

// Promised returns the tokens that floors promise in the period of their total,
// and whether these are more than its count. The rates are a count and a period
// each. It rounds to a thousandth, or more finely if that does not show more.
func Promised(count, period int64, rates iter.Seq2[int64, int64]) (tokens string, more bool) {
	sum := new(big.Float).SetPrec(precision)
	for n, each := range rates {
		sum.Add(sum, quotient(n, each))
	}
	exact, _ := sum.Mul(sum, new(big.Float).SetInt64(period)).Float64()
	round := func(scale float64) float64 { return math.Round(exact*scale) / scale }
	rounded := round(1e3)
	for scale := 1e3; scale <= 1e9 && !more; scale *= 1e3 {
		if more = round(scale) > float64(count); more {
			rounded = round(scale)
		}
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64), more
}
