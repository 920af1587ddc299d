package hostlimit

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// remote sends the calls of a Limiter to an owner.
type remote struct{ *conn }

func lengths(method string, reqs, ds int) error {
	switch {
	case ds < reqs:
		return fmt.Errorf("hostlimit: %s: %d requests, and space for %d decisions", method, reqs, ds)
	case reqs > maxReqs && method != "SpendEach":
		return fmt.Errorf("hostlimit: %s: %d requests, want at most %d", method, reqs, maxReqs)
	}
	return nil
}

// checkKeys returns an error for a request that does not fit into a message.
func checkKeys(reqs []stint.Request) error {
	for i := range reqs {
		if n := len(reqs[i].Key.ID); n > maxID {
			return fmt.Errorf("%w: %d bytes, want at most %d", stint.ErrInvalidID, n, maxID)
		}
		if reqs[i].Mode > stint.SpendOnly {
			return fmt.Errorf("hostlimit: there is no Mode %d", reqs[i].Mode)
		}
	}
	return nil
}

// together spends for all requests or for none, or refunds. ds may be nil.
func (r remote) together(o op, reqs []stint.Request, ds []stint.Decision) (d stint.Decision, err error) {
	if err := checkKeys(reqs); err != nil {
		return d, err
	}
	err = r.do(o, func(b []byte) []byte { return appendRequests(b, reqs) }, func(b *body) {
		d = b.decision(reqs)
		for i := range reqs {
			if o == opRefund {
				break
			}
			one := b.decision(reqs[i : i+1])
			if ds != nil {
				ds[i] = one
			}
		}
	}, nil)
	if err != nil {
		clear(ds)
		return stint.Decision{}, err
	}
	return d, nil
}

// one is together for one request.
func (r remote) one(o op, req stint.Request) (stint.Decision, error) {
	return r.together(o, []stint.Request{req}, nil)
}

// each decides each request by itself. errs has the errors of single requests.
// Their texts number the requests, and first is the number of reqs[0].
func (r remote) each(first int, reqs []stint.Request, ds []stint.Decision) (errs []error, err error) {
	if err := checkKeys(reqs); err != nil {
		return nil, err
	}
	err = r.do(opEach, func(b []byte) []byte { return appendRequests(b, reqs) }, func(b *body) {
		for i := range reqs {
			if ds[i] = (stint.Decision{}); b.byte() == replyOK {
				ds[i] = b.decision(reqs[i : i+1])
			} else {
				errs = append(errs, fmt.Errorf("request %d: %w", first+i, b.error()))
			}
		}
	}, nil)
	if err != nil {
		clear(ds[:len(reqs)])
		return nil, err
	}
	return errs, nil
}

func (r remote) bucket(key stint.Key) (k stint.Bucket, err error) {
	if err := checkKeys([]stint.Request{{Key: key}}); err != nil {
		return k, err
	}
	err = r.do(opBucket, func(b []byte) []byte { return appendKey(b, key) }, func(b *body) { k = b.bucket() }, nil)
	return k, err
}

func (r remote) hold(key stint.Key, until time.Time) error {
	if err := checkKeys([]stint.Request{{Key: key}}); err != nil {
		return err
	}
	at := until.UnixNano()
	if until.Year() < 1970 || until.Year() > 2200 { // UnixNano overflows before 1678 and after 2262
		at = 0
		if until.Year() > 2000 {
			at = 1<<63 - 1
		}
	}
	return r.do(opHold, func(b []byte) []byte { return binary.AppendVarint(appendKey(b, key), at) }, nil, nil)
}

func (r remote) reset(keys []stint.Key) error {
	for len(keys) > 0 {
		part := keys[:min(len(keys), maxReqs)]
		for _, key := range part {
			if err := checkKeys([]stint.Request{{Key: key}}); err != nil {
				return err
			}
		}
		err := r.do(opReset, func(b []byte) []byte {
			b = binary.AppendUvarint(b, uint64(len(part)))
			for _, key := range part {
				b = appendKey(b, key)
			}
			return b
		}, nil, nil)
		if err != nil {
			return err
		}
		keys = keys[len(part):]
	}
	return nil
}

// wait waits for a turn in the owner's queue.
func (r remote) wait(ctx context.Context, req stint.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkKeys([]stint.Request{req}); err != nil {
		return err
	}
	within := int64(-1)
	if deadline, ok := ctx.Deadline(); ok {
		within = max(0, int64(time.Until(deadline)))
	}
	err := r.doContext(ctx, opWait, func(b []byte) []byte {
		return binary.AppendVarint(appendRequest(b, &req),
			within)
	}, nil, nil)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (r remote) reserve(req stint.Request) (*Reservation, error) {
	if err := checkKeys([]stint.Request{req}); err != nil {
		return nil, err
	}
	place := &Reservation{remote: r, base: time.Now()}
	err := r.do(opReserve, func(b []byte) []byte { return appendRequest(b, &req) }, func(b *body) {
		place.id = b.int()
		place.at.Store(b.int())
	}, nil)
	if err != nil {
		return nil, err
	}
	return place, nil
}

func (r remote) flush() error  { return r.do(opFlush, nil, nil, nil) }
func (r remote) health() error { return r.do(opHealth, nil, nil, nil) }

func (r remote) stats() (stint.Stats, error) {
	var st wireStats
	err := r.do(opStats, nil, func(b *body) {
		if json.Unmarshal(b.b, &st) != nil {
			b.fail()
		}
		b.b = nil
	}, nil)
	for text, err := range map[string]*error{st.FlushErr: &st.Flush.Err, st.CommitErr: &st.Commit.Err,
		st.FileErr: &st.File.Err} {
		if text != "" {
			*err = errors.New(text)
		}
	}
	return st.Stats, err
}

// list makes a call whose reply has many parts. All are read before it returns,
// so a slow caller does not hold up the owner.
func list[T any](r remote, o op, request func([]byte) []byte, read func(*body) T) (all []T, err error) {
	bad := false
	err = r.do(o, request, nil, func(b *body) {
		for len(b.b) > 0 {
			all = append(all, read(b))
		}
		bad = bad || b.bad
	})
	if err == nil && bad {
		err = errMessage
	}
	return all, err
}

func (r remote) buckets(name stint.Name) ([]stint.Bucket, error) {
	return list(r, opBuckets, func(b []byte) []byte { return binary.AppendUvarint(b, uint64(name)) }, (*body).bucket)
}

func (r remote) held() ([]stint.Held, error) { return list(r, opHeld, nil, (*body).held) }

// yieldAll yields what was read, and then the error.
func yieldAll[T any](all []T, err error, yield func(T, error) bool) {
	for _, one := range all {
		if !yield(one, nil) {
			return
		}
	}
	if err != nil {
		var none T
		yield(none, err)
	}
}

// snapshot has a connection of its own, so that no other call waits for w.
func (r remote) snapshot(w io.Writer) (n int64, err error) {
	c, err := dialConn(r.socket, nil, r.timeout, func(*conn, error) {})
	if err != nil {
		return 0, err
	}
	defer c.fail(stint.ErrClosed)
	r = remote{c}
	var writeErr error
	written := int64(0)
	err = r.do(opSnapshot, nil, func(b *body) { n = b.int() }, func(b *body) {
		if writeErr == nil {
			var m int
			m, writeErr = w.Write(b.b)
			written += int64(m)
		}
	})
	if err == nil && writeErr == nil && n != written {
		err = fmt.Errorf("%w: the copy has %d bytes, want %d", ErrNoAnswer, written, n)
	}
	return written, errors.Join(writeErr, err)
}

// Reservation is a place in a queue: the request may go once Delay is 0.
type Reservation struct {
	local stint.Reservation
	remote
	id   int64
	base time.Time
	at   atomic.Int64 // time of the turn by the last answer, since base
}

// Delay returns the time until the request may go, or 0. It grows if the bucket
// is held. If the owner is gone, Delay goes by the owner's last answer.
func (p *Reservation) Delay() time.Duration {
	if p.conn == nil {
		return p.local.Delay()
	}
	delay := max(0, time.Duration(p.at.Load())-time.Since(p.base))
	p.do(opDelay, appendInt(p.id), func(b *body) {
		delay = time.Duration(b.int())
		p.at.Store(int64(time.Since(p.base) + delay))
	}, nil)
	return delay
}

// Cancel leaves the queue if the turn has not come, and returns the tokens. If
// the owner is gone, they stay spent.
func (p *Reservation) Cancel() {
	if p.conn == nil {
		p.local.Cancel()
		return
	}
	p.do(opCancel, appendInt(p.id), func(b *body) { b.int() }, nil)
}
