// Package idmap has a map from ids to values that is immutable, and of which a
// changed copy is cheap. The limits of a program keep their overrides in it.
//
// A Map is a tree by the bits of the ids' hashes, 16 ways at each node, with up
// to 32 ids in a leaf. With and Without copy the nodes on the way to one id, a
// few kilobytes, and share all others with the Map that they leave as it was.
// So one Map of a million ids and the next differ by microseconds. A Builder
// makes a Map of many ids without these copies.
//
// An id takes about 65 bytes with a value of 24, and its own bytes. Get costs
// two or three cache misses, as a Go map does. All is in no order.
//
// There are no locks, because nothing changes: any number of goroutines may
// read a Map. Its tests compare a Map with a Go map.
package idmap
