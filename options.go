package stint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/stint-go/stint/internal/boltstore"
	fileformat "github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/spell"
)

// Options are the options of Open and New. nil or the zero value means the
// defaults, which are the safe ones. Options are copied and never written to.
//
// MaxResident bounds the buckets in memory. At the bound, a decision on a
// bucket that is not in memory waits until another one has left. If all have
// changed since the last flush, it waits for a flush. So among new ids one
// decision in MaxResident waits, and so do those that come during that flush.
// Buckets with a queue stay in memory. If no bucket can leave, the error is
// ErrFull.
//
// MaxResident does not bound the following. In a flood of new ids, the index of
// the journal takes 200 bytes times MaxResident, or times 1.3 million if that
// is less, and a few MB at least. The filter of stored buckets takes 6 to 12
// bytes for each bucket. Holds and queues take a few hundred bytes each. The
// system counts pages of the file that were read as resident memory, and
// reclaims them when it needs to.
type Options struct {
	Durability    Durability       // of limits that name none; default Flushed
	FlushInterval time.Duration    // default 1s
	MaxResident   int              // buckets in memory, within a few per cent; default 1<<20
	LockTimeout   time.Duration    // longest wait for the file lock; default 1s, then ErrLocked
	CommitTimeout time.Duration    // longest wait for a commit; default 5s, then ErrNotDurable
	FailOpen      bool             // answer of Allow if Spend returns an error; default false
	Recover       bool             // Open renames a corrupt file to PATH.corrupt-TIME
	OnEvent       func(Event)      // called with one event at a time; must not call Close
	Now           func() time.Time // for tests and simulations; must not go backwards

	wall func() time.Time // the wall clock; nil means the system's
}

// Decider decides on requests. The buckets of a *Limiter belong to this
// process. Those of another Decider may belong to another process. The methods
// of a Decider may be called from any number of goroutines, and mean what those
// of *Limiter mean:
//
//   - A denial is a Decision. An error comes with the zero Decision, which
//     denies, and nothing was spent. Two kinds of errors are exceptions: after
//     ErrNotDurable, or if a Decider lost the answer of another process, the
//     tokens may be spent.
//   - SpendTogether decides at one instant, spends for all or for none, and
//     RetryAfter is exact.
//   - The limit is the Request's, or else the one in Limits.
//   - Now is the time by the clock of the decisions, which holds use too.
//   - Check, Bucket and Now spend nothing.
//
// Deciders are compared with ==, so a Decider must be comparable, as a pointer
// is.
type Decider interface {
	Limits() *Limits
	Now() time.Time
	Spend(key Key, cost int64) (Decision, error)
	Check(key Key, cost int64) (Decision, error)
	SpendTogether(reqs []Request, ds []Decision) (Decision, error)
	RefundAll(reqs ...Request) (Decision, error)
	Bucket(key Key) (Bucket, error)
	Hold(key Key, until time.Time) error
	Wait(ctx context.Context, key Key, cost int64) error
}

var _ Decider = (*Limiter)(nil)

// Durability is what a decision waits for, and so what a crash may forget.
// After Close nothing is forgotten at any level.
type Durability uint8

// The levels, weakest first. The zero Durability means the Limiter's default.
const (
	Memory  Durability = iota + 1 // a crash may forget everything
	Flushed                       // a crash may forget what was spent since the last flush
	Leased                        // a crash forgets nothing, and may withhold one lease of each bucket
	Synced                        // a crash forgets nothing and withholds nothing
)

var durabilities = [...]string{"default", "memory", "flushed", "leased", "synced"}

// String returns the level as a limits file writes it; "default" for the zero
// Durability.
func (d Durability) String() string {
	if int(d) < len(durabilities) {
		return durabilities[d]
	}
	return "Durability(" + strconv.Itoa(int(d)) + ")"
}

// ParseDurability returns the level that is written memory, flushed, leased or
// synced.
func ParseDurability(s string) (Durability, error) {
	if i := slices.Index(durabilities[1:], s); i >= 0 {
		return Durability(i + 1), nil
	}
	return 0, fmt.Errorf("stint: durability is %s, want %s", spell.Quote(s), spell.WantDurability)
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
	c.CommitTimeout = cmp.Or(c.CommitTimeout, 5*time.Second)
	c.MaxResident = cmp.Or(c.MaxResident, 1<<20)
	return c, nil
}

// SetLimits puts other limits in force while decisions go on. Until SetLimits
// has returned, a decision is held to the old limits or to the new ones. After
// that it is held to the new ones.
//
// A bucket keeps the time at which it will be full, but never waits longer than
// an empty bucket of the new limit. A bucket whose time was cut has more tokens
// than before if the larger limit comes back. The next flush saves the new
// time. After a crash before that flush, the bucket is at worst empty.
//
// Names must keep their numbers, or the error is ErrNameMismatch. They must
// keep their Parent and Floor, too. After an error the old limits stay in
// force.
func (l *Limiter) SetLimits(limits *Limits) error {
	if limits == nil {
		return errors.New("stint: SetLimits: no limits")
	}
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	return l.setLimits(limits)
}

// setLimits puts limits in force. limitsMu is held.
func (l *Limiter) setLimits(limits *Limits) error {
	if err := l.limits.Load().sameTrees(limits); err != nil {
		return err
	}
	if err := l.store.Declare(limits.names); err != nil {
		return err
	}
	l.flusher.mu.Lock() // a save ends under the limits that it began under
	defer l.flusher.mu.Unlock()
	l.limits.Store(limits)
	l.hasShares.Store(limits.members != nil)
	l.directory.setLimits(limits, func(s *shard) {
		l.retireCountsLocked(s)
		s.changeLimitsLocked(limits, l.clock.Now())
	})
	return nil
}

// retireCountsLocked adds a shard's counts to those of replaced limits.
func (l *Limiter) retireCountsLocked(s *shard) {
	l.statsMu.Lock()
	defer l.statsMu.Unlock()
	for i, name := range s.limits.order {
		if c := s.countOf(uint32(i)); *c != (count{}) {
			past := l.past[name]
			l.past[name] = count{past.allowed + c.allowed, past.denied + c.denied}
		}
	}
}

// SetOverrides puts other overrides of one id in force, as Limits.With makes
// them, while decisions go on: a new plan, or Blocked for a while. Its buckets
// stay, as SetLimits says, and so do all others. The call takes microseconds,
// however many ids there are, unless the Name has an Override format. Such an
// override covers many buckets, and each bucket in memory is compared with it.
//
// Nothing is written to a limits file: a later SetLimits replaces the overrides
// of the id, too. After an error the old overrides stay in force.
func (l *Limiter) SetOverrides(id OverrideID, limits map[Name]Limit) error {
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	ls, err := l.limits.Load().With(id, limits)
	if err != nil {
		return err
	}
	l.limits.Store(ls)
	l.directory.setLimits(ls, func(s *shard) { s.limits = ls })
	for name := range limits {
		canonical, _ := ls.names.OverrideID(name, id.ID)
		l.directory.changeRules(name.Key(canonical), ls.settings[name].leading, l.clock)
	}
	return nil
}

// Declare adds Names that are not declared yet. They have no limit: they are
// for requests that bring their own. The other Names, and all limits, stay as
// they are. The error is ErrNameMismatch, or a ConfigError for a mistake.
func (l *Limiter) Declare(names Names) error {
	l.limitsMu.Lock()
	defer l.limitsMu.Unlock()
	select {
	case <-l.closed:
		return ErrClosed
	default:
	}
	old := l.limits.Load()
	ls := *old
	ls.names, ls.settings = maps.Clone(old.names), slices.Clone(old.settings)
	ls.order, ls.overrides = slices.Clone(old.order), slices.Clone(old.overrides)
	b := limitsBuilder{ls: &ls}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !ls.declares(name) {
			ls.names[name] = names[name]
			b.declare(name, names[name], Unlimited)
		}
		if spec := names[name]; !old.declares(name) && (spec.Parent != 0 || spec.Floor != 0) {
			b.wrong(name, errors.New("it has a Parent or a Floor: declare it with NewLimits"))
		}
	}
	if errs := append(b.errs, ls.names.mistakes()...); errs != nil {
		return errors.Join(errs...)
	}
	return l.setLimits(&ls)
}

// Event reports something to an operator when it happens. Health and Stats
// report it too.
type Event struct {
	Kind EventKind
	Time time.Time     // by the Limiter's clock
	Err  error         // what is wrong; of SaveEnded, how the save ended
	Path string        // of FileSetAside: the file's new path
	Step time.Duration // of ClockStepped: gain of the wall clock; negative if it was set back.
	//                    Of ClockWrong: from the last save to the wall clock
}

// EventKind says what an Event is about.
type EventKind uint8

// The kinds of events.
const (
	FlushFailed    EventKind = iota + 1 // the first failure in a row
	FlushRecovered                      // a flush succeeded after one that failed
	ClockStepped                        // the wall clock was set, or the machine slept
	FileSetAside                        // Open renamed a corrupt file, as Options.Recover asks
	SaveOverdue                         // a save, or upkeep, takes longer than CommitTimeout
	SaveEnded                           // an overdue save, or upkeep, ended
	FileGone                            // the file is not at its path: ErrGone
	FileBack                            // the file, or a new one with all buckets, is there
	ClockWrong                          // Open does not believe the wall clock; Health reports it while that lasts
)

var eventKinds = [...]string{
	FlushFailed: "flush failed", FlushRecovered: "flush recovered",
	ClockStepped: "clock stepped", ClockWrong: "clock wrong", FileSetAside: "file set aside",
	SaveOverdue: "save overdue", SaveEnded: "overdue save ended", FileGone: "file gone", FileBack: "file back",
}

// String returns what happened, in two or three words.
func (k EventKind) String() string {
	if k > 0 && int(k) < len(eventKinds) {
		return eventKinds[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// emit sends an event to the listener. It does not wait: if 64 events are
// queued, the listener misses this one.
func (f *flusher) emit(e Event) {
	e.Time = time.Unix(0, f.clock.Now())
	select {
	case f.events <- e:
	default:
	}
}

// deliver calls listen with each event, until no more come.
func (f *flusher) deliver(listen func(Event)) {
	defer close(f.delivered)
	for {
		select {
		case e := <-f.events:
			listen(e)
		case <-f.silent:
			for {
				select {
				case e := <-f.events:
					listen(e)
				default:
					return
				}
			}
		}
	}
}

// The errors of Open, OpenBolt, New and SetLimits.
var (
	// ErrLocked: another Limiter, of this process or another one, kept the file
	// for all of LockTimeout.
	ErrLocked = boltstore.ErrLocked

	// ErrCorrupt: the file does not contain what stint wrote.
	ErrCorrupt = fileformat.ErrCorrupt

	// ErrFormat: the file belongs to another program or to a newer version.
	ErrFormat = fileformat.ErrFormat

	// ErrNameMismatch: the file has another label for a number of the Names, or
	// another number for a label.
	ErrNameMismatch = boltstore.ErrNameMismatch
)

// ErrGone: the file was removed or renamed, or another one has its name. Flush
// and Close return it, and decisions return it with ErrNotDurable. The Limiter
// makes a removed file anew, with all buckets, within moments.
var ErrGone = boltstore.ErrGone

// The errors of a decision. Unless the error is ErrNotDurable, nothing was
// spent.
var (
	// ErrClosed: the Limiter is closed.
	ErrClosed = boltstore.ErrClosed

	// ErrUnknownName: the key's Name is not declared.
	ErrUnknownName = errors.New("stint: unknown name")

	// ErrInvalidID: the id is empty, longer than 512 bytes, or not of its
	// limit's format.
	ErrInvalidID = spell.ErrInvalidID

	// ErrNegativeCost: the cost is below 0.
	ErrNegativeCost = errors.New("stint: negative cost")

	// ErrCostOverBurst: the cost is more than the bucket can hold.
	ErrCostOverBurst = errors.New("stint: cost over burst")

	// ErrDuplicateKey: one call names the same bucket twice.
	ErrDuplicateKey = errors.New("stint: duplicate key")

	// ErrQueueFull: the queue is as long as the limit's Queue allows.
	ErrQueueFull = errors.New("stint: queue is full")

	// ErrBlocked: the limit of the id is Blocked, so its turn never comes.
	ErrBlocked = errors.New("stint: id is blocked")

	// ErrShare: the call does not support limits that share a total. Such a limit,
	// its total and its floor have no queue, and no call may spend from a floor
	// directly, or refund to it.
	ErrShare = errors.New("stint: not for shares of a total")

	// ErrNotDurable: the store could not make the decision durable; the tokens
	// may stay spent.
	ErrNotDurable = errors.New("stint: not durable")

	// ErrFull: memory holds MaxResident buckets, and none could be written to
	// the store to make space.
	ErrFull = errors.New("stint: too many buckets")
)
