// Package shares divides a total among tenants: each is guaranteed a rate, its
// floor, and may use what the others leave idle, up to its ceiling. All together
// never use more than the total. It is the hierarchical token bucket of Linux's tc,
// for requests, in two levels and without debt.
//
// A [Decider] stands above another one and owns no bucket. A request for a class,
// such as a tenant, becomes one of two requests of the Decider below, which are tried
// in this order:
//
//  1. own: ceiling, floor and total, each at the cost of the request.
//  2. loan, if the id has no floor, or if its floor denied: ceiling and total,
//     and the total must be left with the bursts of all floors together.
//
// So the total always holds at least what the floors hold, and a floor can promise
// what it has: an own request takes the same from both, a loan leaves what full floors
// would hold, and as time goes on the total regains at least as fast as the floors
// do together. [Check] compares the sums. docs/shares.md has the laws, and what to
// write.
package shares
