// Package queue is the arithmetic of requests that wait at one bucket.
//
// A Turn is a request with the instant at which it may go. A waiting turn is
// not yet part of the bucket's TAT: Advance charges it when its instant comes.
// So a turn that leaves early takes nothing with it, whatever happened to the
// TAT since. Tail is the TAT after all waiting turns: a newcomer decides on
// it, and the store is given it.
//
// Charging a turn keeps Tail as it is. Turns never move forward.
//
// The root package keeps a Queue beside the few buckets that have one, under
// the mutex of their shard. The package reads no clock and takes no lock.
//
// The tests compare it with a queue that is charged step by step.
package queue
