package worlds

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/calendar"
	"github.com/stint-go/stint/internal/modeltest"
	"github.com/stint-go/stint/internal/testlength"
)

var randomHistories = flag.Int("histories", 0, "random histories of TestCalendarWorld; a million take minutes")

// TestCalendarWorld compares histories of a Limiter with a counter for each
// period: spends, refunds, requests together, resets, kills, restarts, eviction,
// flushes, other quotas, and a clock that jumps to the edges of periods. After a
// kill the Limiter may have forgotten what its level allows, and no more.
// TestCalendarKill kills processes.
func TestCalendarWorld(t *testing.T) {
	t.Parallel()
	histories := int64(testlength.Of(15_000, 600))
	if *randomHistories > 0 {
		histories = int64(*randomHistories)
	}
	var begun, decisions, kills atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for n := begun.Add(1); n <= histories && !t.Failed(); n = begun.Add(1) {
				w := newCalendarWorld(t, uint64(n))
				w.inMemory()
				for range 40 {
					w.step()
				}
				w.close()
				decisions.Add(int64(w.decisions))
				kills.Add(int64(w.kills))
			}
		})
	}
	workers.Wait()
	t.Logf("%d histories, %d decisions, %d kills, 0 differences", histories, decisions.Load(), kills.Load())
}

var calendarZones = []string{
	"UTC", "America/Los_Angeles", "Europe/Berlin", "America/Santiago", "Pacific/Apia", "America/Havana",
	"Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Cairo", "America/St_Johns",
}

// calendarWorld is a Limiter with one quota for each level, and what its
// buckets must have.
type calendarWorld struct {
	t          *testing.T
	seed       uint64
	rng        *rand.Rand
	clock      *modeltest.Clock
	l          calendarSystem
	start      func() calendarSystem // opens what the last one left
	resident   int                   // MaxResident: buckets leave memory unless it is 0
	limits     map[stint.Name]stint.Limit
	configured *stint.Limits
	buckets    map[stint.Key]*calendarBucket
	decisions  int
	kills      int
	log        []calendarNote
}

// calendarSystem is the Limiter of a calendarWorld, here or in another process.
type calendarSystem interface {
	Spend(key stint.Key, cost int64) (stint.Decision, error)
	Check(key stint.Key, cost int64) (stint.Decision, error)
	Do(ctx context.Context, reqs []stint.Request, ds []stint.Decision) (stint.Decision, error)
	Refund(reqs ...stint.Request) (stint.Decision, error)
	Reset(keys ...stint.Key) error
	SetLimits(ls *stint.Limits) error
	override(limits map[stint.Name]stint.Limit) error // for each id, with SetOverrides
	Flush() error
	Close() error

	// kill ends it without a Close. It may begin a spend before, and returns the
	// answer if there was one.
	kill(key stint.Key, cost int64) (answer *stint.Decision, begun bool)
}

// calendarLimiter is a calendarSystem on a MemStore.
type calendarLimiter struct {
	*stint.Limiter
	dead *atomic.Bool // no save reaches the store
}

func (l calendarLimiter) override(limits map[stint.Name]stint.Limit) error {
	return overrideCalendar(l.Limiter, limits)
}

// mostQuota is the largest quota of a calendar limit.
const mostQuota = 700_000_000_000

var calendarIDs = []string{"a", "b", "c"}

func overrideCalendar(l *stint.Limiter, limits map[stint.Name]stint.Limit) error {
	for _, id := range calendarIDs {
		var overrides []stint.Override
		for name, limit := range limits {
			overrides = append(overrides, stint.Override{Key: name.Key(id), Limit: limit})
		}
		if err := l.SetOverrides(overrides...); err != nil {
			return err
		}
	}
	return nil
}

func (l calendarLimiter) kill(stint.Key, int64) (answer *stint.Decision, begun bool) {
	l.dead.Store(true)
	l.Close()
	return nil, false
}

// calendarNote is a step of a history, for the report of a failure.
type calendarNote struct {
	format string
	args   []any
	at     int64
}

// calendarBucket is the model of a bucket: what was used, and the least that a
// kill may leave of it.
type calendarBucket struct {
	modeltest.Quota
	law     modeltest.PeriodLaw
	kept    int64 // of Used, after a kill
	peak    int64 // the most that was used at one time
	touched bool  // in this period
}

func newCalendarWorld(t *testing.T, seed uint64) *calendarWorld {
	w := &calendarWorld{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 34)), clock: modeltest.NewClock(),
		resident: []int{0, 4}[seed%2], limits: make(map[stint.Name]stint.Limit), buckets: make(map[stint.Key]*calendarBucket),
	}
	zone, err := calendar.Zone(calendarZones[w.rng.IntN(len(calendarZones))]) // each is loaded once
	w.must(err)
	unit := calendar.Units()[w.rng.IntN(len(calendar.Units()))]
	start := time.Duration(w.rng.IntN(3)) * 20 * time.Minute
	for name := range levelNames {
		limit, err := stint.ParseLimit(fmt.Sprintf("%d/%v", w.quota(), calendar.Of(unit, zone, start).Calendar()))
		w.must(err)
		limit.Durability = stint.Durability(name)
		w.limits[name] = limit
	}
	// Half of the histories begin near a change of the zone's clock.
	now := time.Date(1990+w.rng.IntN(48), 1, 1+w.rng.IntN(366), 0, 0, 0, 0, time.UTC)
	if _, change := now.In(zone).ZoneBounds(); !change.IsZero() && w.rng.IntN(2) == 0 {
		now = change.Add(time.Duration(w.rng.Int64N(int64(60*time.Hour))) - 30*time.Hour)
	}
	w.clock.Set(now.UnixNano())
	w.configure()
	return w
}

// inMemory opens a Limiter on a MemStore.
func (w *calendarWorld) inMemory() {
	store := stint.NewMemStore()
	w.start = func() calendarSystem {
		dead := new(atomic.Bool)
		disk := &faultyStore{store, func(op string, _ bool) error {
			if op == "save" && dead.Load() {
				return errDisk
			}
			return nil
		}}
		l, err := stint.New(disk, w.configured, &stint.Options{Now: w.clock.Now, FlushInterval: 1000 * time.Hour, MaxResident: w.resident})
		w.must(err)
		return calendarLimiter{l, dead}
	}
	w.l = w.start()
}

func (w *calendarWorld) quota() int64 {
	return []int64{1, 2, 7, 100, 10_000, mostQuota}[w.rng.IntN(6)]
}

func (w *calendarWorld) configure() {
	var err error
	w.configured, err = stint.NewLimits(levelNames.WithLimits(w.limits))
	w.must(err)
}

func (w *calendarWorld) now() time.Time { return w.clock.Now() }

func (w *calendarWorld) close() { w.must(w.l.Close()) }

// must is cheaper than require.NoError, which costs as much as a decision.
func (w *calendarWorld) must(err error) {
	if err != nil {
		w.fail("%v", err)
	}
}

func (w *calendarWorld) fail(format string, args ...any) {
	w.t.Helper()
	text := fmt.Sprintf(format, args...)
	for _, line := range w.log {
		text += fmt.Sprintf("\n\t"+line.format+" at %v", append(line.args, time.Unix(0, line.at).UTC())...)
	}
	w.t.Fatalf("history %d, at %v: %s", w.seed, w.now().UTC(), text)
}

func (w *calendarWorld) note(format string, args ...any) {
	w.log = append(w.log, calendarNote{format, args, w.clock.Nanos()})
}

// of returns the model of a bucket in the present period, and the end of that.
func (w *calendarWorld) of(key stint.Key) (*calendarBucket, int64) {
	b := w.buckets[key]
	if b == nil {
		b = &calendarBucket{}
		w.buckets[key] = b
	}
	_, end := w.limits[key.Name].PeriodAt(w.now())
	if end.UnixNano() > b.End {
		b.kept, b.peak, b.touched = 0, 0, false
		b.law = modeltest.PeriodLaw{}
	}
	b.Turn(end.UnixNano())
	b.law.Limit(w.limits[key.Name].Burst)
	return b, end.UnixNano()
}

func (w *calendarWorld) key() stint.Key {
	return stint.Name(1 + w.rng.IntN(len(levelNames))).Key(calendarIDs[w.rng.IntN(3)])
}

// changed notes what a kill would leave of a bucket after a change.
func (w *calendarWorld) changed(key stint.Key, b *calendarBucket) {
	b.touched, b.peak = true, max(b.peak, b.Used)
	switch stint.Durability(key.Name) {
	case stint.Leased, stint.Synced:
		b.kept = b.Used
	default:
		b.kept = min(b.kept, b.Used)
	}
}

// saved notes that the store has all buckets as they are.
func (w *calendarWorld) saved() {
	for key := range w.buckets {
		b, _ := w.of(key)
		b.kept = b.Used
	}
}

func (w *calendarWorld) check(d stint.Decision, key stint.Key, b *calendarBucket, end int64, allowed bool, used int64) {
	w.decisions++
	n, now := w.limits[key.Name].Burst, w.now().UnixNano()
	want := stint.Decision{Allowed: allowed, Remaining: max(0, n-used), Key: key, Limit: w.limits[key.Name]}
	if used > 0 {
		want.ResetAfter = time.Duration(end - now)
	}
	if !allowed {
		want.RetryAfter = time.Duration(end - now)
	}
	want.Taken = d.Taken // calendarBucket has it
	want.SetAt(w.now())
	d.SetAt(w.now()) // a decision of another process comes without its instant
	if d != want {
		w.fail("%v: got %+v, want %+v", key, d, want)
	}
}

func (w *calendarWorld) cost(n int64) int64 {
	return []int64{0, 1, 1, 1 + w.rng.Int64N(n), n}[w.rng.IntN(5)]
}

func (w *calendarWorld) step() {
	key := w.key()
	b, end := w.of(key)
	n := w.limits[key.Name].Burst
	cost := min(w.cost(n), n)
	switch what := w.rng.IntN(22); {
	case what < 8:
		w.note("spend %d of %v", cost, key)
		d, err := w.l.Spend(key, cost)
		w.must(err)
		allowed := b.Spend(n, cost)
		if allowed && cost > 0 {
			w.changed(key, b)
		}
		if d.Allowed {
			w.must(b.law.Admit(cost))
		}
		w.check(d, key, b, end, allowed, b.Used)
	case what < 9:
		w.note("check %d of %v", cost, key)
		d, err := w.l.Check(key, cost)
		w.must(err)
		after := b.Quota
		allowed := after.Spend(n, cost)
		w.check(d, key, b, end, allowed, after.Used)
	case what < 11: // a refund of this period, or of an earlier one
		spent := w.now()
		if w.rng.IntN(2) == 0 {
			start, _ := w.limits[key.Name].PeriodAt(spent)
			spent = start.Add(-time.Duration(1 + w.rng.Int64N(int64(time.Hour))))
		} else {
			b.Refund(cost)
			b.law.Return(cost)
		}
		w.note("refund %d to %v, spent %v", cost, key, spent.UTC())
		d, err := w.l.Refund(stint.Request{Key: key, Cost: cost, Spent: spent})
		w.must(err)
		w.changed(key, b)
		w.check(d, key, b, end, true, b.Used)
	case what < 13: // two at once
		other := w.key()
		if other == key {
			return
		}
		o, otherEnd := w.of(other)
		m := w.limits[other.Name].Burst
		otherCost := min(w.cost(m), m)
		w.note("spend %d of %v and %d of %v", cost, key, otherCost, other)
		ds := make([]stint.Decision, 2)
		d, err := w.l.Do(context.Background(), []stint.Request{{Key: key, Cost: cost}, {Key: other, Cost: otherCost}}, ds)
		w.must(err)
		if d.Allowed {
			w.must(b.law.Admit(cost))
			w.must(o.law.Admit(otherCost))
		}
		after, otherAfter := b.Quota, o.Quota
		first, second := after.Spend(n, cost), otherAfter.Spend(m, otherCost)
		if first && second {
			b.Quota, o.Quota = after, otherAfter
			w.changed(key, b)
			w.changed(other, o)
			if cost > 0 && otherCost > 0 && max(key.Name, other.Name) >= stint.Name(stint.Leased) { // one commit has both
				b.kept, o.kept = b.Used, o.Used
			}
		}
		w.check(ds[0], key, b, end, first, after.Used)
		w.check(ds[1], other, o, otherEnd, second, otherAfter.Used)
	case what < 14:
		w.note("reset %v", key)
		w.must(w.l.Reset(key))
		b.Used, b.kept = 0, 0
		b.law.Return(b.peak)
	case what < 16:
		w.note("flush")
		w.must(w.l.Flush())
		w.saved()
	case what < 17:
		w.note("restart")
		w.close()
		w.saved()
		w.l = w.start()
	case what < 18:
		w.kill()
	case what < 19: // another quota, and perhaps the one before again
		is := w.limits[key.Name]
		for range 1 + w.rng.IntN(2) {
			was := is
			is.Burst = w.quota()
			is.Count = is.Burst
			w.setLimit(key.Name, is)
			if w.rng.IntN(2) == 0 {
				w.setLimit(key.Name, was)
				is = was
			}
		}
	case what < 20 && w.resident == 0:
		w.back()
	case what < 21 && w.resident == 0:
		w.move(key.Name)
	default:
		w.pass(end)
	}
}

// setLimit puts another quota in force, which leaves what was used.
func (w *calendarWorld) setLimit(name stint.Name, limit stint.Limit) {
	w.limits[name] = limit
	w.note("%v is %v now", levelNames[name].Label, limit)
	w.configure()
	if w.rng.IntN(2) == 0 {
		w.must(w.l.SetLimits(w.configured))
	} else {
		w.must(w.l.override(w.limits))
	}
	for key := range w.buckets {
		w.of(key) // the law notes the quota
	}
}

// move gives a quota another zone, and perhaps the one before again. What was used
// stays used until the period ends that is the present one then.
func (w *calendarWorld) move(name stint.Name) {
	w.loadAll()
	was := w.limits[name]
	zone, err := calendar.Zone(calendarZones[w.rng.IntN(len(calendarZones))])
	w.must(err)
	unit, start := "day", time.Duration(w.rng.IntN(3))*20*time.Minute
	for _, u := range calendar.Units() {
		if u.Nominal() == was.Period {
			unit = u.String()
		}
	}
	is, err := stint.ParseLimit(fmt.Sprintf("%d/%s@%s from %v", was.Burst, unit, zone, start))
	w.must(err)
	is.Durability = was.Durability
	for _, l := range []stint.Limit{is, was, is}[:1+w.rng.IntN(3)] {
		for key := range w.buckets {
			w.of(key)
		}
		w.limits[name] = l
		_, end := l.PeriodAt(w.now())
		for key, b := range w.buckets {
			if key.Name == name {
				b.End = end.UnixNano() // it may be earlier
			}
		}
		w.setLimit(name, l)
	}
	w.must(w.l.Flush())
	w.saved()
}

// used returns what a bucket has used. If its quota is too small to show that, a
// larger one is in force for a moment.
func (w *calendarWorld) used(key stint.Key) int64 {
	d, err := w.l.Check(key, 0)
	w.must(err)
	if is := w.limits[key.Name]; d.Remaining == 0 {
		large := is
		large.Burst, large.Count = mostQuota, mostQuota
		w.setLimit(key.Name, large)
		d, err = w.l.Check(key, 0)
		w.must(err)
		w.setLimit(key.Name, is)
	}
	return d.Limit.Burst - d.Remaining
}

// pass lets time pass: a little, to the end of the period or to a nanosecond
// around it, or over some periods.
func (w *calendarWorld) pass(end int64) {
	now := w.clock.Nanos()
	switch w.rng.IntN(5) {
	case 0:
		now += w.rng.Int64N(int64(time.Hour))
	case 1:
		now = max(now, end-1)
	case 2:
		now = end
	case 3:
		now = end + w.rng.Int64N(int64(20*time.Minute))
	default:
		now += w.rng.Int64N(int64(40 * 24 * time.Hour))
	}
	w.clock.Set(now)
	w.note("time passes")
}

// loadAll brings every bucket into memory.
func (w *calendarWorld) loadAll() {
	for key := range w.buckets {
		_, err := w.l.Refund(stint.Request{Key: key})
		w.must(err)
	}
}

// back sets the clock back to an earlier period, and then right again. In the
// earlier period, a bucket of the present one is empty. It has lost nothing when
// the clock is right.
func (w *calendarWorld) back() {
	w.note("the clock is set back and forth")
	w.loadAll()
	for key := range w.buckets {
		w.of(key)
	}
	is := w.clock.Nanos()
	for key, b := range w.buckets {
		if b.Used == 0 {
			continue
		}
		start, _ := w.limits[key.Name].PeriodAt(time.Unix(0, is))
		w.clock.Set(start.UnixNano() - 1 - w.rng.Int64N(int64(40*24*time.Hour)))
		_, end := w.limits[key.Name].PeriodAt(w.now())
		d, err := w.l.Spend(key, 1)
		w.must(err)
		w.check(d, key, b, end.UnixNano(), false, w.limits[key.Name].Burst)
	}
	w.clock.Set(is)
	for key, b := range w.buckets {
		d, err := w.l.Check(key, 0)
		w.must(err)
		w.check(d, key, b, b.End, true, b.Used)
	}
}

// kill opens another Limiter on what the store has. Memory and Flushed may
// forget what was used since the last flush, or bring back what a refund
// returned since. Leased may withhold a lease: a hundredth of the quota, or a token. Synced
// does neither.
func (w *calendarWorld) kill() {
	w.note("kill")
	w.kills++
	last := w.key()
	b, end := w.of(last)
	n := w.limits[last.Name].Burst
	cost := min(w.cost(n), n)
	after := b.Quota
	allowed := after.Spend(n, cost) && cost > 0
	switch answer, begun := w.l.kill(last, cost); {
	case answer != nil:
		b.Quota = after
		if allowed {
			w.changed(last, b)
		}
		w.check(*answer, last, b, end, after.Spend(n, 0) && (allowed || cost == 0), b.Used)
	case begun: // the store has it or not
		b.touched = b.touched || allowed
	default:
		after = b.Quota
	}
	w.l = w.start()
	for key := range w.buckets {
		b, _ := w.of(key)
		largest := b.law.Largest()
		used, least, most := w.used(key), b.kept, b.Used
		if key == last {
			most = after.Used
			b.peak = max(b.peak, most)
		}
		switch level := stint.Durability(key.Name); {
		case !b.touched: // leases of earlier periods are over
			least, most = 0, 0
		case level <= stint.Flushed:
			most = b.peak
		case level == stint.Leased && most > 0: // of the largest quota, and perhaps beyond it
			most = min(mostQuota, most+max(1, largest/100))
		}
		if used < least || used > most {
			w.fail("after a kill %v has used %d: want %d to %d", key, used, least, most)
		}
		b.law.Return(max(0, b.Used-used)) // forgotten
		b.Used, b.kept = used, used
	}
}
