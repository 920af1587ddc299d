package modeltest

import "time"

// Key is one bucket: the number of a limit, and an id.
type Key struct {
	Name uint16
	ID   string
}

// Level is the durability of a limit.
type Level uint8

// The levels, weakest first.
const (
	Memory Level = iota + 1
	Flushed
	Leased
	Synced
)

// Limit is the limit of a bucket.
type Limit struct {
	Burst, Count int64
	Period       time.Duration
	Queue        int64
	Level        Level
	Blocked      bool // nothing is allowed; the other fields are 0

	most int64 // tolerance for clamping, if more than Tau
}

// T returns the time that a token takes to come back, in nanoseconds.
func (l Limit) T() int64 { return (int64(l.Period) + l.Count - 1) / l.Count }

// Tau returns the time that an empty bucket takes to refill.
func (l Limit) Tau() int64 { return l.Burst * l.T() }

// clamp returns how far ahead of now a TAT may be.
func (l Limit) clamp() int64 { return max(l.most, l.Tau()) }

// Limits are the limits in force. A Name that is declared and off is nil.
type Limits struct {
	Names     map[uint16]*Limit
	Overrides []Override
}

// Override is the limit of one key.
type Override struct {
	Key   Key
	Limit Limit
}

// For returns the limit of a key, whether it counts tokens, and whether its Name
// is declared. A limit that counts none is Blocked or off.
func (ls Limits) For(key Key) (l Limit, on, declared bool) {
	byName, declared := ls.Names[key.Name]
	for _, o := range ls.Overrides {
		if o.Key == key && declared {
			return o.Limit, !o.Limit.Blocked, true
		}
	}
	if byName == nil {
		return Limit{}, false, declared
	}
	return *byName, !byName.Blocked, true
}

// Op is a method of the System.
type Op string

// The methods of a limiter, and Tick.
const (
	Spend        Op = "spend"
	SpendUpTo    Op = "spend up to"
	Check        Op = "check"
	Refund       Op = "refund"
	SpendAll     Op = "spend all"
	RefundAll    Op = "refund all"
	DoEach       Op = "do each"
	Do           Op = "do"
	Reserve      Op = "reserve"
	Delay        Op = "delay"
	Cancel       Op = "cancel"
	Hold         Op = "hold"
	SetHold      Op = "set hold"
	Reset        Op = "reset"
	SetLimits    Op = "set limits"
	SetOverrides Op = "set overrides"
	Flush        Op = "flush"
	Tick         Op = "tick" // FlushInterval passes
	Inspect      Op = "bucket"
	Buckets      Op = "buckets"
	Stats        Op = "stats"
	Snapshot     Op = "snapshot"
	Compact      Op = "compact"
	Close        Op = "close"
)

// Mode is the role of a Request in a SpendAll.
type Mode uint8

// The modes of stint.
const (
	CheckAndSpend Mode = iota
	CheckOnly
	SpendOnly
)

// Request is a key and a cost.
type Request struct {
	Key   Key
	Cost  int64  `json:",omitempty"`
	Leave int64  `json:",omitempty"` // tokens that must remain
	Mode  Mode   `json:",omitempty"`
	Limit *Limit `json:",omitempty"` // nil: the one in force
	Spent int64  `json:",omitempty"` // of RefundAll: instant of the spend; 0: unknown
}

// Call is one call of the System, at the instant Now of its clock.
type Call struct {
	Op     Op
	Now    int64
	Reqs   []Request `json:",omitempty"`
	Place  int       `json:",omitempty"` // of Delay and Cancel: the reply of Reserve
	Until  int64     `json:",omitempty"` // of Hold and SetHold
	Limits *Limits   `json:",omitempty"` // of SetLimits; of SetOverrides, one override, or none to remove it
}

// Decision is the answer to a request.
type Decision struct {
	Allowed                bool
	Remaining              int64
	RetryAfter, ResetAfter time.Duration
}

// Listed is a bucket as Bucket and Buckets show it.
type Listed struct {
	Key       Key
	Decision  Decision // Remaining and ResetAfter
	HeldUntil int64    // 0 if it is not held
}

// Failure is the kind of an error.
type Failure string

// The failures that the model knows. Any other is a failure of the test.
const (
	NotDurable    Failure = "not durable"
	Full          Failure = "full"
	NotLoaded     Failure = "not loaded"
	QueueFull     Failure = "queue full"
	CostOverBurst Failure = "cost over burst"
	UnknownName   Failure = "unknown name"
	IsBlocked     Failure = "blocked"
	Crashed       Failure = "crashed" // the process died in the call
)

// Reply is what a call returned.
type Reply struct {
	Decisions []Decision    `json:",omitempty"`
	Failure   Failure       `json:",omitempty"`
	Place     int           `json:",omitempty"`
	Delay     time.Duration `json:",omitempty"`
	Listed    []Listed      `json:",omitempty"`
	Resident  int64         `json:",omitempty"`
	Taken     int64         `json:",omitempty"` // of SpendUpTo
	Until     int64         `json:",omitempty"` // of Hold; 0 if there is no hold
}

// System is a limiter with a clock that each call sets.
type System interface {
	Do(Call) Reply
	Crash() // later saves do not reach the store
}

// Env describes the surroundings of the System.
type Env struct {
	Open        func(Limits) System // on the store that the last System left
	Disk        *Disk               // nil if saves and loads never fail
	Levels      []Level             // levels of the limits; nil means all
	MaxResident int                 // 0 means no bound
	Crashes     bool                // the System may crash between calls
	File        bool                // it has Snapshot and Compact
	Ticks       bool                // it has Tick
	Dead        func() bool         // whether the process was killed; may be nil
	TakeAway    func() (put func()) // puts another file in place of the System's; may be nil
	// Settle waits until the goroutines of the System are idle. nil means that
	// commits have no timeout.
	Settle func()

	// DelayFlush begins a flush that stops when it reads the clock or when it
	// saves. It reports whether the flush has stopped. release continues the
	// flush, and waits for its end.
	DelayFlush func(at string) (stopped bool, release func() Reply)
}
