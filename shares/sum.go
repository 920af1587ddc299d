package shares

import (
	"iter"
	"math"
	"math/big"
	"strconv"
	"time"

	"github.com/stint-go/stint"
)

// sum is what floors promise together. The zero sum has no floors.
type sum struct {
	most int64      // tokens that full floors hold, or math.MaxInt64 if they are more
	rate *big.Float // tokens per nanosecond, about
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

// add adds a floor with a burst, which regains a token in each interval.
func (s *sum) add(burst int64, interval time.Duration) {
	if s.rate == nil {
		s.rate = new(big.Float).SetPrec(precision)
	}
	if s.most > math.MaxInt64-burst {
		s.most = math.MaxInt64
	} else {
		s.most += burst
	}
	s.rate.Add(s.rate, quotient(1, int64(interval)))
}

// fitsRate reports whether a total that regains a token in each interval
// regains no fewer than the floors do together. It is exact: if the rounded sum
// is too close to decide, it adds up the rates of all floors as fractions. It
// does not always do so, because the sum of a thousand different fractions has
// a denominator of thousands of digits.
func (s *sum) fitsRate(interval time.Duration, all iter.Seq[time.Duration]) bool {
	if s.rate == nil {
		return true
	}
	left := quotient(1, int64(interval))
	left.Sub(left, s.rate)
	if new(big.Float).Abs(left).Cmp(margin) > 0 {
		return left.Sign() > 0
	}
	return exactRate(all).Cmp(big.NewRat(1, int64(interval))) <= 0
}

// exactRate returns the sum of the inverses of intervals.
func exactRate(all iter.Seq[time.Duration]) *big.Rat {
	count := make(map[time.Duration]int64)
	for interval := range all {
		count[interval]++
	}
	sum := new(big.Rat)
	for interval, n := range count {
		sum.Add(sum, big.NewRat(n, int64(interval)))
	}
	return sum
}

// promised returns the tokens that floors promise in the period of their total,
// and whether these are more than its count. It rounds to a thousandth, or more
// finely if that does not show more.
func promised(total stint.Limit, floors iter.Seq[stint.Limit]) (tokens string, more bool) {
	sum := new(big.Float).SetPrec(precision)
	for l := range floors {
		sum.Add(sum, quotient(l.Count, int64(l.Period)))
	}
	exact, _ := sum.Mul(sum, new(big.Float).SetInt64(int64(total.Period))).Float64()
	round := func(scale float64) float64 { return math.Round(exact*scale) / scale }
	rounded := round(1e3)
	for scale := 1e3; scale <= 1e9 && !more; scale *= 1e3 {
		if more = round(scale) > float64(total.Count); more {
			rounded = round(scale)
		}
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64), more
}

// scaled returns d × by ÷ of, rounded up, or the longest duration if that is less.
func scaled(d, by, of time.Duration) time.Duration {
	x := new(big.Int).Mul(big.NewInt(int64(d)), big.NewInt(int64(by)))
	x.Add(x, big.NewInt(int64(of-1))).Quo(x, big.NewInt(int64(of)))
	if !x.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(x.Int64())
}
