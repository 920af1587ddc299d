// Package boltstore is the store of a limiter in one bbolt file: open, save, load,
// list, checkpoint, sweep, compact, merge, names and snapshot.
//
// What stint.OpenBolt returns is a thin layer over a Store, and package dbfile
// has the rest of it for the command. A Store knows numbers, ids and TATs, and
// nothing of limits.
//
// A save goes one of three ways (save.go). Small saves just after a pause
// go straight to their places in the tree. Other small saves are appended to the
// log of the file, and large ones to the journal in its tree. The journal is
// also kept in memory, for loads. A checkpoint applies it to the tree.
//
// In the background, or from Maintain, a Store maintains its file in small
// steps, with saves between them. A checkpoint applies the journal
// (checkpoint.go). The sweep deletes full buckets and fills the Bloom filter
// (sweep.go). A compaction removes free pages (compact.go), and a merge also adds
// entries to the copy (merge.go).
//
// What it guarantees: a Save happens as a whole or not at all, and is durable
// when it returns nil. A Load returns what was last saved. A call that meets
// damage returns ErrCorrupt; other calls go on. Entries that a failed save left
// in the file never replace those of a later save.
//
// The order of the locks; a goroutine that holds one takes only later ones:
//
//	maintenance.mu  one checkpoint, sweep, compaction or snapshot at a time
//	names.mu        the labels
//	saves.mu        one save at a time: records are in the order of the saves
//	journal.mu      the journal in memory, and how full it is
//	inUse.mu        read-locked by each transaction, locked when the file is replaced
//	stats.mu        never held while the disk is read or written
//
// The locks of boltfile come after all of these.
//
// The tests drive a Store step by step, and look into its fields. An FS of
// boltfile makes the disk fail; failCommits makes bbolt's commits fail.
package boltstore
