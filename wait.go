package stint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/queue"
)

// Reservation is a place in a queue, that of the Limiter that gave it.
type Reservation interface {
	// Delay returns the time until the request may go, or 0. It grows if the bucket
	// is held, and becomes shorter if requests before this one leave the queue. The
	// tokens are taken when it is 0: who goes later than that, because it has not
	// asked again, may go together with those behind it. Wait asks again by itself.
	Delay() time.Duration

	// Cancel leaves the queue if the turn has not come, and returns the tokens.
	// Requests behind it move up. If the turn has come, the tokens stay spent;
	// Refund returns them. A second Cancel does nothing.
	//
	// At Leased and Synced, Cancel waits for a commit. If the commit fails, the error
	// is ErrNotDurable: the tokens are back in memory, and the next flush that
	// succeeds saves them.
	Cancel() error
}

// reservation is a place in a queue of this process.
type reservation struct {
	l     *Limiter
	key   Key
	turn  *queue.Turn
	level gcra.Level // of the Request's limit; 0: of the configured one
	done  atomic.Bool
}

// Reserve takes the tokens of a request even if they are not there yet, and
// returns a place in the queue of the bucket. Later requests queue behind it, and
// Spend is denied while requests wait. If more tokens than the limit's Queue
// would wait, the error is ErrQueueFull; if the limit is Blocked, ErrBlocked.
// A quota that follows the calendar has none: the error is errors.ErrUnsupported.
// After an error there is no place in the queue. After ErrNotDurable the tokens may
// stay spent; after other errors they do not. The Mode of the Request is ignored.
func (l *Limiter) Reserve(req Request) (Reservation, error) {
	req.Mode = CheckAndSpend
	r, err := l.reserve(&req, math.MaxInt64)
	if err != nil {
		return nil, l.failed(req.Key, err)
	}
	return r, nil
}

var errTooLate = errors.New("its turn would come too late")

// reserve takes a place in the queue, if its turn comes within that time.
func (l *Limiter) reserve(req *Request, within int64) (*reservation, error) {
	var rs [1]request
	var bs [1]cache.Bucket
	r, b := &rs[0], &bs[0]
	if req.Leave != 0 { // requests behind it would wait for what it must not take
		return nil, fmt.Errorf("stint: %s: a request with Leave cannot queue", l.limits.Load().labeled(req.Key))
	}
	if err := r.ask(l, req, b); err != nil {
		return nil, err
	}
	if _, err := l.cache.LockFound(bs[:], nil); err != nil {
		return nil, err
	}
	r.useConfiguredLocked(b, l.opts.Durability)
	now := l.clock.Now()
	at, err := r.reserveLocked(l, b, now)
	if err == nil && at-now > within {
		err = fmt.Errorf("%w: in %v", errTooLate, time.Duration(at-now))
	}
	if err != nil {
		b.Shard.Unlock()
		return nil, err
	}
	turn := &queue.Turn{At: at, Cost: req.Cost}
	if r.given != nil {
		turn.Rate = r.given.QueueRate()
	}
	r.counted = 1
	b.Shard.CountLocked(b.Key.Name)[0]++
	if at <= now {
		r.writeLocked(b, now)
		turn.Charged = r.to != b.TAT
	} else if r.ruleLocked(b).Limited() { // the bucket is charged when the turn comes
		r.turn = turn
		b.JoinLocked(turn, r.given, now)
	}
	in := l.submitLocked(rs[:], bs[:], now)
	b.Shard.Unlock()
	if err := l.await(in); err != nil {
		return nil, err
	}
	return &reservation{l: l, key: req.Key, turn: turn, level: r.level}, nil
}

// reserveLocked decides on a reservation at the instant now, and returns when
// its turn comes.
func (r *request) reserveLocked(l *Limiter, b *cache.Bucket, now int64) (at int64, err error) {
	var d Decision
	if err := r.decideLocked(l, b, now, &d); err != nil {
		return 0, err
	}
	r.to = b.TAT
	rule := r.ruleLocked(b)
	switch {
	case d.Limit == Blocked:
		return 0, fmt.Errorf("%w: %s", ErrBlocked, l.limits.Load().labeled(r.key))
	case !rule.Limited():
		return now + int64(d.RetryAfter), nil
	case rule.Periods != nil:
		return 0, fmt.Errorf("%w: %s has no queue", errCalendar, l.limits.Load().labeled(r.key))
	}
	g := b.GateLocked()
	start := now
	if g != nil {
		start = max(now, g.Hold)
	}
	next, delay, ok := rule.Rate.Reserve(g.Tail(b.TAT), start, r.cost)
	waiting := r.cost // tokens in the queue, with those of r
	if g != nil {
		waiting += g.Queue.Tokens()
	}
	if start == now { // otherwise the whole queue waits for the end of the hold
		waiting = min(waiting, (delay+rule.Rate.Interval-1)/rule.Rate.Interval) // some of them are there
	}
	if most := rule.Queue; !ok || most > 0 && waiting > most {
		return 0, fmt.Errorf("%w: %s, the next turn is in %v", ErrQueueFull, l.limits.Load().labeled(r.key),
			time.Duration(start-now+delay))
	}
	if at = max(start+delay, g.NotBefore()); at <= now {
		r.to = next
	}
	return at, nil
}

func (r *reservation) Delay() time.Duration {
	_, delay, _ := r.l.cache.Due(cacheKey(r.key), r.turn, false)
	return delay
}

func (r *reservation) Cancel() error {
	_, err := r.cancel()
	return r.l.failed(r.key, err)
}

// cancel is Cancel. It reports whether the turn was charged before. It was not if
// the request was still in the queue, or if a Reset has emptied the queue.
func (r *reservation) cancel() (charged bool, err error) {
	if r.done.Swap(true) {
		return false, nil
	}
	charged, in := r.l.cache.Cancel(cacheKey(r.key), r.turn, r.level)
	return charged, r.l.await(in) // if the commit fails, a flush saves it
}

// giveUp returns the tokens of a request whose caller does not go, even if its
// turn has come. What has come back with time since the turn is not returned
// twice, and what was never taken is not returned at all.
func (r *reservation) giveUp(req *Request) {
	if charged, _ := r.cancel(); charged {
		r.l.giveBack(req, r.turn.At)
	}
}

// giveBack returns the tokens that a request spent at an instant. If the commit
// fails, they are back in memory, as after Cancel. If the bucket is not in memory
// and cannot be loaded, they stay spent.
func (l *Limiter) giveBack(req *Request, spent int64) {
	back := *req
	back.Spent = time.Unix(0, spent)
	_, _ = l.decide(request{refunds: true, survivesFailure: true}, &back)
}

// Wait takes the tokens of a request, and waits in the queue of the bucket until
// they are there: first come, first served. The Decision allows. Its At is the
// instant at which Wait took the tokens, and the rest is the state of the bucket when
// Wait returns.
//
// If ctx would end before the turn, or if the queue is full, Wait fails at once
// and takes nothing. The error then wraps context.DeadlineExceeded, or is
// ErrQueueFull. If ctx ends while the request waits, its tokens are returned
// and the error is that of ctx, as it also is if the disk or another process
// was slow: rules.Client tells a quota that is used up from that. Wait also
// waits for a commit, up to Options.CommitTimeout, even if ctx ends. The tokens
// are returned then, too: whenever Wait returns the error of ctx, nothing stays
// spent, with the one exception below. Other errors are those of Reserve; a quota
// that follows the calendar is none.
//
// For a quota that follows the calendar, Wait waits for the next period, and asks
// each minute, and when limits change, whether there are tokens earlier. Callers of
// Wait come first, first served among themselves. Spend does not queue behind them:
// what is left of a period would be lost.
//
// If a limit with a queue becomes such a quota, all that waits is charged at
// once, and still goes when its turn comes. If ctx ends before that, the tokens
// stay spent. The Mode of the Request is ignored.
func (l *Limiter) Wait(ctx context.Context, req Request) (d Decision, err error) {
	if !l.lines.enter(l) {
		return Decision{}, l.failed(req.Key, cmp.Or(ctx.Err(), ErrClosed))
	}
	defer l.lines.callers.Done()
	req.Mode = CheckAndSpend
	at, err := l.wait(ctx, &req)
	if err != nil {
		return Decision{}, err
	}
	l.peek(&req, &d)
	d.Allowed, d.RetryAfter, d.Taken, d.Key, d.at = true, 0, req.Cost, req.Key, at
	return d, nil
}

// peek puts the state of a request's bucket into d. If the bucket cannot be read, d
// has no tokens.
func (l *Limiter) peek(req *Request, d *Decision) {
	if req.Limit.isZero() && l.fastPath(req.Key, 0, 0, true, d) != fastDeclined {
		return
	}
	check := *req
	check.Cost, check.Mode = 0, CheckOnly
	_, _, _ = l.submitAll([]Request{check}, d, nil, false, ErrFull)
}

// wait is Wait. It returns the instant of the spend by the clock.
func (l *Limiter) wait(ctx context.Context, req *Request) (spent int64, err error) {
	key := req.Key
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	var r *reservation
	inLine := req.Limit.isZero() && l.lines.waits(key) // callers wait for a period, of an earlier limit perhaps
	if !inLine {
		r, err = l.reserve(req, within(ctx))
	}
	if inLine || errors.Is(err, errCalendar) {
		if r, spent, err = l.waitForPeriod(ctx, req); r == nil {
			return spent, err
		}
	}
	if err != nil {
		return 0, l.notReserved(key, err)
	}
	if err := ctx.Err(); err != nil { // it ended during the commit
		r.giveUp(req)
		return 0, err
	}
	for {
		stepped := l.clock.NextStep()
		turn, delay, sooner := r.l.cache.Due(cacheKey(key), r.turn, true)
		if delay == 0 {
			return turn, nil
		}
		if err := l.sleep(ctx, delay, stepped, sooner); err != nil {
			if ctx.Err() != nil {
				r.giveUp(req)
			}
			return 0, err
		}
	}
}

// within returns the nanoseconds until ctx ends by itself.
func within(ctx context.Context) int64 {
	if deadline, ok := ctx.Deadline(); ok {
		return int64(time.Until(deadline))
	}
	return math.MaxInt64
}

// notReserved returns what Wait returns for an error of reserve. A nil err does
// nothing.
func (l *Limiter) notReserved(key Key, err error) error {
	if errors.Is(err, errTooLate) {
		err = fmt.Errorf("stint: wait for %s: %w: %w", l.limits.Load().labeled(key), err, context.DeadlineExceeded)
	}
	return l.failed(key, err)
}

// sleep waits, at most until the clock steps forward, or what the caller waits for
// has changed. The error is that of ctx, or ErrClosed.
func (l *Limiter) sleep(ctx context.Context, d time.Duration, stepped, changed <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stepped:
	case <-changed:
	case <-l.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// lines has the callers of Wait for quotas that follow the calendar, first come
// first, by key. The channel of a caller is closed when it is the first.
//
// It also counts all callers of Wait. Close waits until they have returned the
// tokens that they do not use.
type lines struct {
	mu      sync.Mutex
	byKey   map[Key][]chan struct{}
	changed chan struct{} // closed when limits have changed; nil if no caller asked
	callers sync.WaitGroup
}

// nextChange returns a channel that is closed when limits have changed.
func (ls *lines) nextChange() <-chan struct{} {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.changed == nil {
		ls.changed = make(chan struct{})
	}
	return ls.changed
}

// wake wakes the first in each line, because limits have changed.
func (ls *lines) wake() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.changed != nil {
		close(ls.changed)
		ls.changed = nil
	}
}

// enter counts a caller, unless the Limiter is closed.
func (ls *lines) enter(l *Limiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.isClosed() {
		return false
	}
	ls.callers.Add(1)
	return true
}

// waits reports whether callers wait for a key.
func (ls *lines) waits(key Key) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.byKey[key]) > 0
}

func (ls *lines) join(key Key) chan struct{} {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.byKey == nil {
		ls.byKey = make(map[Key][]chan struct{})
	}
	turn := make(chan struct{})
	if len(ls.byKey[key]) == 0 {
		close(turn)
	}
	ls.byKey[key] = append(ls.byKey[key], turn)
	return turn
}

func (ls *lines) leave(key Key, turn chan struct{}) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	line := ls.byKey[key]
	i := slices.Index(line, turn)
	line = slices.Delete(line, i, i+1)
	ls.byKey[key] = line
	switch {
	case len(line) == 0:
		delete(ls.byKey, key)
	case i == 0:
		close(line[0])
	}
}

// lookEvery is how long the first in a line sleeps at most. Tokens may come before
// the period ends: a hold that is released, a refund, a commit that failed.
const lookEvery = time.Minute

// waitForPeriod is wait for a quota that follows the calendar. If another limit has
// taken its place, the first in the line gets a place in the queue, and the next one
// is the first.
func (l *Limiter) waitForPeriod(ctx context.Context, req *Request) (r *reservation, spent int64, err error) {
	key := req.Key
	tooLate := func(wait time.Duration) error {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
			return l.failed(key, fmt.Errorf("stint: wait for %s: %w: in %v: %w", l.limits.Load().labeled(key),
				errTooLate, wait, context.DeadlineExceeded))
		}
		return nil
	}
	check := *req
	check.Mode = CheckOnly
	var d Decision
	err = l.slowPath(ctx, []Request{check}, &d, nil, false) // it waits for no commit
	if err == nil {
		err = tooLate(d.RetryAfter)
	}
	if err != nil {
		return nil, 0, err
	}
	key.ID = strings.Clone(key.ID)
	turn := l.lines.join(key)
	defer l.lines.leave(key, turn)
	select {
	case <-turn:
	case <-l.closed:
		return nil, 0, ErrClosed
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	for {
		stepped, changed := l.clock.NextStep(), l.lines.nextChange()
		d, err := l.decide(request{retries: true}, req)
		switch {
		case err != nil:
			return nil, 0, l.failed(key, err)
		case d.Allowed && ctx.Err() != nil: // it ended during the commit
			l.giveBack(req, d.at)
			return nil, 0, ctx.Err()
		case d.Allowed:
			return nil, d.at, nil
		case !d.Limit.FollowsCalendar(): // any more
			r, err := l.reserve(req, within(ctx))
			if !errors.Is(err, errCalendar) {
				return r, 0, l.notReserved(key, err)
			}
			continue
		}
		if err := tooLate(d.RetryAfter); err != nil {
			return nil, 0, err
		}
		if err := l.sleep(ctx, min(d.RetryAfter, lookEvery), stepped, changed); err != nil {
			return nil, 0, err
		}
	}
}
