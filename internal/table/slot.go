package table

import (
	"hash/maphash"
	"unsafe"
)

// MaxID is the longest id, in bytes.
const MaxID = 512

// Golden is 2⁶⁴ ÷ the golden ratio: its multiples lie far apart.
const Golden = 0x9E3779B97F4A7C15

const (
	slotMeta = 8
	slotID   = 16

	metaKey   = 1<<26 - 1 // name and length of the id
	metaLen   = 16        // shift
	metaFlags = 26        // shift
	metaRule  = 38        // shift
)

// The flags of a slot.
const (
	Dirty   = 1 << (metaFlags + 0) // the store has another TAT
	Stored  = 1 << (metaFlags + 1) // the store may have this bucket
	Gate    = 1 << (metaFlags + 2) // the bucket has a hold or a queue
	Used    = 1 << (metaFlags + 3) // used again since it came into memory, or since Evict cleared this
	Pending = 1 << (metaFlags + 4) // the bucket is in a commit
	Covered = 1 << (metaFlags + 5) // the store has the current half of the lease
	Uncut   = 1 << (metaFlags + 8) // the limit became smaller, and no request has cut the TAT yet
	Ahead   = 1 << (metaFlags + 9) // the store has the next half of the lease, too

	// Flush means that each flush saves the bucket. Without it, the rule may leave
	// the bucket to the last flush.
	Flush = 1 << (metaFlags + 10)

	// Loaded means that the bucket came from the store, which does not say at which
	// level it was saved.
	Loaded = 1 << (metaFlags + 11)

	// SaveShift is the first bit of the number of the last save that took the
	// bucket. The number is 1, 2 or 3, or 0 for none. SaveMask covers its bits.
	SaveShift = metaFlags + 6
	SaveMask  = 3 << SaveShift
)

// Hash returns the hash of a bucket.
func Hash(seed maphash.Seed, name uint16, id string) uint64 {
	return maphash.String(seed, id) + uint64(name)*Golden
}

// classes are the sizes that ids are padded to.
var classes = [...]uint32{8, 16, 24, 32, 40, 48, 64, 96, 128, 256, MaxID}

// Classes is the number of sizes that ids are padded to.
const Classes = len(classes)

// classOf maps the length of an id, in units of 8 bytes, to its class.
var classOf = func() (of [MaxID/8 + 1]uint8) {
	class := uint8(0)
	for n := range of {
		if uint32(n)*8 > classes[class] {
			class++
		}
		of[n] = class
	}
	return of
}()

// ClassOf returns the class of an id, whose length is at most MaxID.
func ClassOf(id string) uint8 { return classOf[(len(id)+7)/8] }

// RuleOf returns the rule in a slot's meta.
func RuleOf(meta uint64) uint32 { return uint32(meta >> metaRule) }

// Slot is the place of one bucket.
type Slot struct{ at unsafe.Pointer }

// TAT returns the bucket's theoretical arrival time.
func (b Slot) TAT() int64 { return *(*int64)(b.at) }

// SetTAT changes the TAT, and no flag.
func (b Slot) SetTAT(tat int64) { *(*int64)(b.at) = tat }

// Rewrite is Slots.Write for a bucket that the next flush visits anyway, and false for
// another one.
func (b Slot) Rewrite(tat int64) bool {
	if b.Meta()&(Dirty|Used) != Dirty|Used {
		return false
	}
	b.SetTAT(tat)
	return true
}

// Meta returns name, length, flags and rule in one word.
func (b Slot) Meta() uint64 { return *(*uint64)(unsafe.Add(b.at, slotMeta)) }

func (b Slot) setMeta(m uint64) { *(*uint64)(unsafe.Add(b.at, slotMeta)) = m }

// Has reports whether the slot has one of the flags.
func (b Slot) Has(flags uint64) bool { return b.Meta()&flags != 0 }

// Set sets flags. Dirty is set by MarkDirty only.
func (b Slot) Set(flags uint64) { b.setMeta(b.Meta() | flags) }

// Clear clears flags. Dirty is cleared by MarkClean only.
func (b Slot) Clear(flags uint64) { b.setMeta(b.Meta() &^ flags) }

// Rule returns the owner's number for the limit; 0 is none.
func (b Slot) Rule() uint32 { return RuleOf(b.Meta()) }

// SetRule changes the rule.
func (b Slot) SetRule(r uint32) { b.setMeta(b.Meta()&(1<<metaRule-1) | uint64(r)<<metaRule) }

// Name returns the bucket's name.
func (b Slot) Name() uint16 { return uint16(b.Meta()) }

// ID returns the bucket's id in place: it is valid as long as the Slot.
func (b Slot) ID() []byte {
	return b.bytes(slotID + uint32(b.Meta()&metaKey>>metaLen))[slotID:]
}

func (b Slot) bytes(n uint32) []byte { return unsafe.Slice((*byte)(b.at), n) }
