// Package bloom has a Bloom filter of the keys in a file. boltstore asks it
// before it asks the file: most buckets of new clients are in no file.
//
// All the bits of a key are in one cache line, so a lookup is one cache miss.
// AddAll asks for the lines of 16 keys before it sets their bits. The idea is
// from F. Putze, P. Sanders and J. Singler, "Cache-, hash-, and space-efficient
// Bloom filters", 2009.
//
// Has is never wrong about a key that was added. It returns true for about one
// in two hundred other keys, unless Overfull. There are no locks: each word is
// atomic.
package bloom
