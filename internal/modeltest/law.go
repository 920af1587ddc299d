package modeltest

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Law checks one bucket. In any stretch of time, the System may admit at most
// burst + elapsed ÷ T. Law replays the admissions in order of time into a leaky
// bucket, and does not know how the System decides.
type Law struct {
	limit Limit
	level int64 // the instant at which the leaky bucket is empty
}

// NewLaw returns the law of a limit that comes into force.
func NewLaw(l Limit) *Law { return &Law{limit: l} }

// Admit counts an admission, and returns an error if it breaks the law.
func (w *Law) Admit(at, cost int64) error {
	w.level = max(w.level, at) + cost*w.limit.T()
	if over := w.level - at - w.limit.Tau(); over > 0 {
		return fmt.Errorf("%d ns of tokens more than burst + elapsed ÷ T, at %d", over, at)
	}
	return nil
}

// Refund allows for tokens that a caller gave back, or more of them.
func (w *Law) Refund(at, cost int64) {
	w.level = max(min(w.level, at), w.level-cost*w.limit.T())
}

// Reset allows for a bucket that was made full.
func (w *Law) Reset() { w.level = 0 }

// Admission is a cost that was admitted between two instants.
type Admission struct{ After, Before, Cost int64 }

// At returns the admission of a cost at one instant.
func At(at, cost int64) Admission { return Admission{at, at, cost} }

// Excess returns an error if more than burst + elapsed ÷ interval was admitted
// over some stretch of time. An admission may be anywhere between its two
// instants, so each stretch counts as the longest that these allow.
func Excess(burst int64, interval time.Duration, log []Admission) error {
	log = slices.Clone(log)
	slices.SortStableFunc(log, func(a, b Admission) int { return cmp.Compare(a.Before, b.Before) })
	for _, first := range log {
		sum := int64(0)
		for _, a := range log {
			if a.After < first.After {
				continue
			}
			sum += a.Cost
			if (sum-burst)*int64(interval) > a.Before-first.After {
				return fmt.Errorf("%d tokens in %v, of %d and one in %v", sum, time.Duration(a.Before-first.After), burst, interval)
			}
		}
	}
	return nil
}
