// Package table keeps buckets in memory: open addressing with linear probing,
// no pointers, ids inline.
//
// A slot holds a whole bucket, including its id. So the garbage collector has
// nothing to scan in ten million buckets, and a decision touches one or two
// cache lines. Lookups compare ids, not only hashes, so no two ids share a
// bucket.
//
// Package cache embeds Slots in each shard of its directory. All slots of
// one shard have one size, so ids of similar length share a class of shards.
// Slots knows nothing of limits. The index of a rule is an opaque number. Slots
// acts on the flags Dirty, Used, Stored, Gate and Pending, and on the
// number of the last save.
//
//	slot   0  TAT, int64
//	       8  meta: name (16 bits), length of the id (10), flags (12), rule (26)
//	      16  the id, padded to the size of its class
//
// An empty slot has meta 0, because no bucket has the name 0.
//
// Slots has no lock. The shard's mutex guards it, except for Prefetch, which
// may be called at any time. A Slot is valid until the next Insert, Remove,
// Shrink, NextDirty or Evict.
//
// The tests compare Slots with a map.
package table
