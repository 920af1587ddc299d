// Package prefetch is one processor instruction: fetch a cache line that is
// needed soon. The table of buckets, the journal's index and the Bloom filter
// use it, because each of them looks up random places in large memory.
// docs/performance.md has what it buys.
package prefetch
