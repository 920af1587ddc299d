// Package idmap provides an immutable map from ids to values. Copying a Map
// with one change is cheap. The limits of a program keep their overrides in it.
//
// A Map is a hash trie: four bits of an id's hash select one of 16 children at
// each node, and a leaf holds up to 32 ids. With and Without copy the nodes on
// the way to one id, a few kilobytes, and share all other nodes. So changing
// one of a million ids takes microseconds. A Builder makes a Map of many ids
// without these copies.
//
// An id takes about 65 bytes with a value of 24 bytes, in addition to the bytes
// of the id. Get costs two or three cache misses, as a Go map does. IDs returns
// the ids in no order.
//
// There are no locks, because nothing changes: any number of goroutines may
// read a Map. Its tests compare a Map with a Go map.
package idmap
