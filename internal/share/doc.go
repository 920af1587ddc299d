// Package share is the arithmetic of limits that are shares of a total: what
// pays for a request, and whether the floors fit into the total. The package
// keeps no buckets, and reads no files.
//
// A class has a ceiling and, optionally, a floor; all classes of a tree share
// one total. Each of these is a bucket. Every request takes its tokens from the
// ceiling and from the total. An own request takes them from the floor, too.
// Any other request is a loan, and must leave in the total what all full floors
// hold together. So the total always holds at least what the floors hold, and a
// floor can promise what it has:
//
//   - An own request takes the same from the floor and from the total.
//   - After a loan the total holds what full floors would, or more.
//   - As time goes on, the total regains at least as fast as all floors do
//     together, until it is full; then it holds more than full floors do.
//   - A refund to a floor is also a refund to the total.
//
// Sum.FitsBurst and Sum.FitsRate check the two conditions that this needs.
package share
