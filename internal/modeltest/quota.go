package modeltest

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
	if q.Used+cost > n {
		return false
	}
	q.Used += cost
	return true
}

// Refund returns tokens that were spent in the present period.
func (q *Quota) Refund(cost int64) { q.Used = max(0, q.Used-cost) }

// Fit is for a smaller quota: a bucket is empty at worst.
func (q *Quota) Fit(n int64) { q.Used = min(q.Used, n) }

// Remaining returns the tokens that are left of n.
func (q *Quota) Remaining(n int64) int64 { return n - q.Used }
