package statuspage

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// heldCounts are the numbers of the holds in force and of queued requests.
type heldCounts struct {
	Holds   int64 `json:"holds"`
	Waiting int64 `json:"waiting"`
}

// heldReport is a bucket that is held.
type heldReport struct {
	bucketID
	Label   string    `json:"label"`
	Until   time.Time `json:"until"`
	HeldFor float64   `json:"held_seconds"`

	key stint.Key
}

// shownHolds is the length of the list of holds.
const shownHolds = 100

// held adds the holds and the counts to the report, and returns the counts of each
// limit.
func (p *Page) held(rep *report, limits *stint.Limits) map[stint.Name]*heldCounts {
	counts := make(map[stint.Name]*heldCounts)
	list := []heldReport{}
	var floor time.Time // holds that end before it are not listed
	for h := range p.lim.Held() {
		if _, declared := limits.Spec(h.Key.Name); !declared || rules.IsLockOutCount(h.Key) {
			continue
		}
		c := entry(counts, h.Key.Name)
		c.Waiting += int64(h.Waiting)
		rep.Waiting += int64(h.Waiting)
		if h.Until.IsZero() {
			continue
		}
		c.Holds++
		rep.Holds++
		if h.Until.Before(floor) {
			continue
		}
		list = append(list, heldReport{key: h.Key, Until: h.Until.UTC()})
		if len(list) == 2*shownHolds { // bounds the memory and the time that many holds take
			list = lastHolds(list)
			floor = list[len(list)-1].Until
		}
	}
	rep.Held = lastHolds(list)
	for i := range rep.Held {
		h := &rep.Held[i]
		spec, _ := limits.Spec(h.key.Name)
		h.bucketID, h.Label = p.bucketID(h.key), spec.Label
		h.HeldFor = h.Until.Sub(rep.Time).Seconds()
	}
	return counts
}

// lastHolds returns the holds that end last, the latest first.
func lastHolds(list []heldReport) []heldReport {
	slices.SortFunc(list, func(a, b heldReport) int {
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.key.Name, b.key.Name), cmp.Compare(a.key.ID, b.key.ID))
	})
	return list[:min(shownHolds, len(list))]
}
