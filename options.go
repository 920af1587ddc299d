package stint

import (
	"cmp"
	"fmt"
	"time"

	"github.com/stint-go/stint/internal/clock"
)

// Options are the options of Open and New. nil or the zero value means the
// defaults, which are the safe ones. Options are copied and never written to.
//
// MaxResident bounds the buckets in memory. At the bound, a decision on a
// bucket that is not in memory waits until another one has left. If all have
// changed since the last flush, it waits for a flush. So among new ids one
// decision in MaxResident waits, and so do those that come during that flush.
// Buckets with a queue stay in memory. If no bucket can leave, the error is
// ErrFull. Calls make space before they load, so each request of the calls under
// way may add one bucket above the bound, until the next call makes space.
//
// MaxResident does not bound the following. In a flood of new ids, the index of
// the journal takes 200 bytes times MaxResident, or times 1.3 million if that
// is less, and a few MB at least. The filter of stored buckets takes 6 to 12
// bytes for each bucket. Holds and queues take a few hundred bytes each. The
// system counts pages of the file that were read as resident memory, and
// reclaims them when it needs to.
type Options struct {
	Durability      Durability       // of limits that name none; default Flushed
	FlushInterval   time.Duration    // default 1s; the first change after a quiet one is saved at once
	MaxResident     int              // most buckets in memory; each request under way may add one; default 1<<20
	LockTimeout     time.Duration    // longest wait for the file lock; default 1s, then ErrLocked
	CommitTimeout   time.Duration    // longest wait for a commit; default 5s, then ErrNotDurable
	FailOpen        bool             // answer of Allow if Spend returns an error; default false
	SetAsideCorrupt bool             // Open renames a corrupt file to PATH.corrupt-TIME
	OnEvent         func(Event)      // called with one event at a time; must not call Close
	Now             func() time.Time // for tests and simulations; any goroutine may call it; must not go backwards

	// ErrorIfNotExists makes Open return fs.ErrNotExist if there is no file, instead
	// of making one, in which all buckets are full. So a path that is wrong, or a
	// volume that is not mounted, does not go unnoticed.
	ErrorIfNotExists bool

	wall    func() time.Time // the wall clock; nil means the system's
	machine clock.Machine    // nil means the system's, unless there is a wall
}

// withDefaults returns the options with zero values replaced by defaults. The
// error says which option is out of range.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	switch {
	case c.FlushInterval < 0:
		return c, fmt.Errorf("stint: FlushInterval %v: want more than 0", c.FlushInterval)
	case c.LockTimeout < 0:
		return c, fmt.Errorf("stint: LockTimeout %v: want more than 0", c.LockTimeout)
	case c.CommitTimeout < 0:
		return c, fmt.Errorf("stint: CommitTimeout %v: want more than 0", c.CommitTimeout)
	case c.Durability > Synced:
		return c, fmt.Errorf("stint: Durability %v: want Memory, Flushed, Leased or Synced", c.Durability)
	case c.MaxResident < 0:
		return c, fmt.Errorf("stint: MaxResident %d: want more than 0", c.MaxResident)
	}
	c.Durability = cmp.Or(c.Durability, Flushed)
	c.FlushInterval = cmp.Or(c.FlushInterval, time.Second)
	c.LockTimeout = cmp.Or(c.LockTimeout, time.Second)
	c.CommitTimeout = cmp.Or(c.CommitTimeout, 5*time.Second)
	c.MaxResident = cmp.Or(c.MaxResident, 1<<20)
	return c, nil
}
