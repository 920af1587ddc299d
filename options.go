package stint

import (
	"fmt"
	"time"
)

// Options are what Open and New can be told; nil or the zero value means the defaults, which are the safe ones.
// They are copied, and never written to.
//
// MaxResident bounds the buckets that are in memory. Once there are so many, a decision on one that is not among them
// waits until another has left; for a flush, where all have changed since the last. Of ids that are all new, one in
// MaxResident waits so, and those that come meanwhile: with a MaxResident of 20 there is a flush for every 20 of them.
// Those that somebody waits in line for stay; where none can leave, the error is ErrFull.
//
// It does not bound what is yet to be sorted into the file (105 MB, or 200 bytes for each of MaxResident up to 1.3 million,
// whichever is more), the filter of what the file has (6 to 12 bytes for each bucket in it), holds and lines; nor the pages of
// the file that have been read, which the system counts as resident memory, and takes back where it needs them.
type Options struct {
	Durability    Durability       // of limits that name none; default Flushed
	FlushInterval time.Duration    // default 1s
	MaxResident   int              // buckets kept in memory, within a few per cent; default 1<<20
	LockTimeout   time.Duration    // of Open: wait for the file lock; default 1s, then ErrLocked
	CommitTimeout time.Duration    // longest a Leased or Synced decision waits for the disk; default 5s, then ErrNotDurable
	FailOpen      bool             // what Allow answers when Spend returns an error; default false
	Recover       bool             // of Open: a corrupt file is set aside as PATH.corrupt-TIME, and a new one made
	OnEvent       func(Event)      // told one event at a time, by a goroutine of its own; it must not call Close
	Now           func() time.Time // for tests and simulations; must not go backwards
}

// withDefaults returns the options with the zero values replaced, or what is wrong with them.
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
	if c.Durability == 0 {
		c.Durability = Flushed
	}
	if c.FlushInterval == 0 {
		c.FlushInterval = time.Second
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = 5 * time.Second
	}
	if c.MaxResident == 0 {
		c.MaxResident = 1 << 20
	}
	return c, nil
}

// Event is something that an operator may want to know of when it happens.
// Health and Stats say it, too.
type Event struct {
	Kind EventKind
	Time time.Time     // by the Limiter's clock
	Err  error         // of FlushFailed and FileSetAside
	Path string        // of FileSetAside: where the file is now
	Step time.Duration // of ClockStepped: gain of the wall clock; negative if it was set back
}

// EventKind says what an Event is about.
type EventKind uint8

// The kinds of events.
const (
	FlushFailed    EventKind = iota + 1 // the first failure in a row
	FlushRecovered                      // a flush succeeded after one that failed
	ClockStepped                        // the wall clock was set, or the machine slept
	FileSetAside                        // Open renamed a corrupt file, as Options.Recover asks
)

// String returns what happened, in two or three words.
func (k EventKind) String() string {
	switch k {
	case FlushFailed:
		return "flush failed"
	case FlushRecovered:
		return "flush recovered"
	case ClockStepped:
		return "clock stepped"
	case FileSetAside:
		return "file set aside"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}
