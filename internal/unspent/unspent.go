// Package unspent takes a spend back out of a Decision, for rules of HTTP and
// gRPC servers that spent nothing.
package unspent

import (
	"time"

	"github.com/stint-go/stint"
)

// TakeOut gives d the state of the bucket without the spend. d is the Decision
// of a Check: if it allows, it has the state that a spend of cost would leave.
func TakeOut(d *stint.Decision, cost int64) {
	if !d.Allowed || d.Limit.Count <= 0 {
		return
	}
	d.Remaining += cost
	switch {
	case !d.Limit.FollowsCalendar():
		d.ResetAfter = max(0, d.ResetAfter-time.Duration(cost)*d.Limit.Interval())
	case d.Remaining >= d.Limit.Burst:
		d.ResetAfter = 0
	}
}
