package redislimit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stint-go/stint"
)

// leasePart is one bucket's part in a call of the lease script.
type leasePart struct {
	key                         stint.Key
	name                        string
	interval, tolerance, fourth int64
	question
}

func (b *leased) part(l *Limiter, q question) leasePart {
	return leasePart{b.key, l.opts.keyOf(b.key), b.interval, b.tolerance, b.fourth, q}
}

// gives reports whether the part returns tokens that time has not brought back.
func (p *leasePart) gives(b *leased, elapsed int64) bool {
	return b.useful(&p.back[0], elapsed) || b.useful(&p.back[1], elapsed)
}

// args returns what the script gets for a bucket. Without a question for tokens,
// the script only takes tokens back.
func (p *leasePart) args() (args [12]int64) {
	if p.want > 0 || p.need > 0 {
		args = [12]int64{p.interval, p.tolerance, p.fourth, p.first * p.interval, p.need * p.interval,
			p.want * p.interval}
	}
	for i, g := range p.back {
		args[6+3*i], args[7+3*i], args[8+3*i] = g.left*p.interval, g.all*p.interval, g.at
	}
	return args
}

// callLease runs the lease script. All parts belong to one server. After ErrAway
// or errNothingRan the script wrote nothing.
func (l *Limiter) callLease(n *limitsInForce, parts []leasePart) ([]answer, error) {
	o := l.outageOf(parts[0].name)
	if o.away.Load() {
		return nil, fmt.Errorf("%w: it has not come back", ErrAway)
	}
	answers, err := l.tryLease(n, parts)
	l.note(err)
	if !l.cluster.Load() || l.opts.decidesAway() {
		l.watchAt(o, err)
	}
	return answers, err
}

func (l *Limiter) tryLease(n *limitsInForce, parts []leasePart) ([]answer, error) {
	ctx, cancel := l.context()
	defer cancel()
	generation, err := l.generation(ctx, n)
	if err != nil {
		return nil, err
	}
	now := ""
	if l.opts.Now != nil {
		now = strconv.FormatInt(instant(l.opts.Now()), 10)
	}
	keys, args := leaseArgs(now, generation, parts)
	l.stats.trips.Add(1)
	sent := time.Now()
	reply, _, err := l.eval(ctx, leasing, keys, args, false)
	if err != nil {
		return nil, l.explainLease(err, keys)
	}
	answers, err := parseAnswers(reply, len(parts))
	if err == nil && l.opts.Now == nil {
		l.ahead.Store(answers[0].now - sent.Add(time.Since(sent)/2).UnixNano())
	}
	return answers, err
}

func leaseArgs(now, generation string, parts []leasePart) (keys, args []string) {
	args = append(make([]string, 0, 2+12*len(parts)), now, generation)
	for i := range parts {
		keys = append(keys, parts[i].name)
		for _, v := range parts[i].args() {
			args = append(args, strconv.FormatInt(v, 10))
		}
	}
	return keys, args
}

func (l *Limiter) explainLease(err error, keys []string) error {
	var replied ServerError
	if !errors.As(err, &replied) {
		return l.explain(err)
	}
	if word, ours := strings.CutPrefix(string(replied), "STINT KEY "); ours {
		if wrong := wrongKey(word, keys); wrong != nil {
			return wrong
		}
	}
	return l.explain(err)
}

func parseAnswers(reply any, n int) ([]answer, error) {
	all, _ := reply.([]any)
	if len(all) != 1+4*n {
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, ServerError(fmt.Sprintf("%d values for %d buckets", len(all), n)))
	}
	var wrong error
	number := func(i int) int64 {
		s, _ := all[i].(string)
		if s == "" {
			return 0 // no hold
		}
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			wrong = fmt.Errorf("%w: %w", ErrNoAnswer, ServerError(err.Error()))
		}
		return v
	}
	answers := make([]answer, n)
	for i := range answers {
		answers[i] = answer{number(0), number(1 + 4*i), number(2 + 4*i), number(3 + 4*i), number(4 + 4*i)}
	}
	return answers, wrong
}
