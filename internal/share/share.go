package share

import "math"

// Never is the wait of a request that a bucket never admits.
const Never = math.MaxInt64

// Waits are the nanoseconds until each bucket of a class admits a request; 0
// means now.
type Waits struct {
	Ceiling int64
	Floor   int64 // Never without a floor
	Total   int64 // to pay for an own request
	Loan    int64 // to lend, and keep what the floors are promised
}

// Own returns the wait until the floor pays.
func (w *Waits) Own() int64 { return max(w.Floor, w.Total) }

// TotalPays reports whether the total has the tokens, for an own request or a
// loan.
func (w *Waits) TotalPays() bool { return min(w.Own(), w.Loan) == 0 }

// FloorPays reports whether an own request passes.
func (w *Waits) FloorPays() bool { return max(w.Ceiling, w.Own()) == 0 }

// RetryAfter returns the wait until the request is allowed.
func (w *Waits) RetryAfter() int64 { return max(w.Ceiling, min(w.Own(), w.Loan)) }

// Mistake is a mistake in the limits of a tree of shares.
type Mistake struct {
	Label string // of the limit that is wrong
	ID    string // of the override that is wrong
	OfID  bool   // the override of ID is wrong, not the whole limit
	Text  string
}

func (m *Mistake) Error() string { return m.Text }

// ShowsFloor reports whether a decision shows the state of the floor. Otherwise
// it shows the total. An allowed decision shows the floor if the floor has more
// tokens left than the total can lend. A denied decision shows the floor if an
// own request passes before a loan, and waits for the floor and not for the
// total.
func (w *Waits) ShowsFloor(floor, lendable int64) bool {
	if w.TotalPays() {
		return floor > lendable
	}
	return w.Floor >= w.Total && w.Own() < w.Loan
}
