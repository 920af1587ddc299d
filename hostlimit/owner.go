package hostlimit

import (
	"context"
	"errors"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
)

// do carries out a call with the Limiter of this process, for this process and
// for its guests.
func (s *Server) do(ctx context.Context, c *wire.Call) (err error) {
	l := s.limiter
	switch c.Op {
	case wire.OpSpend:
		c.Decision, err = l.Do(ctx, c.Requests, c.Decisions)
	case wire.OpEach:
		s.each(c)
	case wire.OpRefund:
		c.Decision, err = l.Refund(c.Requests...)
	case wire.OpBucket:
		var k stint.Bucket
		k, err = l.Bucket(c.Keys[0])
		c.Bucket = &k
	case wire.OpBuckets:
		c.Buckets = l.Buckets(c.Name)
	case wire.OpHeld:
		c.Held = l.Held()
	case wire.OpHold:
		c.Time, err = l.Hold(c.Keys[0], c.Until)
	case wire.OpRelease:
		err = l.Release(c.Keys[0])
	case wire.OpReset:
		err = l.Reset(c.Keys...)
	case wire.OpReserve:
		c.Reservation, err = l.Reserve(c.Requests[0])
	case wire.OpWait:
		c.Time, err = l.Wait(ctx, c.Requests[0])
	case wire.OpFlush:
		err = l.Flush()
	case wire.OpStats:
		st := l.Stats()
		c.Stats = &st
	case wire.OpHealth:
		err = l.Health()
	case wire.OpSnapshot:
		c.Size, err = l.Snapshot(c.Writer)
	case wire.OpNow:
		c.Time = l.Now()
	case wire.OpDeclare:
		err = l.Declare(c.Names)
	case wire.OpNames:
		c.Names = l.Limits().Names()
	case wire.OpNumber:
		if err = s.declareAll(c.Label); err == nil {
			c.Name, err = l.Number(c.Label)
		}
	default:
		err = wire.ErrMessage
	}
	return err
}

// each decides each request by itself, and finds the error of each.
func (s *Server) each(c *wire.Call) {
	c.Errs = make([]error, len(c.Requests))
	joined, ok := s.limiter.DoEach(context.Background(), c.Requests, c.Decisions).(interface{ Unwrap() []error })
	if !ok {
		return
	}
	errs := joined.Unwrap() // one for each request without a decision, in order
	for i := range c.Decisions {
		if c.Decisions[i] == (stint.Decision{}) && len(errs) > 0 {
			c.Errs[i], errs = errors.Unwrap(errs[0]), errs[1:]
		}
	}
}

// doValid carries out a call. Of an OpEach it makes another one, with the requests
// that fit into a message and have no error yet.
func doValid(ctx context.Context, to caller, c *wire.Call) error {
	if c.Op != wire.OpEach {
		return to.do(ctx, c)
	}
	if c.Errs == nil {
		c.Errs = make([]error, len(c.Requests))
	}
	good := wire.Call{Op: wire.OpEach}
	var at []int
	for i := range c.Requests {
		if c.Errs[i] == nil {
			c.Errs[i] = wire.CheckRequest(&c.Requests[i])
		}
		if c.Decisions[i] = (stint.Decision{}); c.Errs[i] == nil {
			good.Requests = append(good.Requests, c.Requests[i])
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return nil
	}
	good.Decisions = make([]stint.Decision, len(at))
	if err := to.do(ctx, &good); err != nil {
		return err
	}
	for k, i := range at {
		c.Decisions[i], c.Errs[i] = good.Decisions[k], good.Errs[k]
	}
	return nil
}
