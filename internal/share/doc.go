// Package share has the arithmetic of limits that are shares of a total: what
// pays for a request, and whether the floors fit into the total. It knows
// nothing of buckets, ids or files.
//
// A class has a ceiling and, perhaps, a floor; all classes of a tree have a
// total in common. A request is its own if the floor pays for it, and a loan
// otherwise. A loan leaves in the total what all full floors hold together. So
// the total always holds at least what the floors hold, which is why a floor
// can promise what it has:
//
//   - An own spend takes the same from both.
//   - After a loan the total holds what full floors would, or more.
//   - As time goes on, the total regains at least as fast as all floors do
//     together, until it is full; then it holds more than full floors do.
//   - A refund to a floor is also one to the total.
//
// Sum.FitsBurst and Sum.FitsRate check the two conditions that this needs.
package share
