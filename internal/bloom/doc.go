// Package bloom provides a Bloom filter of the keys in a file. boltstore asks
// the filter before it reads the file, because most new clients have no bucket
// in it.
//
// All the bits of a key are in one cache line, so a lookup is one cache miss.
// AddAll prefetches the lines of 16 keys before it sets their bits. The idea is
// from F. Putze, P. Sanders and J. Singler, "Cache-, hash-, and space-efficient
// Bloom filters", 2009.
//
// A filter that is full gets another layer, twice as large, so that false
// positives stay rare while new keys come faster than the file can be read again. A
// lookup asks all layers. The idea is from P. Almeida, C. Baquero, N. Preguiça and
// D. Hutchison, "Scalable Bloom Filters", 2007; theirs also gives later layers
// more bits for each key.
//
// Has is always true for a key that was added. For any other key each full layer
// is wrong about once in two hundred times. Lookups take no lock: each word is
// atomic.
package bloom
