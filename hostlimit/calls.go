package hostlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit/internal/wire"
)

// methods are those of a Limiter. Each makes one Call.
type methods struct{ l *Limiter }

// Prefetch does nothing, because this process does not have the buckets.
func (m methods) Prefetch(stint.Key) {}

// Allow is stint.Limiter.Allow.
func (m methods) Allow(key stint.Key) bool {
	d, err := m.Spend(key, 1)
	return d.Allowed || err != nil && m.l.opts.LimiterOptions.FailOpen
}

// Spend is stint.Limiter.Spend.
func (m methods) Spend(key stint.Key, cost int64) (stint.Decision, error) {
	return m.spendOne(stint.Request{Key: key, Cost: cost})
}

// Check is stint.Limiter.Check.
func (m methods) Check(key stint.Key, cost int64) (stint.Decision, error) {
	return m.spendOne(stint.Request{Key: key, Cost: cost, Mode: stint.CheckOnly})
}

// SpendAll is stint.Limiter.SpendAll, for at most 256 requests.
func (m methods) SpendAll(reqs ...stint.Request) (stint.Decision, error) {
	return m.Do(context.Background(), reqs, nil)
}

// Do is stint.Limiter.Do, for at most 256 requests.
func (m methods) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if ds != nil {
		if len(ds) < len(reqs) {
			return stint.Decision{}, tooFew("Do", reqs, ds)
		}
		ds = ds[:len(reqs)]
	}
	c := wire.Call{
		Op: wire.OpSpend, Requests: reqs, Decisions: ds, MayEnd: ctx.Done() != nil, Ended: ctx.Err() != nil,
	}
	if err := m.l.do(ctx, &c); err != nil {
		clear(ds)
		return stint.Decision{}, err
	}
	return c.Decision, nil
}

func tooFew(method string, reqs []stint.Request, ds []stint.Decision) error {
	return fmt.Errorf("hostlimit: %s: %d requests, and space for %d decisions", method, len(reqs), len(ds))
}

// spendings has the Calls of Spend and Check that are over. Without it, 64 callers
// make 0.75 times as many decisions, on an idle machine and on a busy one.
var spendings = sync.Pool{New: func() any { return new(spending) }}

// spending is a Call of one request, with space for it.
type spending struct {
	wire.Call
	request, given [1]stint.Request
}

// spendOne is Do for one request, without a context.
func (m methods) spendOne(req stint.Request) (stint.Decision, error) {
	s := spendings.Get().(*spending)
	s.request[0] = req
	s.Call = wire.Call{Op: wire.OpSpend, Requests: s.request[:], Given: s.given[:0]}
	if err := m.l.do(context.Background(), &s.Call); err != nil {
		return stint.Decision{}, err
	}
	d := s.Decision
	spendings.Put(s) // the answer was the last use
	return d, nil
}

// DoEach is stint.Limiter.DoEach. It sends 256 requests in a message.
func (m methods) DoEach(ctx context.Context, reqs []stint.Request, ds []stint.Decision) error {
	if len(ds) < len(reqs) {
		return tooFew("DoEach", reqs, ds)
	}
	var errs stint.EachError
	for first := 0; first < len(reqs); first += wire.MaxRequests {
		end := min(first+wire.MaxRequests, len(reqs))
		c := wire.Call{
			Op: wire.OpEach, Requests: reqs[first:end], Decisions: ds[first:end], Errs: make([]error, end-first),
		}
		if err := m.l.do(ctx, &c); err != nil {
			clear(c.Decisions)
			for i := range c.Errs {
				c.Errs[i] = err
			}
		}
		for i, err := range c.Errs {
			if err == nil {
				continue
			}
			if errs == nil {
				errs = make(stint.EachError, len(reqs))
			}
			errs[first+i] = err
		}
	}
	if errs == nil {
		return nil
	}
	return errs
}

// Refund is stint.Limiter.Refund, for at most 256 requests.
func (m methods) Refund(reqs ...stint.Request) (stint.Decision, error) {
	c := wire.Call{Op: wire.OpRefund, Requests: reqs}
	if err := m.l.do(context.Background(), &c); err != nil {
		return stint.Decision{}, err
	}
	return c.Decision, nil
}

// Now returns the time by the owner's clock, or by this machine's while there is
// no owner. In a guest, it follows a step of the owner's clock from the next
// answer on, and without calls in less than a second.
func (m methods) Now() time.Time {
	c := wire.Call{Op: wire.OpNow}
	if err := m.l.do(context.Background(), &c); err != nil {
		return time.Now()
	}
	return c.Time
}

// Bucket is stint.Limiter.Bucket. A Limiter shows the limit of this process.
func (m methods) Bucket(key stint.Key) (stint.Bucket, error) {
	c := wire.Call{Op: wire.OpBucket, Keys: []stint.Key{key}}
	if err := m.l.do(context.Background(), &c); err != nil {
		return stint.Bucket{}, err
	}
	return *c.Bucket, nil
}

// Buckets is stint.Limiter.Buckets. A Limiter shows the limits of this process.
func (m methods) Buckets(name stint.Name) iter.Seq2[stint.Bucket, error] {
	return func(yield func(stint.Bucket, error) bool) {
		c := wire.Call{Op: wire.OpBuckets, Name: name}
		if err := m.l.do(context.Background(), &c); err != nil {
			yield(stint.Bucket{}, err)
			return
		}
		c.Buckets(yield)
	}
}

// Held is stint.Limiter.Held. If there is no owner, it yields nothing, and Health
// says why.
func (m methods) Held() iter.Seq[stint.Held] {
	return func(yield func(stint.Held) bool) {
		c := wire.Call{Op: wire.OpHeld}
		if m.l.do(context.Background(), &c) == nil {
			c.Held(yield)
		}
	}
}

// Hold is stint.Limiter.Hold.
func (m methods) Hold(key stint.Key, until time.Time) (end time.Time, err error) {
	c := wire.Call{Op: wire.OpHold, Keys: []stint.Key{key}, Until: until}
	err = m.l.do(context.Background(), &c)
	return c.Time, err
}

// SetHold is stint.Limiter.SetHold.
func (m methods) SetHold(key stint.Key, until time.Time) error {
	return m.l.do(context.Background(), &wire.Call{Op: wire.OpSetHold, Keys: []stint.Key{key}, Until: until})
}

// Reset is stint.Limiter.Reset. It sends 256 keys in a message, and stops at the
// first error.
func (m methods) Reset(keys ...stint.Key) error {
	for len(keys) > 0 {
		part := keys[:min(len(keys), wire.MaxRequests)]
		if err := m.l.do(context.Background(), &wire.Call{Op: wire.OpReset, Keys: part}); err != nil {
			return err
		}
		keys = keys[len(part):]
	}
	return nil
}

// Wait is stint.Limiter.Wait. All processes share the queue.
func (m methods) Wait(ctx context.Context, req stint.Request) (d stint.Decision, err error) {
	if err := ctx.Err(); err != nil {
		return d, err
	}
	c := wire.Call{Op: wire.OpWait, Requests: []stint.Request{req}}
	err = m.l.do(ctx, &c)
	return c.Decision, err
}

// Reserve is stint.Limiter.Reserve. If the owner goes, Delay goes by its last
// answer, and Cancel returns no tokens and an error.
func (m methods) Reserve(req stint.Request) (stint.Reservation, error) {
	c := wire.Call{Op: wire.OpReserve, Requests: []stint.Request{req}}
	err := m.l.do(context.Background(), &c)
	return c.Reservation, err
}

// Number is stint.Limiter.Number: the number that all processes use for a label.
func (m methods) Number(label string) (stint.Name, error) {
	c := wire.Call{Op: wire.OpNumber, Label: label}
	err := m.l.do(context.Background(), &c)
	return c.Name, err
}

// Flush is stint.Limiter.Flush.
func (m methods) Flush() error { return m.l.do(context.Background(), &wire.Call{Op: wire.OpFlush}) }

// Health returns nil, or what is wrong with the owner now. ErrNoOwner says that
// there is none. After Close a guest returns stint.ErrClosed.
func (m methods) Health() error { return m.l.do(context.Background(), &wire.Call{Op: wire.OpHealth}) }

// Stats returns the counts of the owner, with the decisions of all processes.
// They begin at 0 with each owner. Errors leaves out calls that a guest refuses
// itself, such as those for an unknown Name. If there is no owner, Err says why.
func (m methods) Stats() stint.Stats {
	c := wire.Call{Op: wire.OpStats}
	if err := m.l.do(context.Background(), &c); err != nil {
		return stint.Stats{Err: err}
	}
	return *c.Stats
}

// Snapshot is stint.Limiter.Snapshot. A guest makes another connection for it,
// which the owner refuses with ErrRefused if it has MaxGuests already. A copy that
// has begun is not repeated if the owner goes, and Close does not end it. If w stalls
// for five seconds, the owner ends it.
func (m methods) Snapshot(w io.Writer) (int64, error) {
	out := &counter{w: w}
	c := wire.Call{Op: wire.OpSnapshot, Writer: out}
	err := m.l.do(context.Background(), &c)
	if err == nil && out.err == nil && out.n != c.Size {
		err = fmt.Errorf("%w: the copy has %d bytes, want %d", ErrNoAnswer, out.n, c.Size)
	}
	return out.n, errors.Join(out.err, err)
}

// counter writes until an error, which it keeps.
type counter struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counter) Write(p []byte) (n int, err error) {
	if c.err != nil {
		return 0, c.err
	}
	n, c.err = c.w.Write(p)
	c.n += int64(n)
	return n, c.err
}
