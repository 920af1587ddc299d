package stint

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	crashSteps = flag.Int("steps", 50_000, "steps of the model test with crashes")
	crashSeed  = flag.Uint64("crashseed", 0, "its seed; 0: a random one")
)

// crashStore is a Store that outlives a crash with what it had carried out, and whose saves can be made to fail.
type crashStore struct {
	*MemStore

	mu      sync.Mutex
	fault   fault // of the next save
	met     bool  // the fault was met,
	applied bool  // and what was to be saved is
	dead    bool  // the process is
}

type fault uint8

const (
	noFault fault = iota
	failBefore
	failAfter // it was carried out
	crashBefore
	crashAfter
)

func (s *crashStore) Save(changes []Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return errFault
	}
	fault := s.fault
	s.fault = noFault
	if fault == noFault {
		return s.MemStore.Save(changes)
	}
	s.met, s.applied = true, fault == failAfter || fault == crashAfter
	s.dead = fault == crashBefore || fault == crashAfter
	if s.applied {
		s.MemStore.Save(changes)
	}
	return errFault
}

// span is where a TAT may be.
type span struct{ least, most int64 }

// crashBucket is a bucket as the model has it.
type crashBucket struct {
	tat  int64
	file []span // what a crash may leave
	hold int64
	held []int64 // what a crash may leave of the hold

	passed int64 // the TAT of a bucket that was full when its limit was put in force, of what was acknowledged since
}

// crashSim drives a Limiter and the model beside it.
type crashSim struct {
	t      *testing.T
	seed   uint64
	step   int
	rnd    *rand.Rand
	now    int64
	mem    *MemStore
	store  *crashStore
	l      *Limiter
	limits map[Name]Limit
	keys   []Key
	have   map[Key]*crashBucket

	crashes, reopened, faults, denied, allowed int
	withheld                                   float64 // the most, in leases
}

func (s *crashSim) where(key Key) string {
	return fmt.Sprintf("-crashseed %d, step %d, %v, %v", s.seed, s.step, key, s.limits[key.Name])
}

func (s *crashSim) open() {
	s.store = &crashStore{MemStore: s.mem}
	limits, err := NewLimits(levelNames, s.limits, nil)
	require.NoError(s.t, err)
	s.l, err = New(s.store, limits, &Options{
		FlushInterval: 1e6 * time.Hour, CommitTimeout: time.Hour, MaxResident: 8, Now: func() time.Time { return time.Unix(0, s.now) },
	})
	require.NoError(s.t, err)
}

func (s *crashSim) newLimits() {
	s.limits = make(map[Name]Limit)
	for name := inMemory; name <= synced; name++ {
		count := 1 + s.rnd.Int64N(5)
		s.limits[name] = Limit{
			Burst: 1 + s.rnd.Int64N(30), Count: count, Period: time.Duration(count + s.rnd.Int64N(1e9)), Durability: Durability(1 + s.rnd.IntN(4)),
		}
	}
}

func (s *crashSim) sizes(key Key) (interval, tolerance int64) {
	l := s.limits[key.Name]
	interval = (int64(l.Period) + l.Count - 1) / l.Count
	return interval, interval * l.Burst
}

// seen is a TAT as it can be told from the outside.
func (s *crashSim) seen(key Key, tat int64) int64 {
	_, tolerance := s.sizes(key)
	return max(s.now, min(tat, s.now+tolerance))
}

// spend is what spending does, by the design's words.
func (s *crashSim) spend(key Key, cost int64) (next, retryAfter int64) {
	b := s.have[key]
	interval, tolerance := s.sizes(key)
	next = max(s.now, b.tat) + cost*interval
	retryAfter = max(0, next-(s.now+tolerance), b.hold-s.now)
	if retryAfter > 0 || cost == 0 {
		return b.tat, retryAfter
	}
	return next, 0
}

func (s *crashSim) refund(key Key, tat, cost int64) int64 {
	interval, _ := s.sizes(key)
	return max(min(tat, s.now), tat-cost*interval)
}

// check compares a decision with the model's bucket as it is after it.
func (s *crashSim) check(key Key, d Decision, retryAfter, tat int64) {
	interval, tolerance := s.sizes(key)
	missing := max(0, tat-s.now)
	require.Equal(s.t, key, d.Key, s.where(key))
	require.Equal(s.t, d.Allowed, d.RetryAfter == 0, s.where(key))
	require.EqualValues(s.t, retryAfter, d.RetryAfter, s.where(key))
	require.EqualValues(s.t, (tolerance-missing)/interval, d.Remaining, s.where(key))
	require.EqualValues(s.t, missing, d.ResetAfter, s.where(key))
	require.GreaterOrEqual(s.t, d.Remaining, int64(0), s.where(key))
	require.LessOrEqual(s.t, d.Remaining, s.limits[key.Name].Burst, s.where(key))
}

// fileHas returns what a commit of a TAT leaves on file.
func (s *crashSim) fileHas(key Key, tat int64) span {
	if s.limits[key.Name].Durability == Leased && tat > s.now {
		_, tolerance := s.sizes(key)
		return span{tat, tat + tolerance/8}
	}
	return span{tat, tat}
}

// acknowledged notes that a bucket has a TAT, and that the caller was told.
func (s *crashSim) acknowledged(key Key, tat int64) {
	b := s.have[key]
	if tat == b.tat {
		return
	}
	b.tat = tat
	if s.limits[key.Name].Durability >= Leased {
		b.file = []span{s.fileHas(key, tat)}
	} else {
		b.file = append(b.file, span{tat, tat})
	}
}

// unacknowledged notes that the commit of TATs, all or none, failed, after which the buckets have others.
func (s *crashSim) unacknowledged(committed, left map[Key]int64) {
	for key, tat := range left {
		b := s.have[key]
		if b.tat = tat; !s.store.dead {
			b.file = append(b.file, span{tat, tat})
		}
	}
	if !s.store.applied {
		return
	}
	for key, tat := range committed {
		b := s.have[key]
		if s.store.dead {
			b.file = nil
		}
		b.file = append(b.file, s.fileHas(key, tat))
	}
}

// pass holds what was acknowledged as spent to what one bucket admits, whatever crashes there were.
func (s *crashSim) pass(key Key, cost int64) {
	b := s.have[key]
	interval, tolerance := s.sizes(key)
	b.passed = max(b.passed, s.now) + cost*interval
	require.LessOrEqual(s.t, b.passed, s.now+tolerance, "more was admitted than the limit says: "+s.where(key))
}

// lost reports whether a call failed before it began, because memory was full and could not be saved.
func (s *crashSim) lost(err error) bool {
	if errors.Is(err, ErrFull) {
		require.True(s.t, s.store.met, s.where(Key{}))
		return true
	}
	return false
}

func (s *crashSim) one(key Key, op op) {
	b := s.have[key]
	limit := s.limits[key.Name]
	cost := s.rnd.Int64N(min(limit.Burst, 6) + 1)
	if s.rnd.IntN(100) == 0 {
		cost = limit.Burst + 1
	}
	switch op {
	case opSpend:
		next, retryAfter := s.spend(key, cost)
		d, err := s.l.Spend(key, cost)
		switch {
		case s.lost(err):
		case cost > limit.Burst:
			require.ErrorIs(s.t, err, ErrCostOverBurst, s.where(key))
		case errors.Is(err, ErrNotDurable):
			require.Zero(s.t, d, s.where(key))
			require.True(s.t, s.store.met && retryAfter == 0 && cost > 0 && limit.Durability >= Leased, s.where(key))
			s.unacknowledged(map[Key]int64{key: next}, map[Key]int64{key: s.either(key, b.tat, next)})
		default:
			require.NoError(s.t, err, s.where(key))
			s.check(key, d, retryAfter, next)
			s.acknowledged(key, next)
			if d.Allowed {
				s.allowed++
				s.pass(key, cost)
			} else {
				s.denied++
			}
		}
	case opCheck:
		if _, err := s.l.Check(key, 0); s.lost(err) {
			return
		}
		s.look(key)
	case opRefund:
		next := s.refund(key, b.tat, cost)
		d, err := s.l.Refund(key, cost)
		if s.lost(err) {
			return
		}
		b.passed = s.refund(key, b.passed, cost) // a crash may find that a failed commit was carried out
		if errors.Is(err, ErrNotDurable) {
			require.True(s.t, s.store.met, s.where(key))
			s.unacknowledged(map[Key]int64{key: next}, map[Key]int64{key: s.either(key, b.tat, next)})
			return
		}
		require.NoError(s.t, err, s.where(key))
		s.check(key, d, 0, next)
		s.acknowledged(key, next)
	case opReset:
		next := min(b.tat, s.now)
		err := s.l.Reset(key)
		if s.lost(err) {
			return
		}
		b.passed = 0
		if err != nil {
			require.ErrorIs(s.t, err, ErrNotDurable, s.where(key))
			require.True(s.t, s.store.met, s.where(key))
			s.unacknowledged(map[Key]int64{key: next}, map[Key]int64{key: s.either(key, b.tat, next)})
			if s.store.applied {
				b.held = append(b.held, 0)
			}
			return
		}
		s.acknowledged(key, next)
		b.hold, b.held = 0, []int64{0}
	}
}

// either returns which of two TATs a bucket has after a commit that failed: the old one, unless its lease was renewed by that
// commit, too, and its TAT was lowered since.
func (s *crashSim) either(key Key, old, lowered int64) int64 {
	d, err := s.l.Check(key, 0)
	require.NoError(s.t, err, s.where(key))
	if max(0, old-s.now) == int64(d.ResetAfter) {
		return old
	}
	require.Equal(s.t, max(0, lowered-s.now), int64(d.ResetAfter), s.where(key))
	require.Equal(s.t, Leased, s.limits[key.Name].Durability, s.where(key))
	return lowered
}

// look compares a bucket with the model's, as it is.
func (s *crashSim) look(key Key) {
	d, err := s.l.Check(key, 0)
	if s.lost(err) {
		return
	}
	require.NoError(s.t, err, s.where(key))
	_, retryAfter := s.spend(key, 0)
	s.check(key, d, retryAfter, s.have[key].tat)
}

// settle asks an empty bucket for a token: that it was clamped is on file with the next flush, as it is not for a look.
func (s *crashSim) settle(key Key) {
	s.look(key)
	d, err := s.l.Spend(key, 1)
	if s.lost(err) {
		return
	}
	require.NoError(s.t, err, s.where(key))
	_, retryAfter := s.spend(key, 1)
	s.check(key, d, retryAfter, s.have[key].tat)
}

func (s *crashSim) holdFor(key Key) {
	b := s.have[key]
	end := s.now + s.rnd.Int64N(5e9) - 1e9
	err := s.l.Hold(key, time.Unix(0, end))
	if end <= s.now {
		end = 0
	}
	switch {
	case err == nil:
		b.hold, b.held = end, []int64{end}
	case s.lost(err):
	default:
		require.True(s.t, s.store.met, s.where(key))
		if s.store.applied {
			b.held = append(b.held, end)
		}
	}
}

func (s *crashSim) several(op op) {
	var reqs []Request
	before, next := make(map[Key]int64), make(map[Key]int64)
	allowed := true
	for _, i := range s.rnd.Perm(len(s.keys))[:1+s.rnd.IntN(5)] {
		key := s.keys[i]
		r := Request{key, s.rnd.Int64N(min(s.limits[key.Name].Burst, 4) + 1), Mode(s.rnd.IntN(3))}
		reqs = append(reqs, r)
		tat, retryAfter := s.spend(key, r.Cost)
		if op == opRefund {
			tat, retryAfter = s.refund(key, s.have[key].tat, r.Cost), 0
		}
		if r.Mode != SpendOnly && retryAfter > 0 {
			allowed = false
		}
		if r.Mode != CheckOnly && tat != s.have[key].tat {
			before[key], next[key] = s.have[key].tat, tat
		}
	}
	var d Decision
	var err error
	if op == opRefund {
		d, err = s.l.RefundAll(reqs...)
	} else {
		d, err = s.l.SpendAll(reqs...)
	}
	if s.lost(err) {
		return
	}
	if op == opRefund {
		for _, r := range reqs {
			if b := s.have[r.Key]; r.Mode != CheckOnly {
				b.passed = s.refund(r.Key, b.passed, r.Cost)
			}
		}
	}
	if errors.Is(err, ErrNotDurable) {
		for key := range before {
			before[key] = s.either(key, before[key], next[key])
		}
		require.True(s.t, s.store.met && allowed, s.where(reqs[0].Key))
		s.unacknowledged(next, before)
		return
	}
	require.NoError(s.t, err, s.where(reqs[0].Key))
	require.Equal(s.t, allowed, d.Allowed, s.where(reqs[0].Key))
	require.Equal(s.t, d.Allowed, d.RetryAfter == 0, s.where(reqs[0].Key))
	if !allowed {
		s.denied++
		return
	}
	s.allowed++
	for _, r := range reqs {
		if tat, ok := next[r.Key]; ok {
			if op == opSpend {
				s.pass(r.Key, r.Cost)
			}
			s.acknowledged(r.Key, tat)
		}
	}
}

func (s *crashSim) flush(all bool) {
	err := s.l.flusher.flush(all)
	if err != nil {
		require.True(s.t, s.store.met, s.where(Key{}))
		return
	}
	for key, b := range s.have {
		switch level := s.limits[key.Name].Durability; {
		case all || level == Flushed || level == Synced:
			b.file = []span{{b.tat, b.tat}}
		case level == Leased: // a lease may lie ahead of a bucket that is full by now
			_, tolerance := s.sizes(key)
			b.file = []span{{b.tat, b.tat + tolerance/8}}
		}
		b.held = []int64{b.hold}
	}
}

func (s *crashSim) setLimits() {
	s.newLimits()
	limits, err := NewLimits(levelNames, s.limits, nil)
	require.NoError(s.t, err)
	require.NoError(s.t, s.l.SetLimits(limits))
	for _, key := range s.keys {
		b := s.have[key]
		b.passed = 0
		if tat := s.seen(key, b.tat); tat < b.tat {
			b.tat = tat
			b.file = append(b.file, span{tat, tat})
			s.settle(key) // where it is not in memory, that happens when it is loaded
		}
	}
}

// reopen closes the Limiter, or has it crash, and compares what the next one finds.
func (s *crashSim) reopen(crash bool) {
	if crash {
		s.store.mu.Lock()
		s.store.dead = true
		s.store.mu.Unlock()
		s.crashes++
	}
	err := s.l.Close()
	exact := err == nil && !crash
	if exact {
		s.reopened++
	} else {
		require.True(s.t, s.store.met || crash, s.where(Key{}))
	}
	s.open()
	for _, key := range s.keys {
		b := s.have[key]
		d, err := s.l.Check(key, 0)
		require.NoError(s.t, err, s.where(key))
		if exact {
			b.file, b.held = []span{{b.tat, b.tat}}, []int64{b.hold}
		}
		found := s.now + int64(d.ResetAfter)
		ok, most := false, int64(0)
		for _, f := range b.file {
			ok = ok || s.seen(key, f.least) <= found && found <= s.seen(key, f.most)
			most = max(most, f.most)
		}
		level := s.limits[key.Name].Durability
		require.True(s.t, ok, "found %d ahead, and not in %v ahead of %d; the bucket had %d; %v, crash %t: %s",
			d.ResetAfter, b.file, s.now, b.tat-s.now, level, !exact, s.where(key))
		if _, tolerance := s.sizes(key); level == Leased && len(b.file) == 1 && b.file[0].least == b.tat {
			s.withheld = max(s.withheld, float64(found-s.seen(key, b.tat))/float64(tolerance/8))
		}
		hold := int64(0)
		if d.RetryAfter > 0 {
			hold = s.now + int64(d.RetryAfter)
		}
		ok = false
		for _, h := range b.held {
			ok = ok || hold == h || hold == 0 && h <= s.now
		}
		require.True(s.t, ok, "held for %v more, want one of %v from %d: %s", d.RetryAfter, b.held, s.now, s.where(key))
		b.hold, b.held = hold, []int64{hold}
		b.tat, b.file = found, []span{{found, found}}
		if _, tolerance := s.sizes(key); found == s.now+tolerance {
			b.file[0].most = max(found, most) // more than can be seen
			s.settle(key)
		}
		if !exact && level < Leased {
			b.passed = 0
		}
	}
}

func (s *crashSim) run(steps int) {
	s.newLimits()
	s.open()
	for s.step = range steps {
		key := s.keys[s.rnd.IntN(len(s.keys))]
		interval, tolerance := s.sizes(key)
		switch n := s.rnd.IntN(1000); {
		case n < 200:
			s.now += s.rnd.Int64N(interval/4 + 2)
		case n < 215:
			s.now += s.rnd.Int64N(tolerance/4 + 2)
		case n < 217:
			s.now += 3 * tolerance
		}
		s.store.mu.Lock()
		s.store.met, s.store.applied = false, false
		switch n := s.rnd.IntN(1000); {
		case n < 40:
			s.store.fault = failBefore + fault(n%2)
		case n < 50:
			s.store.fault = crashBefore + fault(n%2)
		}
		s.store.mu.Unlock()
		switch n := s.rnd.IntN(1000); {
		case n < 500:
			s.one(key, opSpend)
		case n < 600:
			s.one(key, opCheck)
		case n < 700:
			s.one(key, opRefund)
		case n < 720:
			s.one(key, opReset)
		case n < 740:
			s.holdFor(s.keys[s.rnd.IntN(4)])
		case n < 860:
			s.several(opSpend)
		case n < 900:
			s.several(opRefund)
		case n < 950:
			s.flush(false)
		case n < 970:
			s.flush(true)
		case n < 980:
			s.store.fault = noFault
			s.setLimits()
		case n < 985:
			s.reopen(false)
		case n < 990:
			s.store.fault = noFault
			s.reopen(true)
		}
		s.l.committer.rest()
		if s.store.met {
			s.faults++
		}
		if s.store.dead {
			s.reopen(true)
		}
		s.store.fault = noFault
		if len(s.have[key].file) > 50 {
			s.flush(true)
		}
		require.LessOrEqual(s.t, s.l.directory.resident.Load(), int64(8+4), s.where(key))
	}
	require.NoError(s.t, s.l.Close())
}

// Crashes, failing saves, reopening, evictions and new limits, in any order: decisions are those of the model, and after a
// crash each bucket is what its level of durability allows it to be.
func TestCrashModel(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	s := &crashSim{
		t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 0)),
		now: 1_800_000_000e9, mem: NewMemStore(), have: make(map[Key]*crashBucket),
	}
	for i := range 24 {
		key := Name(1 + i%4).Key(fmt.Sprint("id-", i))
		s.keys = append(s.keys, key)
		s.have[key] = &crashBucket{file: []span{{}}, held: []int64{0}}
	}
	s.run(*crashSteps)
	t.Logf("-crashseed %d: %d steps: %d allowed, %d denied, %d crashes, %d clean reopenings, %d saves that failed; withheld by a crash: at most %.2f of a lease",
		seed, *crashSteps, s.allowed, s.denied, s.crashes, s.reopened, s.faults, s.withheld)
}
