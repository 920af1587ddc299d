package cache

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/table"
)

// A Lane has the TAT of one hot bucket, for decisions without the lock of its
// shard. A lock that many goroutines want at once costs more than the work that it
// guards: its cache line moves from core to core, and goroutines end up waiting for
// the scheduler. A fast path that fails to swap the TAT twice takes the lock after
// all, so that fewer goroutines want the line of the TAT.
//
// If fast paths have had to wait for the lock of the shard promoteAfter times in a row
// at one bucket, that gets a lane. The lane then has the bucket's TAT,
// and the TAT in the slot is out of date. Fast paths find the lane before they ask
// for the lock, and compare and swap its TAT. A denial writes nothing but its count.
//
// Every other path that needs a TAT locks the shard with Lock, which also retires
// the lane: it puts LaneRetired in place of the TAT, and writes the TAT to the
// slot. A decision that finds LaneRetired takes the lock instead, and one that read
// its TAT before cannot swap a stale one into the bucket's next lane. Fast paths for
// other buckets of the shard leave the lane, because they change only their own slots.
//
// A shard has at most one lane. A bucket gets none if it has a hold or a queue, or
// if its TAT is later than its limit allows, because a lane does not cut it. The caller
// gives none to a bucket whose decision needs more than the TAT.
type Lane struct {
	Rule   *gcra.Rule
	index  uint32      // of the slot
	denies atomic.Bool // it has denied something
	tally  *tally
	hash   uint64
	key    Key
	_      [8]byte

	tat atomic.Int64 // in another cache line: it changes, and the fields above do not
	_   [56]byte
}

// LaneRetired is what a retired Lane has in place of a TAT.
const LaneRetired = math.MinInt64

// promoteAfter is how often in a row a fast path waits before its bucket gets its
// first lane.
const promoteAfter = 16

// lanes has the lanes in force, each at an index that comes from its hash. All
// decisions read it and few change it, so it stays in the cache of each processor.
type lanes [64]atomic.Pointer[Lane]

func (ls *lanes) at(hash uint64) *atomic.Pointer[Lane] { return &ls[hash%uint64(len(ls))] }

// Is reports whether a lane is that of a bucket.
func (n *Lane) Is(name uint16, id string, hash uint64) bool {
	return n.hash == hash && n.key.Name == name && n.key.ID == id
}

// Denies reports whether the lane has denied something. Then it pays to read its TAT
// before the clock. Otherwise that would only move the TAT's cache line once more.
func (n *Lane) Denies() bool { return n.denies.Load() }

// TAT returns the TAT of the bucket, or LaneRetired.
func (n *Lane) TAT() int64 { return n.tat.Load() }

// Swap puts a TAT in place of another one, unless that has changed.
func (n *Lane) Swap(was, is int64) bool { return n.tat.CompareAndSwap(was, is) }

// tally counts the decisions of all lanes of a Name. Many goroutines count at
// once, so each takes one of several cells.
type tally [64]struct {
	allowed, denied atomic.Uint64
	_               [48]byte
}

// Count counts a decision, in the cell that the address of the stack chooses.
func (n *Lane) Count(allowed bool) {
	var here byte
	c := &n.tally[uint64(uintptr(unsafe.Pointer(&here))>>10)*table.Golden>>58]
	if allowed {
		c.allowed.Add(1)
	} else {
		c.denied.Add(1)
		if !n.denies.Load() {
			n.denies.Store(true)
		}
	}
}

func (t *tally) sum() (c count) {
	for i := range t {
		c.add(count{t[i].allowed.Load(), t[i].denied.Load()})
	}
	return c
}

// count has the numbers of allowed and denied decisions on one Name.
type count [2]uint64

func (c *count) add(d count) { c[0], c[1] = c[0]+d[0], c[1]+d[1] }
