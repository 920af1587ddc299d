package hostlimit

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// A quota that follows the calendar crosses the socket with its zone, and each
// process has its own.
func TestCalendar(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	month := stint.EachMonth(100, tokyo).StartingAt(4 * time.Hour)
	month.Durability = stint.Synced
	path := filePath(t)
	limitsOf := func(l stint.Limit) *stint.Limits { return limitsWith(t, map[stint.Name]stint.Limit{perID: l}) }
	owner := openOn(t, path, limitsOf(month), nil)
	guest := openOn(t, path, limitsOf(month), nil)
	smaller := openOn(t, path, limitsOf(stint.EachMonth(50, tokyo).StartingAt(4*time.Hour)), nil)
	strange := openOn(t, path, limitsOf(stint.EachDay(5, liar(t))), nil)
	require.Equal(t, []Role{RoleOwner, RoleGuest, RoleGuest}, []Role{owner.Role(), guest.Role(), smaller.Role()})

	key := perID.Key("a")
	for i, l := range []*Limiter{owner, guest, smaller} {
		d := spend(t, l, key, 10)
		require.EqualValues(t, 10*(i+1), d.Limit.Burst-d.Remaining)
		_, end := d.Limit.PeriodAt(time.Now())
		require.WithinDuration(t, end, time.Now().Add(d.ResetAfter), time.Minute)
		want := l.Limits().For(key)
		require.Equal(t, want, d.Limit)
	}
	for _, l := range []*Limiter{owner, guest, smaller} {
		want := l.Limits().For(key)
		b := bucket(t, l, key)
		require.Equal(t, want, b.Limit)
		require.EqualValues(t, want.Burst-30, b.Remaining)
		for b, err := range l.Buckets(perID) {
			require.NoError(t, err)
			require.EqualValues(t, want.Burst-30, b.Remaining)
		}
	}
	require.ErrorIs(t, errorOf(guest.Reserve(key.Cost(1))), errors.ErrUnsupported)
	require.NoError(t, errorOf(guest.Wait(t.Context(), key.Cost(1))))

	// The owner has no such zone. The connection stays.
	_, err = strange.Spend(key, 1)
	require.ErrorIs(t, err, ErrZone)
	require.ErrorContains(t, err, `zone is "Atlantis/Sunken", want a name of the tz database`)
	require.NoError(t, errorOf(strange.Check(free.Key("a"), 1)))
	_, err = guest.SpendAll(stint.Request{Key: key, Cost: 1, Limit: stint.EachDay(5, tokyo).WithBurst(2)})
	require.ErrorAs(t, err, new(*stint.ConfigError))
	require.EqualValues(t, 69, check(t, guest, key).Remaining)
}

// A guest whose quotas follow another calendar asks about each bucket of a list.
// If the owner closes during the list, the guest asks the next owner.
func TestListBetweenOwners(t *testing.T) {
	path := filePath(t)
	quota := limitsWith(t, map[stint.Name]stint.Limit{perID: stint.EachYear(100, time.UTC)})
	owner, guest := openOn(t, path, limitsWith(t, nil), nil), openOn(t, path, quota, nil)
	require.Equal(t, RoleGuest, guest.Role())
	for _, id := range []string{"a", "b", "c"} {
		spend(t, guest, perID.Key(id), 7)
	}
	seen := 0
	for b, err := range guest.Buckets(perID) {
		require.NoError(t, err)
		require.EqualValues(t, 93, b.Remaining)
		if seen++; seen == 1 {
			require.NoError(t, owner.Close())
		}
	}
	require.Equal(t, 3, seen)
}

// A zone that the owner does not have fails one request of a DoEach. The
// others are decided, even if the owner does not have their Name yet.
func TestZoneBesideNewName(t *testing.T) {
	path := filePath(t)
	openOn(t, path, limitsWith(t, nil), nil)
	limits := newLimits(t, stint.Names{perID: testNames[perID], 7: {Label: "New", Limit: stint.PerHour(3)}})
	guest := openOn(t, path, limits, nil)
	ds := make([]stint.Decision, 2)
	err := guest.DoEach(context.Background(), []stint.Request{
		{Key: perID.Key("a"), Cost: 1, Limit: stint.EachDay(5, liar(t))}, {Key: stint.Name(7).Key("a"), Cost: 1},
	}, ds)
	require.ErrorIs(t, err, ErrZone)
	require.NotErrorIs(t, err, stint.ErrUnknownName)
	require.Zero(t, ds[0])
	require.True(t, ds[1].Allowed)
}

// Guests and the owner change quotas that follow the calendar. Each decides under
// its own, and what any of them has used is used.
func TestCalendarChanges(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	year := func(n int64) stint.Limit { return stint.EachYear(n, tokyo) }
	limitsOf := func(l stint.Limit) *stint.Limits { return limitsWith(t, map[stint.Name]stint.Limit{perID: l}) }
	now := time.Date(2027, 5, 6, 7, 8, 9, 0, time.UTC) // stands still
	opts := &Options{LimiterOptions: stint.Options{Now: func() time.Time { return now }}}
	path := filePath(t)
	owner, guest := openOn(t, path, limitsOf(year(100)), opts), openOn(t, path, limitsOf(year(100)), opts)
	require.Equal(t, []Role{RoleOwner, RoleGuest}, []Role{owner.Role(), guest.Role()})
	key := perID.Key("a")
	state := func(l *Limiter, limit stint.Limit, remaining int64) {
		t.Helper()
		want := time.Duration(0)
		if _, end := limit.PeriodAt(now); remaining < limit.Burst && limit.FollowsCalendar() {
			want = end.Sub(now)
		} else if remaining < limit.Burst {
			want = time.Duration(limit.Burst-remaining) * limit.Interval()
		}
		d := check(t, l, key)
		require.Equal(t, limit, d.Limit)
		require.Equal(t, remaining, d.Remaining)
		require.Equal(t, want, d.ResetAfter)
		b := bucket(t, l, key)
		require.Equal(t, limit, b.Limit)
		require.Equal(t, remaining, b.Remaining)
	}
	setLimits := func(l *Limiter, limit stint.Limit) { t.Helper(); require.NoError(t, l.SetLimits(limitsOf(limit))) }
	override := func(l *Limiter, limit stint.Limit) {
		t.Helper()
		require.NoError(t, l.SetOverrides(stint.Override{Key: key, Limit: limit}))
	}

	// SetLimits of a guest: another n or calendar keeps what was used, and the owner's
	// quota stays.
	require.True(t, spend(t, guest, key, 10).Allowed)
	for _, c := range []struct {
		limit     stint.Limit
		remaining int64
	}{
		{year(50), 40}, {year(5), 0}, {year(1000), 990}, {stint.EachMonth(30, tokyo), 20},
		{stint.EachYear(100, time.UTC), 90}, {year(100), 90},
	} {
		setLimits(guest, c.limit)
		state(guest, c.limit, c.remaining)
		state(owner, year(100), 90)
	}
	_, end := year(100).PeriodAt(now)

	// A rolling limit of a guest waits for the end of the owner's period.
	setLimits(guest, stint.PerHour(100))
	d := spend(t, guest, key, 1)
	require.Equal(t, end.Sub(now)+10-stint.PerHour(100).Tolerance()+stint.PerHour(100).Interval(), d.RetryAfter)
	setLimits(guest, year(100))

	// SetOverrides of a guest is the same. It stays after SetLimits with the plan.
	override(guest, year(20))
	state(guest, year(20), 10)
	require.True(t, spend(t, guest, key, 10).Allowed)
	require.Equal(t, end.Sub(now), spend(t, guest, key, 1).RetryAfter)
	with, err := limitsOf(year(70)).With(stint.Override{Key: key, Limit: year(20)})
	require.NoError(t, err)
	require.NoError(t, guest.SetLimits(with))
	state(guest, year(20), 0)
	state(owner, year(100), 80)
	override(guest, stint.Limit{})
	state(guest, year(70), 50)
	require.NoError(t, guest.SetOverrides(stint.Override{Key: key, Limit: year(60)}))

	// SetOverrides of the owner converts the bucket. The guest's quota finds the
	// rolling TAT before the end of the year.
	override(owner, stint.PerHour(100))
	state(owner, stint.PerHour(100), 80)
	state(guest, year(60), 60)
	override(owner, year(100))
	state(owner, year(100), 80)
	state(guest, year(60), 40)

	// Given limits, in both roles.
	for _, c := range []struct {
		by        *Limiter
		limit     stint.Limit
		cost      int64
		remaining int64
	}{
		{guest, year(10), 4, 6}, {owner, year(20), 1, 15}, {guest, year(6), 1, 0}, {owner, year(10), 0, 4},
	} {
		d, err := c.by.SpendAll(stint.Request{Key: free.Key("x"), Cost: c.cost, Limit: c.limit})
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Equal(t, c.limit, d.Limit)
		require.Equal(t, c.remaining, d.Remaining)
	}

	// The guest takes the file over, with its plan.
	require.NoError(t, owner.Close())
	state(guest, year(60), 40)
	require.Equal(t, RoleOwner, guest.Role())
	setLimits(guest, year(50))
	state(guest, year(50), 30)
}

// Quotas change while two processes spend, and none falls below what was used. No
// token is lost, and none is counted twice.
func TestCalendarChangesWhileSpending(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	limitsOf := func(n int64) *stint.Limits {
		return limitsWith(t, map[stint.Name]stint.Limit{perID: stint.EachYear(n, tokyo)})
	}
	now := time.Date(2027, 5, 6, 7, 8, 9, 0, time.UTC)
	opts := &Options{LimiterOptions: stint.Options{Now: func() time.Time { return now }}}
	path := filePath(t)
	owner, guest := openOn(t, path, limitsOf(2000), opts), openOn(t, path, limitsOf(2000), opts)
	require.Equal(t, []Role{RoleOwner, RoleGuest}, []Role{owner.Role(), guest.Role()})
	key := perID.Key("a")
	var spenders, changers sync.WaitGroup
	done := make(chan struct{})
	for _, l := range []*Limiter{owner, guest} {
		for range 2 {
			spenders.Go(func() {
				for range 400 {
					d, err := l.Spend(key, 1)
					if !assert.NoError(t, err) {
						return
					}
					assert.True(t, d.Allowed)
				}
			})
		}
		changers.Go(func() {
			for n := int64(1600); ; n = 4600 - n {
				assert.NoError(t, l.SetLimits(limitsOf(n)))
				assert.NoError(t, l.SetOverrides(stint.Override{Key: key, Limit: stint.EachYear(n+50, tokyo)}))
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	spenders.Wait()
	close(done)
	changers.Wait()
	for _, l := range []*Limiter{owner, guest} {
		require.NoError(t, l.SetOverrides(stint.Override{Key: key, Limit: stint.EachYear(1700, tokyo)}))
		require.EqualValues(t, 100, check(t, l, key).Remaining)
	}
}

// liar returns a zone that is in no database. Its clock is set once, an hour ahead.
func liar(t *testing.T) *time.Location {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	_, change := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).In(berlin).ZoneBounds()
	require.False(t, change.IsZero())
	data := append([]byte("TZif"), make([]byte, 28)...)
	for _, n := range []uint32{1, 2, 4, uint32(change.Unix())} { // changes, kinds of time, bytes of their names
		data = binary.BigEndian.AppendUint32(data, n)
	}
	data = append(data, 1, 0, 0, 0, 0, 0, 0, 0, 0, 14, 16, 0, 0, 'X', 0, 0, 0) // 0 s, then 3600 s ahead
	zone, err := time.LoadLocationFromTZData("Atlantis/Sunken", data)
	require.NoError(t, err)
	return zone
}
