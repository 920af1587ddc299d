package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// Operations of the script.
const (
	opSpend  = "spend"
	opCheck  = "check"
	opRefund = "refund"
	opUndo   = "undo"
	opReset  = "reset"
	opHold   = "hold"
	opCharge = "charge"
)

// maxTogether is the most buckets of one script call.
const maxTogether = 64

// trip is one script call. Its buckets are in one slot.
type trip struct {
	op       string
	requests []request // the answers, too
	now      int64     // the server's time
	allowed  bool
	here     bool // decided while the server was away
	err      error
}

// run asks the server. An error leaves the answers zero.
func (l *Limiter) run(t *trip, n *limitsInForce) {
	if l.away.Load() {
		t.err = fmt.Errorf("%w: it has not come back", ErrAway)
		return
	}
	t.err = l.tryRun(t, n)
	l.note(t.err)
	l.watch(t.err)
}

func (l *Limiter) tryRun(t *trip, n *limitsInForce) error {
	ctx, cancel := l.context()
	generation, err := l.generation(ctx, n)
	cancel()
	if err != nil {
		return err
	}
	keys := make([]string, len(t.requests))
	args := make([]string, 3, 3+4*len(keys))
	args[1], args[2] = t.op, generation
	if l.opts.Now != nil {
		args[0] = strconv.FormatInt(instant(l.opts.Now()), 10)
	}
	synced := false
	for i := range t.requests {
		r := &t.requests[i]
		keys[i] = r.name
		args = append(args, strconv.Itoa(int(r.mode)), strconv.FormatInt(r.need, 10),
			strconv.FormatInt(r.tolerance, 10), strconv.FormatInt(r.fourth, 10))
		synced = synced || cmp.Or(r.limit.Durability, l.opts.Durability) == stint.Synced
	}
	l.stats.trips.Add(1)
	sent := time.Now()
	reply, acknowledged, err := l.eval(keys, args, synced && t.op != opCheck)
	if err != nil {
		return l.explain(err, keys)
	}
	if err := t.parse(reply); err != nil {
		return err
	}
	if l.opts.Now == nil {
		l.ahead.Store(t.now - sent.Add(time.Since(sent)/2).UnixNano())
	}
	if synced && t.op != opCheck && t.allowed && acknowledged < l.opts.Replicas {
		return fmt.Errorf("%w: %d of %d replicas have it", stint.ErrNotDurable, acknowledged, l.opts.Replicas)
	}
	return nil
}

// eval runs the script. If the server does not know it, nothing ran, and eval
// sends its text.
func (l *Limiter) eval(keys, args []string, synced bool) (reply any, acknowledged int, err error) {
	reply, acknowledged, err = l.evalOnce("EVALSHA", scriptSHA, keys, args, synced)
	var replied ServerError
	if errors.As(err, &replied) && strings.HasPrefix(string(replied), "NOSCRIPT") {
		return l.evalOnce("EVAL", script, keys, args, synced)
	}
	return reply, acknowledged, err
}

func (l *Limiter) evalOnce(command, text string, keys, args []string, synced bool) (reply any, acknowledged int,
	err error) {
	timeout := l.opts.Timeout
	if synced {
		timeout *= 2 // the replicas get as much time as the trip
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if synced {
		return l.client.(SyncClient).EvalWait(ctx, command, text, keys, args, l.opts.Replicas, l.opts.Timeout)
	}
	reply, err = l.client.Eval(ctx, command, text, keys, args)
	return reply, 0, err
}

func (t *trip) parse(reply any) error {
	all, _ := reply.([]any)
	if len(all) != 2+3*len(t.requests) {
		return fmt.Errorf("redislimit: script replied %d values for %d buckets", len(all), len(t.requests))
	}
	var wrong error
	number := func(i int) int64 {
		s, _ := all[i].(string)
		n, err := strconv.ParseInt(s, 10, 64)
		wrong = cmp.Or(wrong, err)
		return n
	}
	t.now = number(0)
	t.allowed = number(1) == 1
	for i := range t.requests {
		r := &t.requests[i]
		r.tat, r.wait, r.hold = number(2+3*i), number(3+3*i), 0
		if all[4+3*i] != "" {
			r.hold = number(4 + 3*i)
		}
	}
	if wrong != nil {
		return fmt.Errorf("redislimit: script replied: %w", wrong)
	}
	return nil
}

// awayReplies begin the errors of a server that cannot decide now and has
// spent nothing.
var awayReplies = []string{
	"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "ERR max number of clients",
	"NOREPLICAS",
}

// explain returns an error of a Client as one of this package.
func (l *Limiter) explain(err error, keys []string) error {
	var replied ServerError
	if !errors.As(err, &replied) {
		if errors.Is(err, ErrAway) || errors.Is(err, ErrNoAnswer) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	text := string(replied)
	for _, prefix := range awayReplies {
		if strings.HasPrefix(text, prefix) {
			return fmt.Errorf("%w: server replied: %w", ErrAway, err)
		}
	}
	what, number, _ := strings.Cut(strings.TrimPrefix(text, "STINT "), " ")
	if i, bad := strconv.Atoi(number); bad == nil && 0 < i && i <= len(keys) && strings.HasPrefix(text, "STINT ") {
		if what == "TYPE" {
			return fmt.Errorf("redislimit: key %q is no string, so it is not a bucket: delete it, or choose a Prefix",
				keys[i-1])
		}
		return fmt.Errorf("redislimit: key %q has a value that is not a bucket's: delete it, or choose a Prefix", keys[i-1])
	}
	if strings.HasPrefix(text, "CROSSSLOT") {
		return fmt.Errorf("%w: server replied: %w", ErrCrossSlot, err)
	}
	return fmt.Errorf("redislimit: server replied: %w", err)
}

// ask runs an operation on several buckets. A spend takes from all of them or
// from none. It returns the trips that it took, with the answers.
func (l *Limiter) ask(n *limitsInForce, op string, rs []request) (trips []trip, err error) {
	trips = l.split(op, rs)
	if len(trips) == 1 {
		t := &trips[0]
		l.carryOut(t, n)
		if errors.Is(t.err, ErrCrossSlot) && !l.cluster.Swap(true) { // the server is a cluster
			return l.ask(n, op, rs)
		}
		return trips, t.err
	}
	if l.opts.Atomic {
		return nil, fmt.Errorf("%w: %d of them", ErrCrossSlot, len(trips))
	}
	var wg sync.WaitGroup
	for i := range trips {
		wg.Go(func() { l.carryOut(&trips[i], n) })
	}
	wg.Wait()
	allowed := true
	for i := range trips {
		t := &trips[i]
		allowed = allowed && t.err == nil && t.allowed
		if err == nil || errors.Is(t.err, ErrNoAnswer) || errors.Is(t.err, stint.ErrNotDurable) {
			err = cmp.Or(t.err, err)
		}
	}
	if op == opSpend && !allowed {
		l.undo(n, trips)
	}
	return trips, err
}

// split returns the trips that an operation takes: one for each slot if the
// server is a cluster.
func (l *Limiter) split(op string, rs []request) []trip {
	if len(rs) <= maxTogether && (len(rs) == 1 || !l.cluster.Load()) {
		return []trip{{op: op, requests: rs}}
	}
	var trips []trip
	open := make(map[uint16]int) // slot → its last trip
	for i := range rs {
		slot := uint16(0)
		if l.cluster.Load() {
			slot = slotOf(rs[i].name)
		}
		at, ok := open[slot]
		if !ok || len(trips[at].requests) == maxTogether {
			at = len(trips)
			open[slot] = at
			trips = append(trips, trip{op: op})
		}
		trips[at].requests = append(trips[at].requests, rs[i])
	}
	return trips
}

// undo returns in the background what the trips spent, because another trip of
// the same call denied or failed. Tokens that have come back by themselves are
// not returned again. If an undo fails, they stay spent.
func (l *Limiter) undo(n *limitsInForce, trips []trip) {
	for i := range trips {
		t := &trips[i]
		if !t.allowed || t.err != nil && !errors.Is(t.err, stint.ErrNotDurable) {
			continue
		}
		if t.here {
			l.undoHere(t)
			continue
		}
		back := trip{op: opUndo}
		for _, r := range t.requests {
			if r.mode == stint.CheckOnly || r.wait != 0 || r.need == 0 {
				continue
			}
			r.fourth = t.now
			back.requests = append(back.requests, r)
		}
		if len(back.requests) > 0 {
			l.begin(func() { l.run(&back, n) })
		}
	}
}
