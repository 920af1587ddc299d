package wire

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// Call is a call of a method, with its arguments and its answer. The Op says
// which fields it uses.
type Call struct {
	Op     Op
	Number uint32 // of a guest's call, in the owner
	Wrong  error  // ErrZone: the call cannot be carried out

	// The arguments.
	Requests []stint.Request // OpReserve and OpWait have one
	Given    []stint.Request // empty, with space for Requests that are given limits
	Keys     []stint.Key     // OpBucket, OpHold and OpRelease have one
	Name     stint.Name
	Names    stint.Names // of OpNames: the answer
	Label    string
	Until    time.Time
	ID       int64         // of a reservation
	MayEnd   bool          // of OpSpend: the caller's context may end
	Ended    bool          // of OpSpend: it has ended
	Within   time.Duration // of OpWait: negative if there is no deadline
	Writer   io.Writer     // of OpSnapshot

	// The answer. Decisions is an argument, too: if it is not nil, it has space
	// for a decision on each request.
	Decision    stint.Decision
	Decisions   []stint.Decision
	Errs        []error // of OpEach: nil or the error of each request; one with an error is not decided
	Bucket      *stint.Bucket
	Buckets     iter.Seq2[stint.Bucket, error]
	Held        iter.Seq[stint.Held]
	Time        time.Time
	Stats       *stint.Stats
	Reservation stint.Reservation
	Delay       time.Duration
	Size        int64
}

// Check returns an error if an argument does not fit into a message. The requests
// of OpEach have their own errors.
func (c *Call) Check() error {
	if n := len(c.Requests); n > MaxRequests {
		return fmt.Errorf("%w: %d requests, want at most %d", ErrTooLong, n, MaxRequests)
	}
	for i := range c.Requests {
		err := CheckRequest(&c.Requests[i])
		switch {
		case err == nil:
		case c.Op == OpEach:
			c.Errs[i] = cmp.Or(c.Errs[i], err)
		default:
			return err
		}
	}
	for _, key := range c.Keys {
		if err := checkID(key); err != nil {
			return err
		}
	}
	if n := len(c.Label); n > MaxLabel {
		return fmt.Errorf("%w: a label of %d bytes, want at most %d", ErrTooLong, n, MaxLabel)
	}
	return nil
}

// CheckRequest returns an error if a request does not fit into a message.
func CheckRequest(q *stint.Request) error {
	if q.Mode > stint.UpTo {
		return fmt.Errorf("hostlimit: there is no Mode %d", q.Mode)
	}
	if q.Limit.FollowsCalendar() || q.Limit.Durability > stint.Synced { // its text or level must be read again
		if err := q.Limit.Validate(); err != nil {
			return err
		}
	}
	return checkID(q.Key)
}

func checkID(key stint.Key) error {
	if n := len(key.ID); n > MaxID {
		return fmt.Errorf("%w: %d bytes, want at most %d", stint.ErrInvalidID, n, MaxID)
	}
	return nil
}

// The first byte of OpSpend.
const (
	spendEach   = 1 // the answer has a decision on each request
	spendMayEnd = 2
	spendEnded  = 4
	spendBits   = 7
)

// AppendArguments appends the arguments of the call.
func (c *Call) AppendArguments(b []byte) []byte {
	switch c.Op {
	case OpSpend:
		flags := byte(0)
		if c.Decisions != nil {
			flags |= spendEach
		}
		if c.MayEnd {
			flags |= spendMayEnd
		}
		if c.Ended {
			flags |= spendEnded
		}
		return appendRequests(append(b, flags), c.Requests)
	case OpEach:
		return appendRequests(b, c.undecided())
	case OpRefund:
		return appendRequests(b, c.Requests)
	case OpReserve:
		return appendRequest(b, &c.Requests[0])
	case OpWait:
		return binary.AppendVarint(appendRequest(b, &c.Requests[0]), int64(c.Within))
	case OpBucket, OpRelease:
		return appendKey(b, c.Keys[0])
	case OpBuckets:
		return binary.AppendUvarint(b, uint64(c.Name))
	case OpHold:
		return appendTime(appendKey(b, c.Keys[0]), c.Until)
	case OpReset:
		b = binary.AppendUvarint(b, uint64(len(c.Keys)))
		for _, key := range c.Keys {
			b = appendKey(b, key)
		}
		return b
	case OpDelay, OpCancel:
		return binary.AppendVarint(b, c.ID)
	case OpOffer, OpDeclare:
		return AppendNames(b, c.Names)
	case OpNumber:
		return appendBytes(b, c.Label)
	}
	return b
}

// undecided returns the requests of OpEach that have no error.
func (c *Call) undecided() []stint.Request {
	if errors.Join(c.Errs...) == nil {
		return c.Requests
	}
	var reqs []stint.Request
	for i, err := range c.Errs {
		if err == nil {
			reqs = append(reqs, c.Requests[i])
		}
	}
	return reqs
}

// Read reads the arguments of a call. It uses the space for requests that an
// earlier call has left in c.
func (c *Call) Read(o Op, r *Body) error {
	*c = Call{Op: o, Requests: c.Requests[:0]}
	switch o {
	case OpSpend:
		flags := r.uint(spendBits)
		c.Requests = r.requests(c.Requests)
		if flags&spendEach != 0 {
			c.Decisions = make([]stint.Decision, len(c.Requests))
		}
		c.MayEnd, c.Ended = flags&spendMayEnd != 0, flags&spendEnded != 0
		if c.Ended && !c.MayEnd {
			r.fail()
		}
	case OpEach:
		c.Requests = r.requests(c.Requests)
		c.Decisions = make([]stint.Decision, len(c.Requests))
		c.Errs = make([]error, len(c.Requests))
		for i, err := range r.zones {
			c.Errs[i] = err
		}
		return r.End()
	case OpRefund:
		c.Requests = r.requests(c.Requests)
	case OpReserve:
		c.Requests = append(c.Requests, r.request())
	case OpWait:
		c.Requests, c.Within = append(c.Requests, r.request()), time.Duration(r.Int())
	case OpBucket, OpRelease:
		c.Keys = []stint.Key{r.key()}
	case OpBuckets:
		c.Name = stint.Name(r.uint(math.MaxUint16))
	case OpHold:
		c.Keys, c.Until = []stint.Key{r.key()}, r.time()
	case OpReset:
		for range r.uint(MaxRequests) {
			if c.Keys = append(c.Keys, r.key()); r.bad {
				break
			}
		}
	case OpDelay, OpCancel:
		c.ID = r.Int()
	case OpOffer, OpDeclare:
		c.Names = r.Names()
	case OpNumber:
		c.Label = string(r.bytes(MaxLabel))
	case OpNames, OpFlush, OpStats, OpHealth, OpSnapshot, OpHeld:
	default:
		return fmt.Errorf("%w: op %d", ErrMessage, o)
	}
	c.Wrong = r.zone
	return r.End()
}

// AppendAnswer appends the answer to the call, without the error. The lists of
// OpBuckets, OpHeld and OpNames, and Stats, are left out, because they are sent in
// parts.
func (c *Call) AppendAnswer(b []byte) []byte {
	switch c.Op {
	case OpSpend:
		b = appendDecision(b, &c.Decision, c.Requests)
		for i := range c.Decisions {
			b = appendDecision(b, &c.Decisions[i], c.Requests[i:i+1])
		}
	case OpEach:
		for i := range c.Decisions {
			if b = AppendError(b, c.Errs[i]); c.Errs[i] == nil {
				b = appendDecision(b, &c.Decisions[i], c.Requests[i:i+1])
			}
		}
	case OpRefund:
		b = appendDecision(b, &c.Decision, c.Requests)
	case OpHold, OpWait:
		b = appendTime(b, c.Time)
	case OpBucket:
		b = AppendBucket(b, c.Bucket)
	case OpReserve:
		b = binary.AppendVarint(binary.AppendVarint(b, c.ID), int64(c.Delay))
	case OpDelay:
		b = binary.AppendVarint(b, int64(c.Delay))
	case OpNumber:
		b = binary.AppendUvarint(b, uint64(c.Name))
	case OpSnapshot:
		b = binary.AppendVarint(b, c.Size)
	}
	return b
}

// ReadAnswer reads what AppendAnswer has appended, and the parts.
func (c *Call) ReadAnswer(r *Body) error {
	switch c.Op {
	case OpSpend:
		c.Decision = r.decision(c.Requests)
		for i := range c.Decisions {
			c.Decisions[i] = r.decision(c.Requests[i : i+1])
		}
	case OpEach:
		for i := range c.Requests {
			c.Decisions[i] = stint.Decision{}
			if c.Errs[i] != nil {
				continue
			}
			if c.Errs[i] = r.Error(); c.Errs[i] == nil {
				c.Decisions[i] = r.decision(c.Requests[i : i+1])
			}
		}
	case OpRefund:
		c.Decision = r.decision(c.Requests)
	case OpHold, OpWait:
		c.Time = r.time()
	case OpBucket:
		k := r.bucket()
		c.Bucket = &k
	case OpBuckets:
		all := list(r, (*Body).bucket)
		c.Buckets = func(yield func(stint.Bucket, error) bool) {
			for _, k := range all {
				if !yield(k, nil) {
					return
				}
			}
		}
	case OpHeld:
		c.Held = slices.Values(list(r, (*Body).held))
	case OpReserve:
		c.ID, c.Delay = r.Int(), time.Duration(r.Int())
	case OpDelay:
		c.Delay = time.Duration(r.Int())
	case OpNames:
		c.Names = r.Names()
	case OpNumber:
		c.Name = stint.Name(r.uint(math.MaxUint16))
	case OpSnapshot:
		c.Size = r.Int()
	case OpStats:
		st, ok := readStats(r.b)
		if c.Stats = &st; !ok {
			r.fail()
		}
		r.b = nil
	}
	return r.End()
}

func list[T any](r *Body, read func(*Body) T) (all []T) {
	for len(r.b) > 0 {
		all = append(all, read(r))
	}
	return all
}

// wireStats are Stats whose errors are as AppendError appends them.
type wireStats struct {
	stint.Stats
	FlushErr, CommitErr, FileErr []byte
}

// AppendStats appends Stats.
func AppendStats(b []byte, st *stint.Stats) []byte {
	take := func(err *error) (b []byte) {
		if *err != nil {
			b, *err = AppendError(nil, *err), nil
		}
		return b
	}
	w := wireStats{Stats: *st}
	w.FlushErr, w.CommitErr, w.FileErr = take(&w.Flush.Err), take(&w.Commit.Err), take(&w.File.Err)
	text, _ := json.Marshal(w) // it has numbers, times and bytes
	return append(b, text...)
}

func readStats(b []byte) (stint.Stats, bool) {
	var w wireStats
	if json.Unmarshal(b, &w) != nil {
		return stint.Stats{}, false
	}
	for err, b := range map[*error][]byte{&w.Flush.Err: w.FlushErr, &w.Commit.Err: w.CommitErr, &w.File.Err: w.FileErr} {
		if len(b) > 0 {
			*err = NewBody(b).Error()
		}
	}
	return w.Stats, true
}
