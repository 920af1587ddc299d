package stint

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An error of a call names the bucket by the label of its limit, as limits
// files and metrics do.
func TestErrorsNameTheLabel(t *testing.T) {
	const logins, everyone, daily, off, held Name = 1, 2, 3, 4, 5
	queue, commits := PerMinute(3), PerMinute(3)
	queue.Queue, commits.Durability = 1, Synced
	r := rigOn(t, NewMemStore(), limitsOf(t, Names{
		logins: {Label: "Logins", Limit: queue}, everyone: {Label: "Everyone", ID: Shared, Limit: PerMinute(3)},
		daily: {Label: "Daily", Limit: EachDay(3, nil)}, off: {Label: "Off", Limit: Blocked},
		held: {Label: "Held", Limit: commits},
	}, nil), Options{})
	shares := shareRig(t, Memory)
	bob := logins.Key("bob")
	soon, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	r.take(bob, 3)
	r.reserve(bob, 1)
	r.take(daily.Key("bob"), 3)
	for _, c := range []struct {
		call func() error
		kind error
		text string
	}{
		{func() error { _, err := r.Spend(bob, -1); return err },
			ErrNegativeCost, "stint: negative cost: -1 for Logins:bob"},
		{func() error { _, err := r.Check(Name(9).Key("bob"), -1); return err },
			ErrNegativeCost, "stint: negative cost: -1 for 9:bob"},
		{func() error { _, err := r.Spend(bob, 4); return err },
			ErrCostOverBurst, "stint: cost over burst: 4 of 3 for Logins:bob"},
		{func() error { _, err := r.Spend(everyone.Key(""), 4); return err },
			ErrCostOverBurst, "stint: cost over burst: 4 of 3 for Everyone"},
		{func() error {
			return r.DoEach(context.Background(), []Request{{Key: bob, Cost: 4}}, make([]Decision, 1))
		},
			ErrCostOverBurst, "request 0: stint: cost over burst: 4 of 3 for Logins:bob"},
		{func() error { _, err := r.SpendAll(Request{Key: bob}, Request{Key: bob}); return err },
			ErrDuplicateKey, "stint: duplicate key: Logins:bob"},
		{func() error { _, err := r.Reserve(bob.Cost(1)); return err },
			ErrQueueFull, "stint: queue is full: Logins:bob, the next turn is in 40s"},
		{func() error { _, err := r.Reserve(off.Key("bob").Cost(1)); return err },
			ErrBlocked, "stint: id is blocked: Off:bob"},
		{func() error { _, err := r.Reserve(daily.Key("bob").Cost(1)); return err },
			ErrCalendar, "stint: not for quotas that follow the calendar: Daily:bob has no queue"},
		{func() error { return errorOf(r.Wait(soon, daily.Key("bob").Cost(1))) },
			context.DeadlineExceeded, "stint: wait for Daily:bob: its turn would come too late: in "},
		{func() error {
			r.disk.fail(errDisk, "save")
			return errorOf(r.Hold(held.Key("bob"), r.clock.Now().Add(time.Hour)))
		},
			errDisk, "stint: hold Held:bob: "},
		{func() error { _, err := shares.Spend(theTotal, 801); return err },
			ErrCostOverBurst, "stint: cost over burst: 801 of 800 for Total"},
		{func() error { _, err := shares.Spend(shareFloor.Key("acme"), 1); return err },
			ErrShare, "stint: not for shares of a total: TenantFloor:acme is a floor"},
		{func() error { _, err := shares.Reserve(acme.Cost(1)); return err },
			ErrShare, "stint: not for shares of a total: Tenant:acme has no queue"},
		{func() error { _, err := shares.Raise(Request{Key: acme}, shares.clock.Now()); return err },
			ErrShare, "stint: not for shares of a total: Tenant:acme cannot be raised"},
		{func() error { _, err := shares.SpendAll(Request{Key: theTotal, Limit: PerSecond(1)}); return err },
			ErrShare, "stint: not for shares of a total: Total is a total"},
		{func() error { _, err := shares.SpendAll(Request{Key: acme, Limit: EachDay(1, nil)}); return err },
			ErrShare, "stint: not for shares of a total: Tenant:acme cannot be held to 1/day"},
	} {
		err := c.call()
		require.ErrorIs(t, err, c.kind)
		require.ErrorContains(t, err, c.text)
	}
}
