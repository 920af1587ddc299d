// Package bloom provides a Bloom filter of the keys in a file. boltstore asks
// the filter before it reads the file, because most new clients have no bucket
// in it.
//
// All the bits of a key are in one cache line, so a lookup is one cache miss.
// AddAll prefetches the lines of 16 keys before it sets their bits. The idea is
// from F. Putze, P. Sanders and J. Singler, "Cache-, hash-, and space-efficient
// Bloom filters", 2009.
//
// Has is always true for a key that was added. For any other key it is wrong
// about once in two hundred times, and more often if the filter is Overfull.
// There are no locks: each word is atomic.
package bloom
