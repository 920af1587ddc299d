// Package status collects what a status page shows. Package statuspage shows it
// as a page and as JSON, and stint serve gives the counters to Prometheus. This
// package links neither net/http nor templates, because every command of stint
// would initialise them.
//
// # Locks
//
// Collector.sampling is held while a sample is taken or a report is made, which
// may wait for the store. Collector.mu is held for moments only, because requests
// to the program wait for it; it may be taken while sampling is held.
package status

import (
	"fmt"
	"hash/maphash"
	"iter"
	"net/url"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// Limiter is what a Collector reports on.
type Limiter interface {
	stint.Decider
	Durability() stint.Durability
	Health() error
	Held() iter.Seq[stint.Held]
	Stats() stint.Stats
}

// A Collector makes reports on a Limiter.
type Collector struct {
	lim     Limiter
	hideIDs bool
	seed    maphash.Seed // of the digits that stand for ids
	started time.Time

	sampling sync.Mutex // guards the next three; mu may be taken while it is held
	before   map[stint.Name]stint.LimitStats
	charts   map[stint.Name]*series
	made     *Report // the last report

	mu       sync.Mutex // guards the rest; requests wait for it
	observes bool       // something passes decisions to it
	failed   int64      // requests that were answered with an error
	looked   time.Time  // time of the sample in before; sampling is held to write it
	observed map[stint.Name]*observed
}

// observed is what the Collector has observed of one limit.
type observed struct {
	spent, denied topK
	verdicts      verdicts
	early         stint.LimitStats // in the second after Collector.looked
	late          stint.LimitStats // that lead to the next sample
	inFlightPeak  int64
}

// NewCollector returns a Collector. If hideIDs is set, its reports have digits
// instead of ids, and no texts of errors.
func NewCollector(lim Limiter, hideIDs bool) *Collector {
	started := lim.Now()
	return &Collector{
		lim:      lim,
		hideIDs:  hideIDs,
		seed:     maphash.MakeSeed(),
		started:  started,
		before:   lim.Stats().Limits,
		charts:   make(map[stint.Name]*series),
		looked:   started,
		observed: make(map[stint.Name]*observed),
	}
}

// errorText returns the text of an error, unless ids are hidden.
func (c *Collector) errorText(err error) string {
	if c.hideIDs {
		return "the error may name ids, which this page hides"
	}
	return err.Error()
}

// BucketID names a bucket for people.
type BucketID struct {
	ID string `json:"id"`

	href string
}

// Href returns the link to the page's search for the id, or "" if ids are hidden.
func (b BucketID) Href() string { return b.href }

// BucketID returns the name of a bucket.
func (c *Collector) BucketID(key stint.Key) BucketID {
	switch {
	case c.hideIDs:
		return BucketID{ID: fmt.Sprintf("#%06x", maphash.Comparable(c.seed, key)&0xffffff)}
	case key.ID == "":
		return BucketID{"everyone", "?id="}
	}
	return BucketID{key.ID, "?id=" + url.QueryEscape(key.ID)}
}
