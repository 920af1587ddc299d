package statuspage

import (
	"maps"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/status"
)

// found is the answer to a search: the buckets of an id, by number of the limit.
type found struct {
	ID      string
	Buckets []bucketState
}

// bucketState is one bucket, as a search shows it.
type bucketState struct {
	status.BucketID
	Label, Limit     string // Limit as limitText has it
	Burst, Remaining int64
	Full             string    // when it is full, in words; "" if it is
	HeldUntil        time.Time // zero if it is not held
	HeldFor          float64   // seconds

	limit stint.Limit
}

// search returns the buckets of an id that are limited or held. The id has one
// spelling in each limit. A limit that all requests share has the empty id.
func (p *Page) search(id string) *found {
	f := &found{ID: id}
	names := p.lim.Limits().Names()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		key, err := names.Key(name, id)
		if err != nil {
			continue
		}
		if s, ok := p.state(key); ok && (s.limit != stint.Unlimited || !s.HeldUntil.IsZero()) {
			f.Buckets = append(f.Buckets, s)
		}
	}
	return f
}

// state returns the state of a bucket, and false if the limit is not declared
// or the store fails, which Health reports.
func (p *Page) state(key stint.Key) (bucketState, bool) {
	b, err := p.lim.Bucket(key)
	if err != nil {
		return bucketState{}, false
	}
	spec, _ := p.lim.Limits().Spec(key.Name)
	s := bucketState{
		BucketID: p.collector.BucketID(key), Label: spec.Label, Limit: limitText(b.Limit),
		Burst: b.Limit.Burst, Remaining: b.Remaining, limit: b.Limit,
	}
	if b.ResetAfter > 0 && b.Limit.FollowsCalendar() {
		s.Full = "resets " + display.Reset(b.Limit, p.lim.Now())
	} else if b.ResetAfter > 0 {
		s.Full = "full in " + waitText(b.ResetAfter.Seconds())
	}
	if !b.HeldUntil.IsZero() {
		s.HeldUntil, s.HeldFor = b.HeldUntil.UTC(), b.HeldUntil.Sub(p.lim.Now()).Seconds()
	}
	return s, true
}
