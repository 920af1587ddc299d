package source

import (
	"errors"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/dbfile"
)

// Target has the buckets of one limit.
type Target struct {
	*Source
	kept  stint.Store // the buckets of the file, for a Limiter
	Name  stint.Name
	label string
}

// Nothing is a target without buckets.
func Nothing(label string) *Target { return TargetIn(stint.NewMemStore(), label) }

// TargetIn returns a target in a store that is not a file's.
func TargetIn(store stint.Store, label string) *Target {
	return &Target{&Source{Now: time.Now()}, store, 1, label}
}

// target opens the file, or connects to the program that has it, and finds the
// number of a limit's label. If the file has none, a label to write under gets one.
// To others that is an error, because nothing was ever spent there.
func (to Access) Target(f *File, label string) (t *Target, err error) {
	in, err := f.View(to)
	if err != nil {
		return nil, err
	}
	t = &Target{in, keepOpen{in.Store}, 0, label}
	if to == Reading {
		t.kept = unsaved{keepOpen{in.Store}}
	}
	if _, known := NumberOf(in.Labels, label); to != Writing || in.Owner != nil || known {
		t.Name, err = in.Number(label)
	} else if err = f.first(); err == nil {
		t.Name, err = in.Declare(label)
	}
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return t, nil
}

// keepOpen is a store that outlives its Limiter.
type keepOpen struct{ dbfile.Store }

func (keepOpen) Close() error { return nil }

// unsaved is a store that ignores what a Limiter deletes, such as holds that
// are over.
type unsaved struct{ keepOpen }

func (unsaved) Save([]stint.Change) error { return nil }

func (unsaved) SaveClock([]byte) error { return nil }

// decide acts on the bucket of an id.
func (t *Target) Decide(do Action, limit stint.Limit, id string, cost int64) (d stint.Decision, err error) {
	err = t.Do(limit, id, func(l Decider, _ stint.Key) (err error) {
		d, err = do(l, t.Request(limit, id, cost))
		return err
	})
	return d, err
}

// request returns a request for the bucket of an id. If a program answers, the
// request brings the limit of the flags, which replaces the program's own.
func (t *Target) Request(limit stint.Limit, id string, cost int64) stint.Request {
	r := stint.Request{Key: t.Name.Key(id), Cost: cost}
	if t.Owner != nil {
		r.Limit = limit
		if limit != stint.Unlimited && limit != stint.Blocked {
			r.Limit.Durability = stint.Synced
		}
	}
	return r
}

// do acts on the bucket of an id. When it returns, the result is durable. The file
// gets no label except the one that is used.
func (t *Target) Do(limit stint.Limit, id string, act func(l Decider, key stint.Key) error) error {
	key := t.Name.Key(id)
	if t.Owner != nil {
		return blame(act(t.Owner, key))
	}
	if limit != stint.Unlimited && limit != stint.Blocked {
		limit.Durability = stint.Flushed // Close makes it durable
	}
	spec := stint.NameSpec{Label: t.label, Limit: limit}
	if id == "" {
		spec.IDs = stint.Single
	}
	limits, err := stint.NewLimits(stint.Names{t.Name: spec})
	if err != nil {
		return console.Failed(err)
	}
	limiter, err := stint.New(t.kept, limits, &stint.Options{MaxResident: 64}) // it has one bucket, and a small cache is made faster
	if err != nil {
		return console.Failed(err)
	}
	return errors.Join(blame(act(limiter, key)), console.Failed(limiter.Close()))
}

// blame returns an error as a failure, unless the arguments caused it.
func blame(err error) error {
	if errors.Is(err, stint.ErrCostOverBurst) || errors.Is(err, stint.ErrNegativeCost) || errors.Is(err, stint.ErrInvalidID) {
		return err
	}
	return console.Failed(err)
}

// Decider is a Limiter, or the program that has the file.
type Decider interface {
	stint.Decider
	SpendAll(reqs ...stint.Request) (stint.Decision, error)
	Reset(keys ...stint.Key) error
	Flush() error
}

// Action is what a command does to one bucket.
type Action func(l Decider, r stint.Request) (stint.Decision, error)
