package worlds

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/table"
)

// limiterSystem is a Limiter as internal/modeltest drives it.
type limiterSystem struct {
	*stint.Limiter
	clock   *modeltest.Clock
	limits  *stint.Limits
	compact func() error // nil if it has no file
	mu      sync.Mutex
	places  []stint.Reservation
	calls   uint64
	promote func(*stint.Limiter, stint.Key) // gives some buckets a lane; may be nil
	tick    func()
	crash   func()
}

func (s *limiterSystem) Crash() {
	if s.crash != nil {
		s.crash()
	}
	s.Close() // an error if it has crashed
}

// failureOf returns what an error is to the model.
func failureOf(err error) modeltest.Failure {
	for _, known := range []struct {
		err     error
		failure modeltest.Failure
	}{
		{nil, ""}, {stint.ErrNotDurable, modeltest.NotDurable}, {stint.ErrFull, modeltest.Full},
		{stint.ErrQueueFull, modeltest.QueueFull}, {stint.ErrCostOverBurst,
			modeltest.CostOverBurst},
		{stint.ErrUnknownName, modeltest.UnknownName}, {stint.ErrBlocked, modeltest.IsBlocked}, {modeltest.ErrDisk, modeltest.NotLoaded}, {stint.ErrGone, modeltest.NotLoaded},
	} {
		if errors.Is(err, known.err) {
			return known.failure
		}
	}
	return modeltest.Failure(err.Error())
}

func keyOf(key modeltest.Key) stint.Key { return stint.Name(key.Name).Key(key.ID) }

func limitOfModel(l modeltest.Limit) stint.Limit {
	if l.Blocked {
		return stint.Blocked
	}
	return stint.Limit{Burst: l.Burst, Count: l.Count, Period: l.Period, Queue: l.Queue,
		Durability: stint.Durability(l.Level)}
}

// limitsOfModel returns the model's limits as a program declares them.
func limitsOfModel(ls modeltest.Limits) *stint.Limits {
	names, overrides := stint.Names{}, []stint.Override{}
	for name, l := range ls.Names {
		limit := stint.Unlimited
		if l != nil {
			limit = limitOfModel(*l)
		}
		names[stint.Name(name)] = stint.NameSpec{Label: "name" + string(rune('0'+name)), Limit: limit}
	}
	for _, o := range ls.Overrides {
		overrides = append(overrides, stint.Override{Key: stint.Name(o.Key.Name).Key(o.Key.ID), Limit: limitOfModel(o.Limit)})
	}
	made, err := stint.NewLimits(names, overrides...)
	if err != nil {
		panic(err)
	}
	return made
}

// decided returns a decision as the model has it.
func (s *limiterSystem) decided(limits *stint.Limits, reqs []stint.Request, key stint.Key, d stint.Decision, err error) (modeltest.Decision,
	modeltest.Failure) {
	failure := failureOf(err)
	limit := limits.For(d.Key)
	for _, req := range reqs {
		if req.Key == d.Key {
			limit = cmp.Or(req.Limit, limit)
		}
	}
	if failure == "" && d.Key != (stint.Key{}) &&
		(d.Limit != limit || key != (stint.Key{}) && d.Key != key) {
		failure = modeltest.Failure("a decision on " + d.Key.String() + " with the limit " +
			d.Limit.String())
	}
	return modeltest.Decision{Allowed: d.Allowed, Remaining: d.Remaining, RetryAfter: d.RetryAfter,
		ResetAfter: d.ResetAfter}, failure
}

// listed returns a bucket as the model has it.
func (s *limiterSystem) listed(key stint.Key, b stint.Bucket) modeltest.Listed {
	l := modeltest.Listed{Key: modeltest.Key{Name: uint16(key.Name), ID: key.ID}}
	l.Decision.Remaining, l.Decision.ResetAfter = b.Remaining, b.ResetAfter
	if !b.HeldUntil.IsZero() {
		l.HeldUntil = b.HeldUntil.UnixNano()
	}
	return l
}

// place returns a reservation. Calls may wait for commits at once.
func (s *limiterSystem) place(i int) stint.Reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places[i]
}

func (s *limiterSystem) Do(c modeltest.Call) (r modeltest.Reply) {
	s.clock.Set(c.Now)
	s.mu.Lock()
	limits := s.limits
	s.mu.Unlock()
	var keys []stint.Key
	var reqs []stint.Request
	for _, q := range c.Reqs {
		keys = append(keys, keyOf(q.Key))
		req := stint.Request{Key: keyOf(q.Key), Cost: q.Cost, Leave: q.Leave, Mode: stint.Mode(q.Mode)}
		if q.Limit != nil {
			req.Limit = limitOfModel(*q.Limit)
		}
		req.Spent = time.Unix(0, c.Now)
		if q.Spent != 0 {
			req.Spent = time.Unix(0, q.Spent)
		}
		reqs = append(reqs, req)
	}
	ds := make([]stint.Decision, len(reqs))
	for _, key := range keys {
		if s.calls++; s.promote != nil && s.calls*table.Golden>>62 == 0 {
			s.promote(s.Limiter, key)
		}
	}
	var d stint.Decision
	var err error
	switch c.Op {
	case modeltest.Spend:
		d, err = s.Spend(keys[0], reqs[0].Cost)
	case modeltest.SpendUpTo:
		reqs[0].Mode = stint.UpTo
		d, err = s.SpendAll(reqs[0])
		r.Taken = d.Taken
	case modeltest.Check:
		d, err = s.Check(keys[0], reqs[0].Cost)
	case modeltest.Refund:
		d, err = s.Refund(keys[0].Cost(reqs[0].Cost).SpentAt(reqs[0].Spent))
	case modeltest.SpendAll:
		d, err = s.SpendAll(reqs...)
	case modeltest.RefundAll:
		d, err = s.Refund(reqs...)
	case modeltest.Do:
		d, err = s.Limiter.Do(context.Background(), reqs, ds)
	case modeltest.DoEach:
		err = s.DoEach(context.Background(), reqs, ds)
		for i, d := range ds {
			decision, _ := s.decided(limits, nil, keys[i], d, nil)
			r.Decisions = append(r.Decisions, decision)
		}
	case modeltest.Reserve:
		var place stint.Reservation
		if place, err = s.Reserve(reqs[0]); err != nil {
			break
		}
		s.mu.Lock()
		s.places = append(s.places, place)
		r.Place = len(s.places) - 1
		s.mu.Unlock()
		r.Delay = place.Delay()
	case modeltest.Delay:
		r.Delay = s.place(c.Place).Delay()
	case modeltest.Cancel:
		err = s.place(c.Place).Cancel()
	case modeltest.SetHold:
		err = s.SetHold(keys[0], time.Unix(0, c.Until))
	case modeltest.Hold:
		var end time.Time
		if end, err = s.Hold(keys[0], time.Unix(0, c.Until)); !end.IsZero() {
			r.Until = end.UnixNano()
		}
	case modeltest.Reset:
		err = s.Reset(keys...)
	case modeltest.SetLimits:
		s.mu.Lock()
		s.limits = limitsOfModel(*c.Limits)
		s.mu.Unlock()
		err = s.SetLimits(s.limits)
	case modeltest.SetOverrides:
		change := stint.Override{Key: keys[0].Name.Key(c.Reqs[0].Key.ID)}
		for _, o := range c.Limits.Overrides {
			change.Limit = limitOfModel(o.Limit)
		}
		// They are in force before SetOverrides has saved what it converted.
		with, withErr := s.Limits().With(change)
		s.mu.Lock()
		s.limits = with
		s.mu.Unlock()
		if err = errors.Join(withErr, s.SetOverrides(change)); err != nil && !errors.Is(err, stint.ErrNotDurable) {
			s.mu.Lock()
			s.limits = s.Limits()
			s.mu.Unlock()
		}
	case modeltest.Flush:
		err = s.Flush()
	case modeltest.Tick:
		s.tick()
	case modeltest.Inspect:
		var b stint.Bucket
		b, err = s.Bucket(keys[0])
		r.Listed = append(r.Listed, s.listed(keys[0], b))
	case modeltest.Buckets:
		for b, listErr := range s.Buckets(keys[0].Name) {
			if err = listErr; err == nil {
				r.Listed = append(r.Listed, s.listed(b.Key, b))
			}
		}
	case modeltest.Stats:
		r.Resident = s.Stats().Resident
	case modeltest.Snapshot:
		_, err = s.Snapshot(io.Discard)
	case modeltest.Compact:
		err = s.compact()
	case modeltest.Close:
		err = s.Close()
	}
	switch c.Op {
	case modeltest.Spend, modeltest.SpendUpTo, modeltest.Check, modeltest.Refund, modeltest.SpendAll, modeltest.RefundAll,
		modeltest.Do:
		var key stint.Key
		if len(keys) == 1 {
			key = keys[0]
		}
		var decision modeltest.Decision
		decision, r.Failure = s.decided(limits, reqs, key, d, err)
		r.Decisions = append(r.Decisions, decision)
		if c.Op != modeltest.Do {
			break
		}
		for i, d := range ds {
			decision, failure := s.decided(limits, reqs[i:i+1], keys[i], d, err)
			r.Decisions, r.Failure = append(r.Decisions, decision), cmp.Or(r.Failure, failure)
		}
	default:
		r.Failure = failureOf(err)
	}
	return r
}

// diskStore is a Store whose loads and saves pass through a Disk.
type diskStore struct {
	stint.Store
	session *modeltest.Session
}

func (s *diskStore) Load(key stint.Key) (tat int64, err error) {
	err = s.session.Load(func() error {
		tat, err = s.Store.Load(key)
		return err
	})
	return tat, err
}

func (s *diskStore) Save(changes []stint.Change) error {
	return s.session.Save(func() error { return s.Store.Save(changes) })
}

// Env is an Env with Limiters on stores that open returns. A quarter of the
// buckets that a call asks for go through promote first, which may be nil.
func Env(tb testing.TB, opts stint.Options, disk *modeltest.Disk, open func(ls *stint.Limits) stint.Store,
	promote func(*stint.Limiter, stint.Key)) *modeltest.Env {
	env := &modeltest.Env{Disk: disk, MaxResident: opts.MaxResident}
	clock := modeltest.NewClock()
	opts.Now = clock.Now
	if opts.FlushInterval == 0 {
		opts.FlushInterval = math.MaxInt64
	}
	if opts.CommitTimeout == 0 {
		opts.CommitTimeout = time.Hour
	}
	// A history has thousands of Limiters. Only the latest is kept.
	var latest *limiterSystem
	endFlush := func() {}
	tb.Cleanup(func() {
		endFlush() // Close waits for it
		if latest != nil {
			latest.Crash()
		}
	})
	env.Open = func(ls modeltest.Limits) modeltest.System {
		s := &limiterSystem{clock: clock, limits: limitsOfModel(ls), promote: promote}
		store := open(s.limits)
		if file, ok := store.(interface{ Compact() error }); ok {
			s.compact = file.Compact
		}
		if disk != nil {
			session := disk.Open()
			store, s.crash = &diskStore{store, session}, session.Kill
		}
		if opts.FlushInterval != math.MaxInt64 {
			s.tick = func() {
				time.Sleep(opts.FlushInterval)
				synctest.Wait()
			}
		}
		l, err := stint.New(store, s.limits, &opts)
		if err != nil {
			tb.Fatal(err)
		}
		s.Limiter, latest = l, s
		return s
	}
	env.DelayFlush = func(at string) (bool, func() modeltest.Reply) {
		stopped, release := clock.Hold(0)
		if at == "save" && disk != nil {
			release()
			stopped, release = disk.Block()
		}
		endFlush = release
		flushed, l := make(chan error, 1), latest.Limiter
		go func() { flushed <- l.Flush() }()
		end := func() modeltest.Reply {
			release()
			return modeltest.Reply{Failure: failureOf(<-flushed)}
		}
		select {
		case <-stopped:
			return true, end
		case err := <-flushed:
			flushed <- err
			return false, end
		}
	}
	return env
}
