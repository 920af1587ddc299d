// Package journal is the journal in memory: the newest entry of each bucket
// that the file has in its journal, and not yet in its tree.
//
// A save is appended to the journal, which is a few sequential pages. Writing
// each bucket to its place in the tree would rewrite a page for every one. A
// checkpoint of boltstore applies the journal to the tree later, each bucket
// once for all the times it was journaled. Until then boltstore answers loads
// from the Index, and a checkpoint takes the entries from it in the order of
// their keys (Sorted).
//
// Put asks for the memory of 16 keys before it looks at them, because each is a
// cache miss.
//
// There are no locks: the caller has one. boltstore keeps two indexes, the one
// that saves go to and the one that a checkpoint is applying. fsck uses one to
// salvage a journal. The tests compare an Index with a map.
package journal
