package hostlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/stint-go/stint"
)

// OwnerInfo says which process has the file.
type OwnerInfo struct {
	PID   int
	Since time.Time // by the clock of its Limiter
}

// A Guest asks the owner of a file, and never becomes the owner. It is for the
// commands of operators. Its methods do what those of stint.Limiter do. The
// owner's limits apply to a request without a Limit.
type Guest struct{ r remote }

// Dial connects to the process that serves the file at path. names, which may
// be nil, must mean the same to the owner. The errors are ErrNoOwner,
// ErrRefused and stint.ErrNameMismatch. After the owner has gone, calls return
// ErrNoOwner.
func Dial(path string, names stint.Names, opts *DialOptions) (*Guest, error) {
	var o DialOptions
	if opts != nil {
		o = *opts
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("hostlimit: Timeout %v: want more than 0", o.Timeout)
	}
	p, err := placeOf(path)
	if err != nil {
		return nil, err
	}
	c, err := dialConn(p.socket, namedOf(names), cmp.Or(o.Timeout, defaultTimeout), func(*conn, error) {})
	if err != nil {
		return nil, err
	}
	return &Guest{remote{c}}, nil
}

// gone returns err, or the error to return in place of errMoved.
func (g *Guest) gone(err error) error {
	if errors.Is(err, errMoved) {
		if g.r.closed.Load() {
			return stint.ErrClosed
		}
		return ErrNoOwner
	}
	return err
}

// Owner returns the process that has the file.
func (g *Guest) Owner() OwnerInfo { return OwnerInfo{g.r.pid, g.r.began} }

// Labels returns the Names that the owner declared when Dial connected.
func (g *Guest) Labels() map[stint.Name]string { return g.r.labels() }

// Now returns the time by the owner's clock.
func (g *Guest) Now() time.Time { return g.r.now() }

// Spend is stint.Limiter.Spend.
func (g *Guest) Spend(key stint.Key, cost int64) (stint.Decision, error) {
	return g.SpendAll(stint.Request{Key: key, Cost: cost})
}

// Check is stint.Limiter.Check.
func (g *Guest) Check(key stint.Key, cost int64) (stint.Decision, error) {
	return g.SpendAll(stint.Request{Key: key, Cost: cost, Mode: stint.CheckOnly})
}

// Refund is stint.Limiter.Refund.
func (g *Guest) Refund(key stint.Key, cost int64) (stint.Decision, error) {
	return g.RefundAll(stint.Request{Key: key, Cost: cost})
}

// SpendAll is stint.Limiter.SpendAll, for at most 256 requests.
func (g *Guest) SpendAll(reqs ...stint.Request) (stint.Decision, error) {
	if err := lengths("SpendAll", len(reqs), len(reqs)); err != nil {
		return stint.Decision{}, err
	}
	d, err := g.r.together(opTogether, reqs, nil)
	return d, g.gone(err)
}

// SpendTogether is stint.Limiter.SpendTogether, for at most 256 requests.
func (g *Guest) SpendTogether(reqs []stint.Request, ds []stint.Decision) (stint.Decision, error) {
	if err := lengths("SpendTogether", len(reqs), len(ds)); err != nil {
		return stint.Decision{}, err
	}
	d, err := g.r.together(opTogether, reqs, ds[:len(reqs)])
	return d, g.gone(err)
}

// RefundAll is stint.Limiter.RefundAll, for at most 256 requests.
func (g *Guest) RefundAll(reqs ...stint.Request) (stint.Decision, error) {
	if err := lengths("RefundAll", len(reqs), len(reqs)); err != nil {
		return stint.Decision{}, err
	}
	d, err := g.r.together(opRefund, reqs, nil)
	return d, g.gone(err)
}

// SpendEach is stint.Limiter.SpendEach.
func (g *Guest) SpendEach(reqs []stint.Request, ds []stint.Decision) error {
	if err := lengths("SpendEach", len(reqs), len(ds)); err != nil {
		return err
	}
	return inParts(reqs, ds, func(first int, reqs []stint.Request, ds []stint.Decision) ([]error, error) {
		errs, err := g.r.each(first, reqs, ds)
		return errs, g.gone(err)
	})
}

// inParts calls f with parts of the requests that fit into one message each.
func inParts(
	reqs []stint.Request, ds []stint.Decision, f func(int, []stint.Request, []stint.Decision) ([]error, error),
) error {
	var errs []error
	for first := 0; first < len(reqs); first += maxReqs {
		end := min(first+maxReqs, len(reqs))
		of, err := f(first, reqs[first:end], ds[first:end])
		if errs = append(errs, of...); err != nil {
			errs = append(errs, fmt.Errorf("requests %d to %d: %w", first, end-1, err))
		}
	}
	return errors.Join(errs...)
}

// Bucket is stint.Limiter.Bucket.
func (g *Guest) Bucket(key stint.Key) (stint.Bucket, error) {
	k, err := g.r.bucket(key)
	return k, g.gone(err)
}

// Buckets is stint.Limiter.Buckets.
func (g *Guest) Buckets(name stint.Name) iter.Seq2[stint.Bucket, error] {
	return func(yield func(stint.Bucket, error) bool) {
		all, err := g.r.buckets(name)
		yieldAll(all, g.gone(err), yield)
	}
}

// Held is stint.Limiter.Held.
func (g *Guest) Held() iter.Seq2[stint.Held, error] {
	return func(yield func(stint.Held, error) bool) {
		all, err := g.r.held()
		yieldAll(all, g.gone(err), yield)
	}
}

// Hold is stint.Limiter.Hold.
func (g *Guest) Hold(key stint.Key, until time.Time) error { return g.gone(g.r.hold(key, until)) }

// Reset is stint.Limiter.Reset. It sends 256 keys at a time, and stops at the
// first error.
func (g *Guest) Reset(keys ...stint.Key) error { return g.gone(g.r.reset(keys)) }

// Wait is stint.Limiter.Wait.
func (g *Guest) Wait(ctx context.Context, key stint.Key, cost int64) error {
	return g.WaitRequest(ctx, stint.Request{Key: key, Cost: cost})
}

// WaitRequest is stint.Limiter.WaitRequest.
func (g *Guest) WaitRequest(ctx context.Context, req stint.Request) error {
	return g.gone(g.r.wait(ctx, req))
}

// Reserve is stint.Limiter.Reserve.
func (g *Guest) Reserve(key stint.Key, cost int64) (*Reservation, error) {
	return g.ReserveRequest(stint.Request{Key: key, Cost: cost})
}

// ReserveRequest is stint.Limiter.ReserveRequest.
func (g *Guest) ReserveRequest(req stint.Request) (*Reservation, error) {
	p, err := g.r.reserve(req)
	return p, g.gone(err)
}

// Flush is stint.Limiter.Flush.
func (g *Guest) Flush() error { return g.gone(g.r.flush()) }

// Health returns what is wrong with the owner now, or nil.
func (g *Guest) Health() error { return g.gone(g.r.health()) }

// Stats returns the counts of the owner, with the decisions of all processes.
func (g *Guest) Stats() (stint.Stats, error) {
	st, err := g.r.stats()
	return st, g.gone(err)
}

// Snapshot is stint.Limiter.Snapshot.
func (g *Guest) Snapshot(w io.Writer) (int64, error) {
	n, err := g.r.snapshot(w)
	return n, g.gone(err)
}

// Close ends the connection. A second Close does nothing.
func (g *Guest) Close() error {
	g.r.close()
	return nil
}
