package shares

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-go/stint"
)

// Tree is a total and one class of requests that share it. Several trees may have
// the same Total.
type Tree struct {
	Total stint.Name // what all share: one bucket
	Class stint.Name // its limit is the ceiling of each id
	Floor stint.Name // its overrides promise a part of the total to ids; 0: no id has a floor
}

// Decider decides on requests for classes as docs/shares.md says. Everything else
// passes through to the Decider below.
type Decider struct {
	stint.Decider
	trees    []Tree
	places   []place // by Name
	reserves atomic.Pointer[reserves]
}

var _ stint.Decider = (*Decider)(nil)

// place is what a Name is in a tree.
type place struct {
	role role
	tree int
}

type role uint8

const (
	outside role = iota
	class
	floor
	total
)

// New returns a Decider above d. The error is that of Check for the limits of d.
func New(d stint.Decider, trees ...Tree) (*Decider, error) {
	if err := Check(d.Limits(), trees...); err != nil {
		return nil, err
	}
	s := &Decider{Decider: d, trees: trees}
	for i, tr := range trees {
		s.put(tr.Total, place{total, i})
		s.put(tr.Class, place{class, i})
		if tr.Floor != 0 {
			s.put(tr.Floor, place{floor, i})
		}
	}
	return s, nil
}

func (s *Decider) put(name stint.Name, p place) {
	for len(s.places) <= int(name) {
		s.places = append(s.places, place{})
	}
	s.places[name] = p
}

func (s *Decider) place(name stint.Name) place {
	if int(name) < len(s.places) {
		return s.places[name]
	}
	return place{}
}

// reserves are those of each tree under the limits in force.
type reserves struct {
	limits *stint.Limits
	trees  []reserve
}

// reserve is what loans leave in a total, and what a full one lends.
type reserve struct{ kept, lendable int64 }

// Kept returns how many tokens loans leave in the total of a class: the bursts of
// all its floors together. It is 0 for other Names. After a change of the
// limits, the first call adds up all floors: a million take a second.
func (s *Decider) Kept(class stint.Name) int64 {
	if p := s.place(class); p.role != outside {
		return s.reserve(s.Limits(), p.tree).kept
	}
	return 0
}

func (s *Decider) reserve(limits *stint.Limits, tree int) reserve {
	r := s.reserves.Load()
	if r == nil || r.limits != limits {
		r = &reserves{limits, make([]reserve, len(s.trees))}
		sums := sumsOf(limits, s.trees)
		for i, tr := range s.trees {
			kept, lendable := sums[tr.Total].most, int64(math.MaxInt64)
			if whole := limits.For(tr.Total.Key("")); promises(whole) {
				lendable = whole.Burst - kept
			}
			r.trees[i] = reserve{kept, lendable}
		}
		s.reserves.Store(r)
	}
	return r.trees[tree]
}

// Spend is Do for one request.
func (s *Decider) Spend(key stint.Key, cost int64) (d stint.Decision, err error) {
	err = s.one(key, cost, stint.CheckAndSpend, &d)
	return d, err
}

// Check returns the Decision that Spend would return, and spends nothing.
func (s *Decider) Check(key stint.Key, cost int64) (d stint.Decision, err error) {
	err = s.one(key, cost, stint.CheckOnly, &d)
	return d, err
}

func (s *Decider) one(key stint.Key, cost int64, mode stint.Mode, d *stint.Decision) error {
	c := calls.Get().(*call)
	c.reqs = c.reqs[:parts+1]
	req := &c.reqs[parts] // filled in place: a copy of what was just written is slow
	*req = stint.Request{}
	req.Key, req.Cost, req.Mode = key, cost, mode
	at, err := s.share(c.reqs[parts:])
	switch {
	case err != nil:
	case at < 0:
		*d, err = s.Decider.Do(context.Background(), c.reqs[parts:], nil)
	default:
		err = s.do(context.Background(), c, at, d, nil)
	}
	calls.Put(c)
	return err
}

// Do decides on requests at one instant, as stint.Decider says, and spends for all
// or for none. At most one of them may be for a class or a total.
//
// For a class, Remaining is the largest cost that would pass next if the request is
// allowed, and RetryAfter is exact if it is denied. Key and Limit name the bucket
// that decided: ceiling, floor or total. The Limit of such a request is its ceiling,
// and Leave is what must remain of that. A request for the total itself is a loan.
// Requests for a floor are errors.ErrUnsupported, unless they only check.
func (s *Decider) Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (d stint.Decision, err error) {
	at, err := s.share(reqs)
	if err == nil {
		if at < 0 || ds != nil && len(ds) < len(reqs) {
			return s.Decider.Do(ctx, reqs, ds)
		}
		c := calls.Get().(*call)
		c.reqs = append(c.reqs[:parts], reqs...)
		err = s.do(ctx, c, at, &d, ds)
		calls.Put(c)
	}
	if err != nil {
		clear(ds[:min(len(ds), len(reqs))])
	}
	return d, err
}

// do is Do for the requests of a call, of which the one at an index is for a class or
// a total. d is the zero Decision after an error.
func (s *Decider) do(ctx context.Context, c *call, at int, d *stint.Decision, ds []stint.Decision) (err error) {
	reqs := c.reqs[parts:]
	req, p, limits := &reqs[at], s.place(reqs[at].Key.Name), s.Limits()
	c.below, c.at, c.mode, c.cost, c.reserve = s.Decider, parts+at, req.Mode, req.Cost, s.reserve(limits, p.tree)
	switch {
	case p.role == total:
		req.Leave = max(req.Leave, c.reserve.kept)
		fallthrough
	case req.Cost < 0, req.Mode > stint.UpTo, req.Mode == stint.UpTo && len(reqs) > 1: // errors of the Decider below
		*d, err = s.Decider.Do(ctx, reqs, ds)
		return err
	}
	tree := &s.trees[p.tree]
	c.reqs[0].Key, c.reqs[1].Key, c.promised = tree.Floor.Key(req.Key.ID), tree.Total.Key(""), 0
	if tree.Floor != 0 {
		c.promised = limits.For(c.reqs[0].Key).Burst
	}
	if req.Mode == stint.UpTo {
		err = c.upTo(ctx, d, ds)
	} else {
		err = c.decide(ctx, d, ds)
	}
	if err != nil {
		*d = stint.Decision{}
	}
	return err
}

// share returns the index of the request that is for a class or a total, or -1.
func (s *Decider) share(reqs []stint.Request) (at int, err error) {
	at = -1
	for i := range reqs {
		switch key := reqs[i].Key; s.place(key.Name).role {
		case outside:
		case floor:
			if reqs[i].Mode != stint.CheckOnly {
				return 0, fmt.Errorf("shares: %s: %w: it is a floor", s.label(key), errors.ErrUnsupported)
			}
		default:
			if at >= 0 {
				return 0, fmt.Errorf("shares: %s and %s: a call has at most one share of a total", s.label(reqs[at].Key),
					s.label(key))
			}
			at = i
		}
	}
	return at, nil
}

// label returns a key as errors have it.
func (s *Decider) label(key stint.Key) string {
	spec, _ := s.Limits().Spec(key.Name)
	if key.ID == "" {
		return spec.Label
	}
	return spec.Label + ":" + key.ID
}

// Refund returns the tokens of requests, as stint.Decider says. Those of a class
// go back to ceiling and total, and then to the floor, even if the request was a
// loan. The decision is the strictest on the others. The total gets back what has not
// come back to it since Spent, and the floor gets no more than that. After an error
// the floor may lack the tokens. At most one request may be for a class or a total.
func (s *Decider) Refund(reqs ...stint.Request) (stint.Decision, error) {
	at, err := s.share(reqs)
	if err != nil {
		return stint.Decision{}, err
	}
	if at < 0 || s.place(reqs[at].Key.Name).role == total {
		return s.Decider.Refund(reqs...)
	}
	req, tree := reqs[at], s.place(reqs[at].Key.Name).tree
	of := req
	of.Key, of.Limit = s.trees[tree].Total.Key(""), stint.Limit{}
	d, err := s.Decider.Refund(append(append([]stint.Request(nil), reqs...), of)...)
	if err != nil || req.Mode == stint.CheckOnly || req.Cost == 0 {
		return d, err
	}
	// After the total: the floor must never have a token that the total lacks, whatever
	// fails in between.
	limits, whole := s.Limits(), of.Key
	if of.Key = s.trees[tree].Floor.Key(req.Key.ID); of.Key.Name == 0 {
		return d, nil
	}
	limit := limits.For(of.Key)
	if !promises(limit) {
		return d, nil
	}
	of.Spent = spentOf(limit, limits.For(whole), of.Spent, s.Now())
	if _, err = s.Decider.Refund(of); err != nil {
		return stint.Decision{}, err
	}
	return d, nil
}

// spentOf returns an instant since which as many tokens have come back to a floor as
// have come back to the total since another instant, or more. The total refills faster.
func spentOf(floor, total stint.Limit, spent, now time.Time) time.Time {
	ago := now.Sub(spent)
	if total.Interval() == 0 || ago <= 0 {
		return spent
	}
	return now.Add(-scaled(ago, floor.Interval(), total.Interval()))
}

// Wait waits for tokens, as stint.Decider says. For a class, a floor or a total it
// returns errors.ErrUnsupported: a queue of one tenant would depend on what the
// others do.
func (s *Decider) Wait(ctx context.Context, req stint.Request) (stint.Decision, error) {
	if s.place(req.Key.Name).role != outside {
		return stint.Decision{}, fmt.Errorf("shares: %s has no queue: %w", s.label(req.Key), errors.ErrUnsupported)
	}
	return s.Decider.Wait(ctx, req)
}

// call is one call of Do with a request for a class. It is used again by a later one,
// because a Decider's arguments escape.
type call struct {
	below   stint.Decider
	reserve reserve
	reqs    []stint.Request // for floor and total, and then the caller's; that for the class is one for its ceiling

	at       int        // index of the class's
	mode     stint.Mode // what it asked for
	cost     int64
	promised int64 // burst of its floor, 0 if it has none
	has      int64 // tokens of the floor

	own, loan attempt
}

// parts is how many requests of a call are not the caller's.
const parts = 2

// attempt is an answer to the requests of a call. A Decision stays where the Decider
// below has written it, because a copy of what was just written is slow.
type attempt struct {
	ds    []stint.Decision // in the order of the requests
	share *stint.Decision  // the one on the share: of ceiling, total or floor
	wait  time.Duration    // the longest of the share and the caller's other requests
}

var calls = sync.Pool{New: func() any { return &call{reqs: make([]stint.Request, parts, parts+1)} }}

// decide tries an own request, and then a loan. d gets the strictest decision, and ds,
// which may be nil, those on the caller's requests.
func (c *call) decide(ctx context.Context, d *stint.Decision, ds []stint.Decision) error {
	mode := c.mode
	if mode == stint.SpendOnly {
		mode = stint.CheckAndSpend // all parts of a share, or none
	}
	c.ask(c.cost, mode)
	floor, total := &c.reqs[0], &c.reqs[1]
	pays := c.promised > 0 && c.cost <= c.promised
	var paid *stint.Decision // the one on the floor, if there is one
	if c.has, total.Leave = 0, 0; pays {
		if err := c.try(ctx, &c.own, true); err != nil {
			return err
		}
		paid = &c.own.ds[0]
		c.read(paid)
		if paid.Allowed || c.cost > c.reserve.lendable {
			c.together(&c.own, paid, true)
			return c.answer(ctx, &c.own, d, ds)
		}
	}
	total.Leave = c.reserve.kept
	asks := c.promised > 0 && !pays // the floor for what it has: it takes no part
	if asks {
		floor.Cost, floor.Mode = 0, stint.SpendOnly
	}
	if err := c.try(ctx, &c.loan, asks); err != nil {
		return err
	}
	if asks {
		paid = &c.loan.ds[0]
		c.read(paid)
	}
	c.together(&c.loan, paid, false)
	if pays && c.loan.wait > 0 {
		if c.together(&c.own, paid, true); c.own.wait < c.loan.wait {
			return c.answer(ctx, &c.own, d, ds)
		}
	}
	return c.answer(ctx, &c.loan, d, ds)
}

// ask sets the cost and the mode of what the share asks for.
func (c *call) ask(cost int64, mode stint.Mode) {
	floor, total, ceiling := &c.reqs[0], &c.reqs[1], &c.reqs[c.at]
	floor.Cost, total.Cost, ceiling.Cost = cost, cost, cost
	floor.Mode, total.Mode, ceiling.Mode = mode, mode, mode
}

// try asks the Decider below, with or without the floor.
func (c *call) try(ctx context.Context, a *attempt, floor bool) error {
	n := len(c.reqs)
	if cap(a.ds) < n {
		a.ds = make([]stint.Decision, n)
	}
	a.ds = a.ds[:n]
	first := 1
	if floor {
		first = 0
	}
	_, err := c.below.Do(ctx, c.reqs[first:], a.ds[first:])
	return err
}

// read notes how many tokens the floor has.
func (c *call) read(floor *stint.Decision) {
	if c.has = floor.Remaining; !floor.Allowed && c.has >= c.reqs[0].Cost {
		c.has = 0 // it is held
	}
}

// together sets the decision on the share. floor is the one on the floor, which may be
// of another attempt, or nil.
func (c *call) together(a *attempt, floor *stint.Decision, own bool) {
	ceiling, total := &a.ds[c.at], &a.ds[1]
	wait, has := max(ceiling.RetryAfter, total.RetryAfter), min(c.has, total.Remaining)
	if own {
		wait = max(wait, floor.RetryAfter)
	}
	if total.Remaining != math.MaxInt64 {
		total.Remaining = max(0, total.Remaining-c.reserve.kept)
	}
	a.share = total
	switch {
	case wait == 0 && has > total.Remaining:
		if a.share = &a.ds[0]; a.share != floor {
			*a.share = *floor
		}
		a.share.Remaining, a.share.Allowed, a.share.RetryAfter = has, true, 0
	case wait > 0 && own && floor.Stricter(total):
		a.share = floor
		a.share.Remaining = has
	}
	if ceiling.Stricter(a.share) {
		a.share = ceiling
	}
	a.wait = a.share.RetryAfter
	for i := parts; i < len(c.reqs); i++ {
		if i != c.at && c.reqs[i].Mode != stint.SpendOnly {
			a.wait = max(a.wait, a.ds[i].RetryAfter)
		}
	}
	if a.share.Taken = 0; a.wait == 0 && c.mode != stint.CheckOnly {
		a.share.Taken = c.cost
	}
}

// answer returns the answers of an attempt. A SpendOnly share that was denied stops
// no other request.
func (c *call) answer(ctx context.Context, a *attempt, d *stint.Decision, ds []stint.Decision) (err error) {
	reqs, at := c.reqs[parts:], c.at-parts
	switch {
	case c.mode == stint.SpendOnly && !a.share.Allowed:
		others := slices.Delete(reqs, at, at+1)
		answers := make([]stint.Decision, len(others))
		*d, err = c.below.Do(ctx, others, answers)
		if ds != nil {
			copy(ds, slices.Insert(answers, at, *a.share))
		}
		return err
	case len(reqs) == 1 && c.mode != stint.SpendOnly && ds == nil: // the usual one, without more copies
		*d = *a.share
		return nil
	}
	reqs[at].Mode, a.ds[c.at] = c.mode, *a.share
	copy(ds, a.ds[parts:])
	*d = stint.Strictest(reqs, a.ds[parts:])
	return nil
}

// upTo takes as many tokens as a share has. It looks first, and looks again if others
// took them in between.
func (c *call) upTo(ctx context.Context, d *stint.Decision, ds []stint.Decision) (err error) {
	want := c.cost
	for range 4 {
		if c.cost, err = c.most(ctx, want); err != nil {
			return err
		}
		c.mode = stint.CheckAndSpend
		if c.cost == 0 && want > 0 { // a denial says when the first token is there
			c.cost, c.mode = 1, stint.CheckOnly
		}
		if err = c.decide(ctx, d, ds); err != nil || c.mode == stint.CheckOnly != d.Allowed {
			return err
		}
	}
	return nil
}

// most returns how many tokens a share has, up to a cost.
func (c *call) most(ctx context.Context, cost int64) (int64, error) {
	ceiling := &c.reqs[c.at]
	leave := ceiling.Leave
	ceiling.Leave, c.reqs[1].Leave = 0, 0
	c.ask(0, stint.CheckOnly)
	err := c.try(ctx, &c.own, c.promised > 0)
	if ceiling.Leave = leave; err != nil {
		return 0, err
	}
	has := func(i int) int64 {
		if d := &c.own.ds[i]; d.Allowed {
			return d.Remaining
		}
		return 0 // it is held
	}
	lendable, floor := has(1), int64(0)
	if c.promised > 0 {
		floor = min(has(0), lendable)
	}
	if lendable != math.MaxInt64 {
		lendable -= c.reserve.kept
	}
	return max(0, min(cost, has(c.at)-leave, max(lendable, floor))), nil
}
