package hostlimit

import (
	"cmp"
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
	"github.com/stint-go/stint/internal/events"
)

// Options are the options of Open, Dial and Serve; nil or the zero value means the
// defaults.
type Options struct {
	// LimiterOptions are the options of the file while this process owns it. Its
	// Durability and FailOpen apply to a guest, too. Open waits for up to
	// LockTimeout if the file is locked and no process serves it.
	LimiterOptions stint.Options

	// TakeoverTimeout limits how long a call waits for an owner, and then for a
	// sign of life from that owner. The default is 1s.
	TakeoverTimeout time.Duration

	// MaxGuests is the number of connections that an owner serves. The default
	// is 512. A guest has one, and another one while it makes a Snapshot.
	MaxGuests int

	// OnEvent is called with one event at a time, in a goroutine of its own. It
	// misses events if it is 64 behind. It must not call Close, which waits for it.
	OnEvent func(Event)
}

// Event reports to an operator when the role of this process changes, or something
// fails.
type Event struct {
	Role Role // of this process, from now on
	Time time.Time

	// Err says what failed, or is nil. Of RoleNone, why there is no owner: it closed,
	// died or does not answer. Or why this process cannot find another one or become
	// it: then the Limiter tries again. Of RoleOwner, why the owner refused the
	// connection of a guest, or ended it.
	Err error
}

func tell(queue *events.Queue[Event], e Event) {
	e.Time = time.Now()
	queue.Add(e)
}

// Role says which process has the file.
type Role uint8

// The roles. A Limiter that has lost its owner has none until it finds another.
const (
	RoleNone  Role = iota
	RoleOwner      // this process
	RoleGuest      // another one
)

// String returns the role in lower case.
func (r Role) String() string { return [...]string{"none", "owner", "guest"}[min(r, RoleGuest)] }

// The errors of this package.
var (
	// ErrNoAnswer: the owner died or stopped answering while a call was under
	// way, or the Limiter was closed during the call. The call may have been
	// carried out.
	ErrNoAnswer = wire.ErrNoAnswer

	// ErrNoOwner: no process serves the file. Nothing was done.
	ErrNoOwner = wire.ErrNoOwner

	// ErrRefused: the owner does not take this connection or this call, or this
	// process does not trust the process at the socket. Nothing was done.
	ErrRefused = wire.ErrRefused

	// ErrZone: a quota that follows the calendar has a time zone that the owner
	// does not have, or that has other clocks there, such as Local in a process
	// with another TZ. Nothing was done.
	ErrZone = wire.ErrZone
)

const (
	defaultTimeout   = time.Second
	defaultMaxGuests = 512
)

// withDefaults returns the options with zero values replaced by defaults.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	switch {
	case c.TakeoverTimeout < 0:
		return c, fmt.Errorf("hostlimit: TakeoverTimeout %v: want more than 0", c.TakeoverTimeout)
	case c.MaxGuests < 0:
		return c, fmt.Errorf("hostlimit: MaxGuests %d: want more than 0", c.MaxGuests)
	case c.LimiterOptions.LockTimeout < 0:
		return c, fmt.Errorf("hostlimit: LockTimeout %v: want more than 0", c.LimiterOptions.LockTimeout)
	}
	c.TakeoverTimeout = cmp.Or(c.TakeoverTimeout, defaultTimeout)
	c.MaxGuests = cmp.Or(c.MaxGuests, defaultMaxGuests)
	c.LimiterOptions.LockTimeout = cmp.Or(c.LimiterOptions.LockTimeout, defaultTimeout)
	c.LimiterOptions.Durability = cmp.Or(c.LimiterOptions.Durability, stint.Flushed)
	return c, nil
}

// prepare checks what Open, Dial and Serve are given.
func prepare(path string, names stint.Names, opts *Options) (o Options, p place, err error) {
	if o, err = opts.withDefaults(); err == nil {
		err = checkLabels(names)
	}
	if err == nil {
		p, err = placeOf(path)
	}
	return o, p, err
}
