package modeltest

import "fmt"

// Quota is the model of a bucket that follows the calendar: a counter of what
// was used in one period. It knows nothing of TATs. The caller tells it the end
// of the period that an instant is in.
type Quota struct {
	End  int64 // of the period that Used is of
	Used int64
}

// Turn begins a new period if the last one is over.
func (q *Quota) Turn(end int64) {
	if end > q.End {
		*q = Quota{End: end}
	}
}

// Spend spends cost tokens of n if they are there.
func (q *Quota) Spend(n, cost int64) bool {
	if cost > 0 && q.Used+cost > n {
		return false
	}
	q.Used += cost
	return true
}

// Refund returns tokens that were spent in the present period.
func (q *Quota) Refund(cost int64) { q.Used = max(0, q.Used-cost) }

// PeriodLaw checks what one period of a bucket admits, over all quotas that were
// in force in it. It knows nothing of the bucket.
type PeriodLaw struct{ largest, admitted, returned int64 }

// Limit notes a quota that is in force.
func (w *PeriodLaw) Limit(n int64) { w.largest = max(w.largest, n) }

// Largest returns the largest quota that was in force.
func (w *PeriodLaw) Largest() int64 { return w.largest }

// Admit counts an admission, and returns an error if the period has admitted
// more than the largest quota, and what was returned.
func (w *PeriodLaw) Admit(cost int64) error {
	w.admitted += cost
	if w.admitted > w.largest+w.returned {
		return fmt.Errorf("a period admits %d, of %d at most, and %d that were returned",
			w.admitted, w.largest, w.returned)
	}
	return nil
}

// Return allows for tokens that a caller gave back, or a crash forgot.
func (w *PeriodLaw) Return(n int64) { w.returned += n }
