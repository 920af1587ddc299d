package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// reason returns the text of an error, without the library's prefix.
func reason(err error) string { return strings.TrimPrefix(err.Error(), "stint: ") }

// replyError is a reply to a command that failed, with its code, such as NOAUTH.
type replyError string

func (e replyError) Error() string { return string(e) }

// errWrongCount is the error of a command that does not take so many arguments.
var errWrongCount = errors.New("wrong number of arguments")

// failed writes the reply of a command that returned an error.
func (c *serveConn) failed(err error, command string) {
	code := "ERR "
	switch {
	case errors.As(err, new(replyError)):
		code = ""
	case errors.Is(err, errWrongCount):
		err = fmt.Errorf("%w for '%s' command", err, command)
	case errors.Is(err, stint.ErrCostOverBurst):
		code = "OVERBURST "
	case errors.Is(err, stint.ErrNotDurable):
		code = "NOTDURABLE "
	case errors.Is(err, stint.ErrQueueFull):
		code = "QUEUEFULL "
	case errors.Is(err, stint.ErrBlocked):
		code = "BLOCKED "
	}
	c.out.Error(code + reason(err))
}

// done replies OK, unless there is an error to return.
func (c *serveConn) done(err error) error {
	if err == nil {
		c.out.Simple("OK")
	}
	return err
}

// key returns the bucket of a label and an id.
func (s *server) key(label, id []byte) (stint.Key, error) {
	name, ok := s.labels[string(label)]
	if !ok && len(s.labels) == 0 {
		return stint.Key{}, errors.New("no limits: start stint serve with --limits")
	}
	if !ok {
		return stint.Key{}, fmt.Errorf("no limit %q", label)
	}
	spec, _ := s.limiter.Limits().Spec(name)
	if spec.IDs == nil {
		spec.IDs = stint.AnyID
	}
	canonical, err := spec.IDs.Canonical(string(id))
	return name.Key(canonical), err
}

// triples reads "LABEL ID COST" once or more.
func (s *server) triples(args [][]byte) (requests []stint.Request, err error) {
	for ; len(args) > 0; args = args[3:] {
		key, err := s.key(args[0], args[1])
		if err != nil {
			return nil, err
		}
		cost, err := strconv.ParseInt(string(args[2]), 10, 64)
		if err != nil || cost < 0 {
			return nil, fmt.Errorf("cost %q: want a whole number from 0", args[2])
		}
		requests = append(requests, stint.Request{Key: key, Cost: cost})
	}
	return requests, nil
}

// together is STINT.SPEND, CHECK or REFUND. The reply is that of CL.THROTTLE, for
// the limit that decided, and its label.
func (c *serveConn) together(args [][]byte, act func(...stint.Request) (stint.Decision, error), mode stint.Mode) error {
	if len(args)%3 != 0 {
		return errWrongCount
	}
	requests, err := c.server.triples(args)
	if err != nil {
		return err
	}
	now := c.server.limiter.Now()
	for i := range requests {
		requests[i].Mode, requests[i].Spent = mode, now
	}
	d, err := act(requests...)
	if err != nil {
		return err
	}
	spec, _ := c.server.limiter.Limits().Spec(d.Key.Name)
	c.out.Array(6)
	c.five(d.Limit.Burst, d.Remaining, &d)
	c.out.Bulk(spec.Label)
	return nil
}

func (c *serveConn) reset(args [][]byte) error {
	if len(args)%2 != 0 {
		return errWrongCount
	}
	var keys []stint.Key
	for ; len(args) > 0; args = args[2:] {
		key, err := c.server.key(args[0], args[1])
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	return c.done(c.server.limiter.Reset(keys...))
}

// delete is DEL: it fills buckets of CL.THROTTLE, and returns how many of them
// were not full.
func (c *serveConn) delete(args [][]byte) error {
	n, now := int64(0), c.server.limiter.Now()
	var keys []stint.Key
	for _, id := range args {
		if len(id) == 0 || len(id) > 512 {
			continue // CL.THROTTLE has no such key
		}
		key := c.server.throttle.Key(string(id))
		if slices.Contains(keys, key) {
			continue // it counts once, as in Redis
		}
		b, err := c.server.limiter.Bucket(key)
		if err != nil {
			return err
		}
		if b.ResetAfter > 0 || b.HeldUntil.After(now) {
			n++
		}
		keys = append(keys, key)
	}
	if err := c.server.limiter.Reset(keys...); err != nil {
		return err
	}
	c.out.Int(n)
	return nil
}

// hold is STINT.HOLD. Zero seconds end a hold.
func (c *serveConn) hold(args [][]byte) error {
	key, err := c.server.key(args[0], args[1])
	if err != nil {
		return err
	}
	period, err := wholeSeconds(args[2])
	if err != nil {
		return err
	}
	if period <= 0 {
		return c.done(c.server.limiter.SetHold(key, time.Time{}))
	}
	_, err = c.server.limiter.Hold(key, c.server.limiter.Now().Add(period))
	return c.done(err)
}

// wait is STINT.WAIT. Only this connection waits. As with BLPOP, zero seconds are
// no bound.
func (c *serveConn) wait(args [][]byte) error {
	requests, err := c.server.triples(args[:3])
	if err != nil {
		return err
	}
	timeout, err := wholeSeconds(args[3])
	if err != nil {
		return err
	}
	if c.send() != nil { // the replies before this one do not wait
		c.quits = true
		return nil
	}
	ctx, cancel := context.WithTimeout(c.server.ending, cmp.Or(timeout, math.MaxInt64))
	defer cancel()
	c.whileConnected(cancel, func() { _, err = c.server.limiter.Wait(ctx, requests[0]) })
	switch {
	case err == nil:
		c.out.Int(1)
	case c.server.ending.Err() != nil:
		return replyError("ERR the server is ending")
	case errors.Is(err, context.DeadlineExceeded):
		c.out.Int(0)
	case errors.Is(err, context.Canceled):
		c.quits = true
	default:
		return err
	}
	return nil
}

func wholeSeconds(arg []byte) (time.Duration, error) {
	n, err := strconv.ParseInt(string(arg), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("seconds %q: want a whole number from 0", arg)
	}
	return time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second, nil
}
