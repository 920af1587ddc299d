package share

import (
	"iter"
	"math"
	"math/big"
	"math/bits"
)

// Sum is what floors promise together. The zero Sum has no floors. A copy is
// independent.
type Sum struct {
	burst bigInt // a sum of bursts may be more than an int64
	rate  fixed  // rounded down for each floor, by less than its last bit
	n     uint64
}

// bigInt is a number of 128 bits, the lower half first.
type bigInt [2]uint64

// fixed is a number of tokens per nanosecond, in units of 2⁻¹²⁸, the lowest 64
// bits first.
type fixed [3]uint64

// inverse returns 1÷n, rounded down.
func inverse(n uint64) (f fixed) {
	var rest uint64
	f[2], rest = 1/n, 1%n
	f[1], rest = bits.Div64(rest, 0, n)
	f[0], _ = bits.Div64(rest, 0, n)
	return f
}

func (f fixed) plus(g fixed) fixed {
	var carry uint64
	for i := range f {
		f[i], carry = bits.Add64(f[i], g[i], carry)
	}
	return f
}

func (f fixed) minus(g fixed) fixed {
	var borrow uint64
	for i := range f {
		f[i], borrow = bits.Sub64(f[i], g[i], borrow)
	}
	return f
}

func (f fixed) less(g fixed) bool {
	for i := len(f) - 1; i > 0; i-- {
		if f[i] != g[i] {
			return f[i] < g[i]
		}
	}
	return f[0] < g[0]
}

// Add adds a floor with a burst, which regains a token in each interval.
func (s *Sum) Add(burst, interval int64) {
	var carry uint64
	s.burst[0], carry = bits.Add64(s.burst[0], uint64(burst), 0)
	s.burst[1] += carry
	s.rate = s.rate.plus(inverse(uint64(interval)))
	s.n++
}

// Remove takes a floor out again.
func (s *Sum) Remove(burst, interval int64) {
	var borrow uint64
	s.burst[0], borrow = bits.Sub64(s.burst[0], uint64(burst), 0)
	s.burst[1] -= borrow
	s.rate = s.rate.minus(inverse(uint64(interval)))
	s.n--
}

// Burst returns the tokens that all floors hold when they are full, or
// math.MaxInt64 if they are more.
func (s *Sum) Burst() int64 {
	if s.burst[1] != 0 || s.burst[0] > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(s.burst[0])
}

// FitsBurst reports whether a full total holds more than full floors do.
func (s *Sum) FitsBurst(total int64) bool { return s.Burst() < total }

// FitsRate reports whether a total that regains a token in each interval
// regains no fewer than the floors do together. It is exact: if the rounded sum
// is too close to decide, it adds up the rates of all floors as fractions.
func (s *Sum) FitsRate(interval int64, all iter.Seq[int64]) bool {
	total := inverse(uint64(interval)) // rounded down, by less than a unit
	switch most := s.rate.plus(fixed{s.n}); {
	case !total.less(most):
		return true
	case total.less(s.rate):
		return false
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

// PerSecond returns about how many tokens all floors regain in a second.
func (s *Sum) PerSecond() float64 {
	rate := 0.0
	for i, word := range s.rate {
		rate += math.Ldexp(float64(word), 64*i-128)
	}
	return rate * 1e9
}
