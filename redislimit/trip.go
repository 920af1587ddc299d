package redislimit

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// Operations of the script.
const (
	opSpend  = "s"
	opCheck  = "c"
	opRefund = "r"
	opUndo   = "u"
	opReset  = "t"
	opHold   = "h"
	opCharge = "d"
)

// maxTogether is the most buckets of one script call.
const maxTogether = 64

// trip is a group of requests that the script carries out all or none. Their
// buckets are in one slot.
type trip struct {
	op       string
	requests []request // the answers, too
	now      int64     // the server's time
	allowed  bool
	here     bool // decided while the server was away
	err      error

	limits   *limitsInForce
	deadline time.Time
	news     chan news // of a trip that waits; nil if it never did
}

// tryCall asks the server about all trips of the batch. After an error their
// answers mean nothing.
func (l *Limiter) tryCall(batch []*trip, synced bool) error {
	ctx, cancel := context.WithDeadline(context.Background(), batch[0].deadline)
	defer cancel()
	generation, err := l.generation(ctx, batch[0].limits)
	if err != nil {
		return err
	}
	keys, args := l.arguments(batch, generation)
	l.stats.trips.Add(1)
	sent := time.Now()
	reply, acknowledged, err := l.eval(ctx, decisions, keys, args, synced)
	if err != nil {
		return l.explain(err)
	}
	if err := l.parse(batch, reply); err != nil {
		return err
	}
	if l.opts.Now == nil {
		l.ahead.Store(batch[0].now - sent.Add(time.Since(sent)/2).UnixNano())
	}
	if synced && acknowledged < l.opts.Replicas {
		for _, t := range batch {
			if t.allowed {
				t.err = cmp.Or(t.err, fmt.Errorf("%w: %d of %d replicas have it", stint.ErrNotDurable, acknowledged,
					l.opts.Replicas))
			}
		}
	}
	return nil
}

// arguments returns the keys and arguments of the script.
func (l *Limiter) arguments(batch []*trip, generation string) (keys, args []string) {
	n := 0
	for _, t := range batch {
		n += len(t.requests)
	}
	keys, args = make([]string, 0, n), make([]string, 2, 2+n)
	if l.opts.Now != nil {
		args[0] = strconv.FormatInt(instant(l.opts.Now()), 10)
	}
	args[1] = generation
	all := make([]byte, 0, n*recordLen)
	for _, t := range batch {
		for i := range t.requests {
			keys = append(keys, t.requests[i].name)
			all = t.requests[i].appendRecord(all, t.op, i < len(t.requests)-1)
		}
	}
	for text := string(all); text != ""; text = text[recordLen:] {
		args = append(args, text[:recordLen])
	}
	return keys, args
}

// recordLen is the length of what the script gets for each request.
const recordLen = 3 + 6*8

// appendRecord appends the record of a request.
func (r *request) appendRecord(b []byte, op string, more bool) []byte {
	follows := byte('-')
	if more {
		follows = '+'
	}
	b = append(b, op[0], '0'+byte(r.mode), follows)
	for _, v := range [3]int64{r.need, r.tolerance, r.fourth} {
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(v/1e9)))
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(v%1e9)))
	}
	return b
}

// eval runs the script. If the server does not know it, nothing ran, and eval
// sends its text.
func (l *Limiter) eval(ctx context.Context, s script, keys, args []string, synced bool) (reply any, acknowledged int,
	err error) {
	reply, acknowledged, err = l.evalOnce(ctx, "EVALSHA", s.sha, keys, args, synced)
	var replied ServerError
	if errors.As(err, &replied) && strings.HasPrefix(string(replied), "NOSCRIPT") {
		if synced { // the server waited for replicas although nothing ran
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.Background(), l.timeout(synced))
			defer cancel()
		}
		return l.evalOnce(ctx, "EVAL", s.text, keys, args, synced)
	}
	return reply, acknowledged, err
}

func (l *Limiter) evalOnce(ctx context.Context, command, text string, keys, args []string, synced bool) (reply any,
	acknowledged int, err error) {
	if synced {
		deadline, _ := ctx.Deadline()
		return l.client.(SyncClient).EvalWait(ctx, command, text, keys, args, l.opts.Replicas, time.Until(deadline)/2)
	}
	reply, err = l.client.Eval(ctx, command, text, keys, args)
	return reply, 0, err
}

// parse puts the script's reply into the trips. A group may have an error of its
// own.
func (l *Limiter) parse(batch []*trip, reply any) error {
	text, _ := reply.(string)
	r := numbers{text: text}
	now := r.instant()
	for _, t := range batch {
		t.now = now
		switch word := r.word(); word {
		case "0", "1":
			t.allowed = word == "1"
			for i := range t.requests {
				a := &t.requests[i]
				a.tat, a.wait, a.hold = r.instant(), r.instant(), r.instant()
			}
		default:
			t.err = wrongKey(word, t.keys())
			r.wrong = r.wrong || t.err == nil
		}
	}
	if r.wrong || r.text != "" {
		return fmt.Errorf("%w: %w", ErrNoAnswer, ServerError(fmt.Sprintf("script replied %.100q", text)))
	}
	return nil
}

func (t *trip) keys() (keys []string) {
	for i := range t.requests {
		keys = append(keys, t.requests[i].name)
	}
	return keys
}

// numbers reads the words of a reply.
type numbers struct {
	text  string
	wrong bool
}

func (r *numbers) word() (word string) {
	word, r.text, _ = strings.Cut(r.text, " ")
	return word
}

// instant reads seconds and nanoseconds.
func (r *numbers) instant() int64 {
	s, err1 := strconv.ParseInt(r.word(), 10, 64)
	n, err2 := strconv.ParseInt(r.word(), 10, 64)
	r.wrong = r.wrong || err1 != nil || err2 != nil
	return s*1e9 + n
}

// wrongKey returns the error for a key that is not a bucket, or nil if the word
// is not one of the scripts'.
func wrongKey(word string, keys []string) error {
	if word == "" {
		return nil
	}
	i, err := strconv.Atoi(word[1:])
	switch {
	case err != nil || i < 1 || i > len(keys):
		return nil
	case word[0] == 'T':
		return fmt.Errorf("redislimit: key %q is no string, so it is not a bucket: delete it, or choose a Prefix", keys[i-1])
	case word[0] == 'V':
		return fmt.Errorf("redislimit: key %q has a value that is not a bucket's: delete it, or choose a Prefix", keys[i-1])
	}
	return nil
}

// awayReplies begin the errors of a server that cannot decide now and has
// spent nothing.
var awayReplies = []string{
	"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "ERR max number of clients",
	"NOREPLICAS",
}

// errNothingRan is in errors that the server replied before it wrote anything.
var errNothingRan = errors.New("nothing was spent")

// explain returns an error of a Client as one of this package.
func (l *Limiter) explain(err error) error {
	var replied ServerError
	if !errors.As(err, &replied) {
		if errors.Is(err, ErrAway) || errors.Is(err, ErrNoAnswer) {
			return err
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return fmt.Errorf("%w: %w", ErrAway, err)
		}
		if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() { // a Client may have its own error for it
			return fmt.Errorf("%w: %w: %w", ErrNoAnswer, context.DeadlineExceeded, err)
		}
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	text, none := strings.CutPrefix(string(replied), "STINT NONE ")
	text, some := strings.CutPrefix(text, "STINT SOME ")
	err = ServerError(text)
	for _, prefix := range awayReplies {
		if !some && strings.HasPrefix(text, prefix) {
			return fmt.Errorf("%w: server replied: %w", ErrAway, err)
		}
	}
	switch {
	case some:
		return fmt.Errorf("%w: the script ended early: server replied: %w", ErrNoAnswer, err)
	case strings.HasPrefix(text, "CROSSSLOT"):
		return fmt.Errorf("%w: server replied: %w", ErrCrossSlot, err)
	case none || strings.HasPrefix(text, "NOPERM"):
		return fmt.Errorf("redislimit: server replied: %w: %w", err, errNothingRan)
	}
	return fmt.Errorf("redislimit: server replied: %w", err)
}

// ask runs an operation on several buckets. A spend takes from all of them or
// from none. It returns the trips that it took, with the answers.
func (l *Limiter) ask(n *limitsInForce, op string, rs []request) (trips []trip, err error) {
	single := !l.cluster.Load()
	trips = l.split(op, rs)
	if len(trips) == 1 {
		t := &trips[0]
		l.carryOut(t, n)
		if errors.Is(t.err, ErrCrossSlot) && single { // the server is a cluster
			l.cluster.Store(true)
			return l.ask(n, op, rs)
		}
		return trips, t.err
	}
	if l.opts.Atomic {
		return nil, fmt.Errorf("%w: %d calls", ErrCrossSlot, len(trips))
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

// split returns the trips that an operation takes, each with at most maxTogether
// requests. In a cluster each slot has its own trips.
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

// undo returns what the trips spent, because another trip of the same call denied
// or failed. A server is asked in the background. Tokens that have come back by
// themselves are not returned again. If an undo fails, the tokens stay spent.
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
