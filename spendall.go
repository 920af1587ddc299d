package stint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stint-go/stint/internal/cache"
)

// SpendAll decides several requests at one instant, and spends for all of them
// or for none; no other call sees a part of it. It returns the strictest
// decision, whose Key says which request it is about. A denial is stricter than
// a decision that allows. Among denials the longest RetryAfter is the
// strictest, and otherwise the smallest Remaining. If no request takes part in
// the decision, it allows. After an error, such as ErrDuplicateKey, nothing was
// spent, except as Spend says of ErrNotDurable.
func (l *Limiter) SpendAll(reqs ...Request) (d Decision, err error) {
	err = l.all(context.Background(), reqs, &d, nil)
	return d, err
}

// Do is SpendAll that also puts the decision on reqs[i] into ds[i], and waits
// for a commit only until ctx ends. A nil ds asks for the strictest decision
// only: for one request, Do(ctx, []Request{key.Cost(1)}, nil). If the strictest
// decision denies, nothing was spent, and the others are what Check would
// return. After an error every decision is the zero one, which denies. Nothing
// was spent, except that after ErrNotDurable the tokens of all requests may
// stay spent. It is also an error if ds is shorter than reqs; ds stays as it is
// then.
//
// ctx has no part in the decision, which is made even if ctx has ended: a client
// that disconnects early spends all the same. If ctx ends before the commit, the
// error wraps ErrNotDurable and the error of ctx. The tokens then stay spent if the
// commit succeeds, and are returned if it fails. Loading a bucket does not end with
// ctx.
func (l *Limiter) Do(ctx context.Context, reqs []Request, ds []Decision) (d Decision, err error) {
	if ds != nil && len(ds) < len(reqs) {
		return Decision{}, fmt.Errorf("stint: Do: %d requests, and space for %d decisions", len(reqs), len(ds))
	}
	err = l.all(ctx, reqs, &d, ds)
	if err != nil && ds != nil {
		clear(ds[:len(reqs)])
	}
	return d, err
}

// Refund gives the tokens of requests back to their buckets, up to the bursts,
// and returns the strictest decision on what the buckets then hold. It always
// allows. Refunding a full bucket changes nothing. The same refund twice returns the
// tokens twice. For a CheckOnly request Refund
// only reports the state. Do not pass a SpendOnly
// request that took nothing: Refund would give it tokens all the same. After ErrNotDurable the tokens may
// be missing; after any other error nothing changed.
//
// Each request needs Spent. Refund returns only the part of the tokens that has not
// come back with time: half an interval after one token was spent, half a token. If
// Spent is earlier than the spend, the bucket gets back less, never more. A caller may
// therefore spend an upper bound, and return the rest once the true cost is known, without
// exceeding the limit: over any stretch of time, the true costs of the requests
// admitted in it are at most burst + elapsed ÷ interval. A program that does not know
// the instant may use Now: if tokens have come back since the spend, the bucket then
// admits more than its limit. A request that costs tokens and has the zero Spent is
// an error.
func (l *Limiter) Refund(reqs ...Request) (d Decision, err error) {
	err = l.slowPath(context.Background(), reqs, &d, nil, true)
	return d, err
}

// all decides several requests together, on the fast path if it can. The
// strictest decision goes to d, the zero Decision after an error. ds gets the
// decision on each, unless it is nil.
//
// A Decision is written where the caller wants it. A copy of one that was just
// written is slow: it reads larger pieces than were written, so the processor
// waits until these have reached its cache.
func (l *Limiter) all(ctx context.Context, reqs []Request, d *Decision, ds []Decision) error {
	if len(reqs) == 1 {
		r := &reqs[0]
		if r.Mode == CheckAndSpend && r.Limit.isZero() && l.fastPath(r.Key, r.Cost, r.Leave, false, d) != fastDeclined {
			if ds != nil {
				ds[0] = *d
			}
			return nil
		}
	}
	if l.fastPathAll(reqs, d, ds) {
		return nil
	}
	return l.slowPath(ctx, reqs, d, ds, false)
}

// DoEach decides each request by itself, and puts the decision on reqs[i] into
// ds[i]. It makes most decisions at one instant, and the others a little later.
// A key may come more than once: later requests see what earlier ones spent. A
// request that fails leaves the zero Decision, and the error is an EachError, which
// says for each request what failed. After an ErrFull, later requests that need space
// in memory fail with it at once. DoEach takes less time for each request than Spend.
// Requests that wait for a commit wait for it together, until ctx ends, as in
// Do. If it fails, all of them fail, and other answers on their keys may have
// counted tokens that were returned since. If ds is shorter than reqs, DoEach
// decides nothing and returns an error.
func (l *Limiter) DoEach(ctx context.Context, reqs []Request, ds []Decision) error {
	if len(ds) < len(reqs) {
		return fmt.Errorf("stint: DoEach: %d requests, and space for %d decisions", len(reqs), len(ds))
	}
	const ahead = 32 // cache lines that are being fetched
	var asks [ahead]ask
	var answers answers
	now := l.clock.Now()
	for first := 0; first < len(reqs); first += ahead {
		part := reqs[first:min(first+ahead, len(reqs))]
		for i := range part {
			a, r := &asks[i], &part[i]
			a.key, a.cost, a.leave, a.checks, a.now = r.Key, r.Cost, r.Leave, r.Mode == CheckOnly, now
			if a.shard = nil; len(r.Key.ID) <= maxIDLen && r.Mode < UpTo {
				a.located = l.locate(r.Key)
				a.lane = l.laneOf(a)
				a.shard.Prefetch(a.hash)
			}
		}
		for i := range part {
			a, r, d, answer := &asks[i], &part[i], &ds[first+i], fastDeclined
			switch {
			case a.shard == nil:
			case r.Limit.isZero():
				answer = l.fastPathOf(a, d)
			default:
				answer = l.fastPathGiven(a, &r.Limit, d)
			}
			if answer != fastDeclined {
				continue
			}
			one := part[i : i+1]
			if r.Mode == SpendOnly { // it is alone
				one = []Request{*r}
				one[0].Mode = CheckAndSpend
			}
			in, _, err := l.submitAll(one, d, nil, false, answers.full)
			if err = l.failed(r.Key, err); err != nil {
				*d = Decision{}
			}
			if in != nil || err != nil {
				answers.add(first+i, len(reqs), in, err)
			}
		}
	}
	return answers.await(ctx, l, reqs, ds)
}

// An EachError is the error of DoEach if some requests failed: the error of each
// request by its index, nil if it did not fail.
//
//	if each := (stint.EachError)(nil); errors.As(err, &each) {
//		// each[i] is the error of reqs[i]
//	}
type EachError []error

func (e EachError) Error() string {
	var b strings.Builder
	for i := 0; i < len(e); i++ {
		if e[i] == nil {
			continue
		}
		first, text := i, e[i].Error()
		for i+1 < len(e) && e[i+1] != nil && e[i+1].Error() == text {
			i++
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		if first == i {
			fmt.Fprintf(&b, "request %d: %s", i, text)
		} else {
			fmt.Fprintf(&b, "requests %d to %d: %s", first, i, text)
		}
	}
	return b.String()
}

// Unwrap returns the errors, some of which may be nil, for errors.Is and errors.As.
func (e EachError) Unwrap() []error { return e }

// answers has what requests of a DoEach wait for, and their errors.
type answers struct {
	waiting []answer
	errs    EachError // nil until a request fails
	full    error     // the last ErrFull: no request waits for space after it
}

// answer is a request that waits for a commit.
type answer struct {
	at int // index of the request
	in *cache.Batch
}

// add enters what the i-th of n requests waits for, or its error.
func (as *answers) add(i, n int, in *cache.Batch, err error) {
	if err != nil {
		if errors.Is(err, ErrFull) {
			as.full = err
		}
		if as.errs == nil {
			as.errs = make(EachError, n)
		}
		as.errs[i] = err
		return
	}
	as.waiting = append(as.waiting, answer{i, in})
}

// await waits for the commits, and returns an EachError, or nil.
func (as *answers) await(ctx context.Context, l *Limiter, reqs []Request, ds []Decision) error {
	var last *cache.Batch
	var err error
	var begun time.Time
	for i, a := range as.waiting {
		if i == 0 {
			begun = time.Now()
		}
		if a.in != last {
			last, err = a.in, l.cache.Await(ctx, begun, a.in)
		}
		if err != nil {
			ds[a.at] = Decision{}
			as.add(a.at, len(reqs), nil, l.failed(reqs[a.at].Key, err))
		}
	}
	if as.errs == nil {
		return nil
	}
	return as.errs
}
