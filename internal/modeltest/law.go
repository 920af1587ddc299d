package modeltest

import "fmt"

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
