// Package reciprocal divides by a number by means of a multiplication, because a
// division costs as much as the rest of a decision.
package reciprocal

import "math/bits"

// Reciprocal is ⌊(2⁶⁴−1)÷n⌋ for some n ≥ 1.
type Reciprocal uint64

// Of returns the reciprocal of n, or that of 1 if n is less.
func Of(n int64) Reciprocal { return Reciprocal((1<<64 - 1) / uint64(max(n, 1))) }

// Quotient returns ⌊x÷n⌋, for x ≥ 0 and the n that r is made of.
func (r Reciprocal) Quotient(x, n int64) int64 {
	high, _ := bits.Mul64(uint64(x), uint64(r)) // ⌊x÷n⌋, or one less
	q := int64(high)
	if x-q*n >= n {
		q++
	}
	return q
}
