package redislimit

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/redislimit/internal/script"
)

// Options are the settings of a Limiter. The zero value has the defaults.
type Options struct {
	// Durability applies to limits that name none. The default is Flushed.
	Durability stint.Durability

	Prefix    string           // of every key; default "stint"
	PlainKeys bool             // keys and values as Boulder has them: "6:12345678"
	Timeout   time.Duration    // of each round trip; default 100 ms
	MaxLease  time.Duration    // longest life of a lease; default 1 min
	Replicas  int              // that must have a decision of Synced; default 1
	Atomic    bool             // requests in several slots are ErrCrossSlot
	FailOpen  bool             // answer of Allow if Spend returns an error
	TLS       *tls.Config      // of Open with rediss://; nil: the certificates of the system
	Now       func() time.Time // for tests: the time of decisions, in place of the server's

	// RepeatDenials is how long a denial may be repeated without a trip. The
	// default is a second, and a negative time means never.
	RepeatDenials time.Duration

	// Away decides while the server is away. If it is nil, decisions are ErrAway.
	// AwayOpen admits everything. A stint.Limiter of the program's own, with each limit
	// DividedBy the number of machines, makes an outage add up to two bursts in all,
	// because the server's buckets fill up meanwhile. Away keeps its own limits, and
	// belongs to the caller: Close and SetLimits leave it alone.
	Away stint.Decider

	// OnEvent is called with one event at a time. It must not call Close.
	OnEvent func(Event)

	// Tag returns the part of an id that chooses the slot of its buckets in a
	// cluster. Buckets in one slot are decided together. By default it is the
	// whole id.
	Tag func(id string) string
}

// Errors of a Limiter, besides those of package stint. Test for them with
// errors.Is.
var (
	// ErrAway means that the server cannot decide now: it cannot be reached, or
	// is loading, or is a replica. Nothing was spent. If other trips of a SpendAll
	// have spent, that is returned in the background.
	ErrAway = script.ErrAway

	// ErrBusy means that the calls before this one took so long that half of its
	// Timeout was over before it could be sent. Nothing was spent.
	ErrBusy = script.ErrBusy

	// ErrNoAnswer means that a request was sent, and no answer says that it was
	// carried out. The tokens may be spent. The request is not sent again.
	ErrNoAnswer = script.ErrNoAnswer

	// ErrCrossSlot means that Options.Atomic is set, and the buckets of a call are
	// in several slots of the cluster, or more than 64. Nothing was spent.
	ErrCrossSlot = script.ErrCrossSlot

	// ErrEvicts is an error of Health: the server deletes buckets when it has
	// too little memory, and a bucket that is deleted is full.
	ErrEvicts = errors.New("redislimit: server evicts buckets")

	// ErrClock is an error of Health: the server's clock and that of this machine
	// differ by more than 10 seconds. If the server's clock was set back, buckets
	// that were used before wait for that much longer.
	ErrClock = errors.New("redislimit: clocks differ")
)

// withDefaults returns the options with zero values replaced by defaults. The
// error says which option is out of range.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	switch {
	case c.Durability > stint.Synced:
		return c, fmt.Errorf("redislimit: Options.Durability is %v, want memory, flushed, leased or synced", c.Durability)
	case strings.ContainsAny(c.Prefix, "{}"):
		return c, fmt.Errorf("redislimit: Options.Prefix is %q, want no braces: they choose the slot", c.Prefix)
	case c.Timeout < 0 || c.Timeout > 0 && c.Timeout < time.Millisecond:
		return c, fmt.Errorf("redislimit: Options.Timeout is %v, want at least 1ms", c.Timeout)
	case c.MaxLease < 0:
		return c, fmt.Errorf("redislimit: Options.MaxLease is %v, want more than 0", c.MaxLease)
	case c.Replicas < 0:
		return c, fmt.Errorf("redislimit: Options.Replicas is %d, want at least 1", c.Replicas)
	case c.PlainKeys && (c.Prefix != "" || c.Tag != nil):
		return c, errors.New("redislimit: Options.PlainKeys allows no Prefix and no Tag")
	}
	c.Durability = cmp.Or(c.Durability, stint.Flushed)
	c.Prefix = cmp.Or(c.Prefix, "stint")
	c.Timeout = cmp.Or(c.Timeout, 100*time.Millisecond)
	c.RepeatDenials = cmp.Or(c.RepeatDenials, time.Second)
	c.MaxLease = cmp.Or(c.MaxLease, time.Minute)
	c.Replicas = cmp.Or(c.Replicas, 1)
	return c, nil
}
