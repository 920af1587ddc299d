// Package journal keeps the file's journal in memory: the newest entry of each
// bucket that a checkpoint has not yet applied to the tree.
//
// A save appends a few sequential pages to the journal, whereas writing each
// bucket to its place in the tree would rewrite a page for every bucket. A
// checkpoint of boltstore applies the journal to the tree later, and writes
// each bucket only once. Until then boltstore answers loads from the Index. The
// checkpoint takes the entries in the order of their keys (Sorted).
//
// Put prefetches the slots of 16 keys before it reads them, because each key is
// a cache miss.
//
// There are no locks: the caller holds one. boltstore keeps two indexes: one
// receives saves, the other is applied by a checkpoint. fsck uses one to
// salvage a journal. The tests compare an Index with a map.
package journal
