package redislimit

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
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

	// Nodes is the number of machines that use the server. While the server is
	// away, each may use 1/Nodes of a limit by itself.
	Nodes int

	// Away says how this machine decides while the server is away. The default is
	// AwayShare if Nodes is given, and otherwise AwayClosed. AwayFor says it for
	// single limits.
	Away    Away
	AwayFor map[stint.Name]Away

	// Local is the path of a stint file for AwayShare. It keeps what this machine
	// has seen and spent over a restart. One process at a time can open it.
	// Memory has at most LocalOptions.MaxResident buckets, two for each key. Without
	// a file it also keeps what this machine spent, for as many buckets at most, and a
	// restart forgets everything. LocalOptions are for the stint.Limiter that decides
	// with AwayShare. Their Durability and Now are ignored, and their CommitTimeout
	// is Timeout by default.
	Local        string
	LocalOptions stint.Options

	// OnEvent is called with one event at a time. It must not call Close.
	OnEvent func(Event)

	// Tag returns the part of an id that chooses the slot of its buckets in a
	// cluster. Buckets in one slot are decided together. By default it is the
	// whole id.
	Tag func(id string) string
}

// Away says how a machine decides while the server is away.
type Away uint8

// The zero Away means the default.
const (
	// AwayShare decides with this machine's share of each limit, and charges the
	// server when it is back, as the comment of the package says.
	AwayShare Away = iota + 1

	// AwayClosed makes each decision that needs the server ErrAway.
	AwayClosed

	// AwayOpen admits, as if there were no limit. Stats.AwayOpen counts these spends.
	// Limits of stint.Blocked still deny.
	AwayOpen
)

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
	case c.Nodes < 0:
		return c, fmt.Errorf("redislimit: Options.Nodes is %d, want at least 1", c.Nodes)
	case c.PlainKeys && (c.Prefix != "" || c.Tag != nil):
		return c, errors.New("redislimit: Options.PlainKeys allows no Prefix and no Tag")
	}
	c.Durability = cmp.Or(c.Durability, stint.Flushed)
	c.Prefix = cmp.Or(c.Prefix, "stint")
	c.Timeout = cmp.Or(c.Timeout, 100*time.Millisecond)
	c.RepeatDenials = cmp.Or(c.RepeatDenials, time.Second)
	c.MaxLease = cmp.Or(c.MaxLease, time.Minute)
	c.Replicas = cmp.Or(c.Replicas, 1)
	if c.Away == 0 {
		if c.Away = AwayClosed; c.Nodes > 0 {
			c.Away = AwayShare
		}
	}
	c.AwayFor = maps.Clone(c.AwayFor)
	return c, c.checkAway()
}

// checkAway returns what is wrong with Away, AwayFor, Nodes and Local.
func (o *Options) checkAway() error {
	for name, a := range o.AwayFor {
		if a < AwayShare || a > AwayOpen {
			return fmt.Errorf("redislimit: Options.AwayFor is %d for %d, want AwayShare, AwayClosed or AwayOpen", a, name)
		}
	}
	switch {
	case o.Away > AwayOpen:
		return fmt.Errorf("redislimit: Options.Away is %d, want AwayShare, AwayClosed or AwayOpen", o.Away)
	case o.mayHave(AwayShare) && o.Nodes == 0:
		return errors.New("redislimit: AwayShare needs Options.Nodes, the number of machines")
	case !o.mayHave(AwayShare) && o.Local != "":
		return errors.New("redislimit: Options.Local is only for AwayShare, which needs Options.Nodes")
	}
	return nil
}

// mayHave reports whether a limit may have this Away.
func (o *Options) mayHave(a Away) bool {
	return o.Away == a || slices.Contains(slices.Collect(maps.Values(o.AwayFor)), a)
}

// away returns how this machine decides on a limit while the server is away.
func (o *Options) away(name stint.Name) Away {
	if a, ok := o.AwayFor[name]; ok {
		return a
	}
	return o.Away
}
