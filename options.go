package stint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
// changed since the last flush, it waits for a flush. So among ids that are all
// new, one in MaxResident waits, and those that come meanwhile. Buckets with a
// queue stay in memory. If none can leave, the error is ErrFull.
//
// MaxResident does not bound the following. The index of the journal takes
// 105 MB, or 200 bytes for each of MaxResident up to 1.3 million, whichever is
// more. The filter of stored buckets takes 6 to 12 bytes for each of them.
// Holds and queues take a few hundred bytes each. The system counts pages of
// the file that were read as resident memory, and reclaims them when it needs
// to.
type Options struct {
	Durability    Durability       // of limits that name none; default Flushed
	FlushInterval time.Duration    // default 1s
	MaxResident   int              // buckets in memory, within a few per cent; default 1<<20
	LockTimeout   time.Duration    // Open waits so long for the file lock; default 1s
	CommitTimeout time.Duration    // longest wait for a commit; default 5s, then ErrNotDurable
	FailOpen      bool             // answer of Allow if Spend returns an error; default false
	Recover       bool             // Open renames a corrupt file to PATH.corrupt-TIME
	OnEvent       func(Event)      // called with one event at a time; must not call Close
	Now           func() time.Time // for tests and simulations; must not go backwards
}

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

// Limit is how much may be spent: at most Burst tokens at once, and Count
// tokens in each Period as time goes on.
type Limit struct {
	Burst  int64         // tokens in a full bucket
	Count  int64         // tokens that return in a Period, evenly spread
	Period time.Duration // at least a nanosecond for each of Count

	Queue      int64      // most tokens that may queue; 0 means no bound
	Durability Durability // 0 means the Limiter's default
}

// Two Limits without arithmetic, for all ids or for those of an Override.
var (
	// Unlimited is the absence of a limit: every request is allowed.
	Unlimited = Limit{Burst: math.MaxInt64, Period: -1}

	// Blocked denies every request, whatever its cost, with the RetryAfter and
	// ResetAfter of math.MaxInt64 nanoseconds, 292 years. Reserve and Wait
	// return ErrBlocked; requests that wait already still go. The bucket stays
	// as it is for another limit: Refund changes nothing.
	Blocked = Limit{Period: -1}
)

// PerSecond returns the limit of n in a second, which may come all at once.
func PerSecond(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Second} }

// PerMinute returns the limit of n in a minute, which may come all at once.
func PerMinute(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Minute} }

// PerHour returns the limit of n in an hour, which may come all at once.
func PerHour(n int64) Limit { return Limit{Burst: n, Count: n, Period: time.Hour} }

// PerDay returns the limit of n in 24 hours, which may come all at once.
func PerDay(n int64) Limit { return Limit{Burst: n, Count: n, Period: 24 * time.Hour} }

// WithinWindow returns the limit that admits at most n tokens in any window of
// that length, its end excluded, wherever it begins: for the quota of a server.
// PerMinute(n) admits 2n−1, a full bucket and what returns within the minute.
//
// Burst and the Count−1 tokens that return within a window are n together. So
// Burst is 1 + n/50, rounded down, and Count is n − n/50: in the long run the
// limit uses 98 % of n, and all of an n under 50. A larger Burst b would cost
// more of it: Limit{Burst: b, Count: n - b + 1, Period: period}.
func WithinWindow(n int64, period time.Duration) Limit {
	return Limit{Burst: 1 + n/50, Count: n - n/50, Period: period}
}

// WithBurst returns the limit with another Burst: 1 spaces requests evenly.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// ParseLimit returns the limit that is written count/period, such as "5/1m",
// "300/180m" or "2/1w". Its burst is the count, unless another one follows:
// "5/1m burst 20". A period may have weeks, days of 24 hours, then a Go
// duration.
func ParseLimit(s string) (Limit, error) {
	steady, burst, hasBurst := strings.Cut(s, " burst ")
	count, period, _ := strings.Cut(steady, "/")
	if !hasBurst {
		burst = count
	}
	l, errs := Limit{}, [3]error{}
	l.Burst, errs[0] = spell.Int(burst)
	l.Count, errs[1] = spell.Int(count)
	l.Period, errs[2] = spell.Period(period)
	switch wrong := l.mistakes(); {
	case errs == [3]error{} && wrong == nil:
		return l, nil
	case errs == [3]error{}:
		if !hasBurst && wrong[0].Field == "burst" { // it was written as the count
			wrong[0].Field = "count"
		}
		errs[2] = wrong[0]
	case errs[1] != nil || errs[2] == nil || period == "":
		errs[2] = errors.New("want count/period such as 5/1m, 300/3h or 1/1d burst 10")
	}
	return Limit{}, fmt.Errorf("stint: limit %s: %w", spell.Quote(s), errs[2])
}

// String returns the limit as ParseLimit reads it, without Queue and
// Durability: "300/3h", "5/1m burst 20". For Unlimited and Blocked it returns
// "unlimited" and "blocked".
func (l Limit) String() string {
	switch l {
	case Unlimited:
		return "unlimited"
	case Blocked:
		return "blocked"
	}
	s := strconv.FormatInt(l.Count, 10) + "/" + spell.ShortPeriod(l.Period)
	if l.Burst != l.Count {
		s += " burst " + strconv.FormatInt(l.Burst, 10)
	}
	return s
}

// Validate returns nil, or a ConfigError for each field that is out of range.
func (l Limit) Validate() error {
	var errs []error
	for _, m := range l.mistakes() {
		errs = append(errs, &ConfigError{Err: m})
	}
	return errors.Join(errs...)
}

// Interval returns T, the time in which one token returns: Period ÷ Count,
// rounded up to a nanosecond. It is 0 for a limit that is not valid.
func (l Limit) Interval() time.Duration {
	r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.interval)
}

// Tolerance returns τ, the time in which an empty bucket refills: Burst times
// the Interval. It is 0 for a limit that is not valid.
func (l Limit) Tolerance() time.Duration {
	r, _, _ := newRate(l.Burst, l.Count, int64(l.Period))
	return time.Duration(r.tolerance)
}

// mistakes returns the fields that are out of range.
func (l Limit) mistakes() (errs []*spell.FieldError) {
	if l == Unlimited || l == Blocked {
		return nil
	}
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, &spell.FieldError{Field: field, Value: fmt.Sprint(value), Want: want})
		}
	}
	check(l.Burst >= 1, "burst", l.Burst, "at least 1")
	check(l.Count >= 1, "count", l.Count, "at least 1")
	check(l.Period >= 1, "period", spell.ShortPeriod(l.Period), "more than 0")
	if errs == nil { // each field is in range: one may be too large for the others
		_, field, want := newRate(l.Burst, l.Count, int64(l.Period))
		check(field != "burst", field, l.Burst, want)
		check(field != "count", field, l.Count, want)
	}
	check(l.Queue >= 0, "queue", l.Queue, "0 or more")
	check(l.Durability <= Synced, "durability", l.Durability, spell.WantDurability)
	return errs
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
	Err  error         // what is wrong; of SaveEnded, how the save ended
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
	SaveOverdue                         // a save, or upkeep, takes longer than CommitTimeout
	SaveEnded                           // an overdue save, or upkeep, ended
	FileGone                            // the file is not at its path: ErrGone
	FileBack                            // the file, or a new one with all buckets, is there
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
	case SaveOverdue:
		return "save overdue"
	case SaveEnded:
		return "overdue save ended"
	case FileGone:
		return "file gone"
	case FileBack:
		return "file back"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// tell passes an event on. It does not wait: a listener that has fallen far
// behind misses the event.
func (f *flusher) tell(e Event) {
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

	// ErrNameMismatch: the file has another meaning for a number or label of
	// the Names.
	ErrNameMismatch = boltstore.ErrNameMismatch
)

// ErrGone: the file was removed or renamed, or another one has its name. It is
// returned by Flush and Close, and with ErrNotDurable by decisions. A file that
// was removed is made anew, with all buckets, within moments.
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

	// ErrNotDurable: the store could not make the decision durable; the tokens
	// may stay spent.
	ErrNotDurable = errors.New("stint: not durable")

	// ErrFull: memory holds MaxResident buckets, and none could be written to
	// the store to make room.
	ErrFull = errors.New("stint: too many buckets")
)
