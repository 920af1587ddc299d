package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
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
	Keys     []stint.Key     // OpBucket, OpHold and OpSetHold have one
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
// of OpEach have their own errors. A call that is carried out here may have to be sent
// next time, so it has the same bounds; the Limiter itself checks each request and key.
func (c *Call) Check(here bool) error {
	if n := len(c.Requests); n > MaxRequests {
		return fmt.Errorf("%w: %d requests, want at most %d", ErrTooLong, n, MaxRequests)
	}
	if n := len(c.Label); n > MaxLabel {
		return fmt.Errorf("%w: a label of %d bytes, want at most %d", ErrTooLong, n, MaxLabel)
	}
	if here {
		return nil
	}
	for i := range c.Requests {
		err := checkRequest(&c.Requests[i])
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
	return nil
}

// checkRequest returns an error if a request does not fit into a message.
func checkRequest(q *stint.Request) error {
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

// Arguments writes or reads the arguments of the call.
func (c *Call) Arguments(b *Body) {
	switch c.Op {
	case OpSpend:
		each := c.Decisions != nil
		b.bools(&each, &c.MayEnd, &c.Ended)
		list(b, &c.Requests, 0, MaxRequests, (*Body).request)
		if each && !b.writes {
			c.Decisions = make([]stint.Decision, len(c.Requests))
		}
	case OpEach:
		c.each(b)
	case OpRefund:
		list(b, &c.Requests, 0, MaxRequests, (*Body).request)
	case OpReserve, OpWait:
		list(b, &c.Requests, 1, 1, (*Body).request)
		signed(b, &c.Within)
	case OpBucket, OpSetHold, OpHold:
		list(b, &c.Keys, 1, 1, (*Body).key)
		b.time(&c.Until)
	case OpReset:
		list(b, &c.Keys, 0, MaxRequests, (*Body).key)
	case OpBuckets:
		b.name(&c.Name)
	case OpDelay, OpCancel:
		signed(b, &c.ID)
	case OpDeclare:
		b.names(&c.Names)
	case OpNumber:
		b.text(&c.Label, MaxLabel)
	}
}

// each writes the requests of OpEach that have no error, or reads them.
func (c *Call) each(b *Body) {
	if b.writes {
		n := uint64(0)
		for _, err := range c.Errs {
			if err == nil {
				n++
			}
		}
		unsigned(b, &n, MaxRequests)
		for i := range c.Requests {
			if c.Errs[i] == nil {
				b.request(&c.Requests[i])
			}
		}
		return
	}
	list(b, &c.Requests, 0, MaxRequests, func(b *Body, q *stint.Request) {
		b.request(q)
		c.Errs = append(c.Errs, b.zone)
		b.zone = nil
	})
	c.Decisions = make([]stint.Decision, len(c.Requests))
}

// Read reads a call. It uses the space for requests that an earlier call has left
// in c.
func (c *Call) Read(o Op, b *Body) error {
	*c = Call{Op: o, Requests: c.Requests[:0]}
	if o < OpSpend || o >= OpNow {
		return fmt.Errorf("%w: op %d", ErrMessage, o)
	}
	c.Arguments(b)
	c.Wrong = b.zone
	return b.End()
}

// Answer writes or reads the answer to the call, without the error. WriteLong writes
// the long ones.
func (c *Call) Answer(b *Body) {
	switch c.Op {
	case OpSpend, OpRefund, OpWait:
		b.decision(&c.Decision, c.Requests)
		for i := range c.Decisions {
			b.decision(&c.Decisions[i], c.Requests[i:i+1])
		}
	case OpEach:
		for i := range c.Requests {
			if !b.writes && c.Errs[i] != nil { // it was not sent
				c.Decisions[i] = stint.Decision{}
				continue
			}
			if b.Error(&c.Errs[i]); c.Errs[i] == nil {
				b.decision(&c.Decisions[i], c.Requests[i:i+1])
			}
		}
	case OpHold:
		b.time(&c.Time)
	case OpBucket:
		if !b.writes {
			c.Bucket = new(stint.Bucket)
		}
		b.bucket(c.Bucket)
	case OpReserve, OpDelay:
		signed(b, &c.ID)
		signed(b, &c.Delay)
	case OpNumber:
		b.name(&c.Name)
	case OpSnapshot:
		signed(b, &c.Size)
	default:
		if !b.writes {
			c.readLong(b)
		}
	}
}

// ReadAnswer reads an answer. The parts of a long one are put together.
func (c *Call) ReadAnswer(b *Body) error {
	c.Answer(b)
	return b.End()
}

// WriteLong writes to w an answer that may be too long for a frame.
func (c *Call) WriteLong(w io.Writer) error {
	b := Body{writes: true}
	write := func(more int) (err error) {
		if len(b.b) > more {
			_, err = w.Write(b.b)
			b.b = b.b[:0]
		}
		return err
	}
	switch c.Op {
	case OpStats: // long with many Names
		b.stats(c.Stats)
	case OpNames:
		b.names(&c.Names)
	case OpHeld:
		for h := range c.Held {
			b.held(&h)
			if err := write(PartSize); err != nil {
				return err
			}
		}
	case OpBuckets:
		for k, err := range c.Buckets {
			if err == nil {
				b.bucket(&k)
				err = write(PartSize)
			}
			if err != nil {
				return err
			}
		}
	}
	return write(0)
}

// readLong reads what WriteLong has written.
func (c *Call) readLong(b *Body) {
	switch c.Op {
	case OpStats:
		c.Stats = new(stint.Stats)
		b.stats(c.Stats)
	case OpNames:
		b.names(&c.Names)
	case OpHeld:
		c.Held = slices.Values(rest(b, (*Body).held))
	case OpBuckets:
		all := rest(b, (*Body).bucket)
		c.Buckets = func(yield func(stint.Bucket, error) bool) {
			for _, k := range all {
				if !yield(k, nil) {
					return
				}
			}
		}
	}
}

func rest[T any](b *Body, item func(*Body, *T)) (all []T) {
	for len(b.b) > 0 {
		all = append(all, *new(T))
		item(b, &all[len(all)-1])
	}
	return all
}

// stats writes or reads Stats as JSON. An owner's have no Err.
func (b *Body) stats(st *stint.Stats) {
	if b.writes {
		text, _ := json.Marshal(st) // it has numbers and times
		b.Raw(text)
		return
	}
	if json.Unmarshal(b.b, st) != nil {
		b.fail()
	}
	b.b = nil
}
