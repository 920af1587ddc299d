package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-go/stint"
)

// heldCounts are the numbers of the holds in force and of queued requests.
type heldCounts struct {
	Holds   int64 `json:"holds"`
	Waiting int64 `json:"waiting"`
}

// HeldReport is a bucket that is held.
type HeldReport struct {
	BucketID
	Label   string    `json:"label"`
	Until   time.Time `json:"until"`
	HeldFor float64   `json:"held_seconds"`

	key stint.Key
}

// shownHolds is the length of the list of holds.
const shownHolds = 100

// held adds the holds and the counts to the report, and returns the counts of each
// limit.
func (c *Collector) held(rep *Report, limits *stint.Limits) map[stint.Name]*heldCounts {
	counts := make(map[stint.Name]*heldCounts)
	list := []HeldReport{}
	var floor time.Time // holds that end before it are not listed
	for h := range c.lim.Held() {
		if _, declared := limits.Spec(h.Key.Name); !declared {
			continue
		}
		n := entry(counts, h.Key.Name)
		n.Waiting += int64(h.Waiting)
		rep.Waiting += int64(h.Waiting)
		if h.HeldUntil.IsZero() {
			continue
		}
		n.Holds++
		rep.Holds++
		if h.HeldUntil.Before(floor) {
			continue
		}
		list = append(list, HeldReport{key: h.Key, Until: h.HeldUntil.UTC()})
		if len(list) == 2*shownHolds { // bounds the memory and the time that many holds take
			list = lastHolds(list)
			floor = list[len(list)-1].Until
		}
	}
	rep.Held = lastHolds(list)
	for i := range rep.Held {
		h := &rep.Held[i]
		spec, _ := limits.Spec(h.key.Name)
		h.BucketID, h.Label = c.BucketID(h.key), spec.Label
		h.HeldFor = h.Until.Sub(rep.Time).Seconds()
	}
	return counts
}

// lastHolds returns the holds that end last, the latest first.
func lastHolds(list []HeldReport) []HeldReport {
	slices.SortFunc(list, func(a, b HeldReport) int {
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.key.Name, b.key.Name), cmp.Compare(a.key.ID, b.key.ID))
	})
	return list[:min(shownHolds, len(list))]
}
