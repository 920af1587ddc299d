// Package queue is the arithmetic of requests that wait at one bucket.
//
// A Turn is a request with the instant at which it may go. A waiting turn is
// not yet part of the bucket's TAT: Advance charges it when its instant comes.
// So a turn that leaves early takes no tokens with it, even if the TAT has
// changed. Tail is the TAT after all waiting turns. Newcomers decide on Tail,
// and the store saves it.
//
// Charging a turn does not change Tail. If a turn leaves, those behind it move up:
// each gets the instant that it would have if it joined now, unless that is later.
// So no turn goes later than its caller was told, and the last is never later than
// it would be if those who left had never come. Of the callers that sleep, only the
// first is told. When its turn comes, the next one is, so a queue of many callers
// wakes one of them for each that leaves.
//
// Package cache keeps a Queue only for the few buckets with waiting requests,
// under the mutex of their shard. Package queue reads no clock and
// takes no lock.
//
// The tests charge a queue step by step, and require that Tail stays the same. They
// compare a queue that turns leave with one in which they never were.
package queue
