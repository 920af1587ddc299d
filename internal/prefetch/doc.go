// Package prefetch provides one instruction that Go does not offer: it asks the
// processor for memory before the program needs it.
//
// The table of a limiter, the index of the journal and the Bloom filter look up
// many keys at a time. Each lookup is one cache miss. Asking for all of them
// first lets the misses overlap.
package prefetch
