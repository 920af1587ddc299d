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
		c.Decision, err = l.Do(ctx, c.Requests, c.Decisions) // steps save, acknowledge
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
	case wire.OpSetHold:
		err = l.SetHold(c.Keys[0], c.Until)
	case wire.OpReset:
		err = l.Reset(c.Keys...)
	case wire.OpReserve:
		c.Reservation, err = l.Reserve(c.Requests[0])
	case wire.OpWait:
		c.Decision, err = l.Wait(ctx, c.Requests[0])
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
	case wire.OpNames:
		c.Names = l.Limits().Names()
	case wire.OpNumber:
		c.Name, err = l.Number(c.Label)
	default:
		err = wire.ErrMessage
	}
	return err
}

// each decides each request by itself, and finds the error of each. Requests between
// two that have an error already are decided at once.
func (s *Server) each(c *wire.Call) {
	clear(c.Decisions) // of an earlier call
	for first, end := 0, 0; first < len(c.Requests); first = end + 1 {
		for end = first; end < len(c.Requests) && c.Errs[end] == nil; end++ {
		}
		err := s.limiter.DoEach(context.Background(), c.Requests[first:end], c.Decisions[first:end])
		if each := (stint.EachError)(nil); errors.As(err, &each) {
			copy(c.Errs[first:end], each)
		}
	}
}
