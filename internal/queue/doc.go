// Package queue is the arithmetic of requests that wait at one bucket.
//
// A Turn is a request with the instant at which it may go. A waiting turn is
// not yet part of the bucket's TAT: Advance charges it when its instant comes.
// So a turn that leaves early takes no tokens with it, even if the TAT has
// changed. Tail is the TAT after all waiting turns. Newcomers decide on Tail,
// and the store saves it.
//
// Charging a turn does not change Tail. No turn ever gets an earlier instant.
//
// Package cache keeps a Queue only for the few buckets with waiting requests,
// under the mutex of their shard. Package queue reads no clock and
// takes no lock.
//
// The tests charge a queue step by step, and require that Tail stays the same.
package queue
