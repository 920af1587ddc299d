package stint

import (
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	historySeed  = flag.Uint64("history-seed", 0, "the one history that TestHistories goes through; 0: random ones")
	historyCount = flag.Int("histories", 3, "how many histories TestHistories goes through")
	historySteps = flag.Int("history-steps", 300, "steps of each")
)

// ledger is what buckets are, in big integers: TATs, holds, and the rule that a request passes if the TAT after it is no
// further ahead than the tolerance.
type ledger struct {
	limits *Limits
	tats   map[Key]*big.Int
	holds  map[Key]int64
}

// state returns the bucket's limit as big integers, and its TAT. on is false where it has no limit.
func (m *ledger) state(key Key) (burst, interval, tolerance, tat *big.Int, on bool) {
	limit, on := m.limits.For(key)
	if !on {
		return nil, nil, nil, nil, false
	}
	burst = big.NewInt(limit.Burst)
	interval = big.NewInt(int64(limit.Period) + limit.Count - 1)
	interval.Div(interval, big.NewInt(limit.Count))
	tolerance = new(big.Int).Mul(burst, interval)
	if tat = m.tats[key]; tat == nil {
		tat = new(big.Int)
	}
	return burst, interval, tolerance, tat, true
}

// decide decides on one request, and returns the TAT that it leads to, nil for none.
func (m *ledger) decide(now int64, key Key, cost int64, op op) (d Decision, next *big.Int) {
	d.Key = key
	held := int64(0)
	if op != opRefund {
		held = max(0, m.holds[key]-now)
	}
	_, interval, tolerance, tat, on := m.state(key)
	if !on {
		return Decision{Allowed: held == 0, Remaining: math.MaxInt64, RetryAfter: time.Duration(held), Key: key}, nil
	}
	d.Limit, _ = m.limits.For(key)
	at := big.NewInt(now)
	need := new(big.Int).Mul(big.NewInt(cost), interval)
	base := at
	if tat.Cmp(at) > 0 {
		base = tat
	}
	if op == opRefund {
		d.Allowed = true
		if next = new(big.Int).Sub(base, need); next.Cmp(at) < 0 {
			next = at
		}
	} else {
		next = new(big.Int).Add(base, need)
		wait := new(big.Int).Sub(next, at)
		wait.Sub(wait, tolerance)
		d.RetryAfter = time.Duration(max(0, wait.Int64(), held))
		if d.Allowed = d.RetryAfter == 0; !d.Allowed {
			next = base
		}
	}
	ahead := new(big.Int).Sub(next, at)
	d.ResetAfter = time.Duration(ahead.Int64())
	left := new(big.Int).Sub(tolerance, ahead)
	d.Remaining = max(0, left.Div(left, interval).Int64()) // Div rounds down
	return d, next
}

func (m *ledger) one(now int64, key Key, cost int64, op op) Decision {
	d, next := m.decide(now, key, cost, op)
	if next != nil && op != opCheck {
		m.tats[key] = next
	}
	return d
}

func (m *ledger) all(now int64, reqs []Request, op op) Decision {
	strictest := Decision{Allowed: true, Remaining: math.MaxInt64}
	voted := false
	nexts := make([]*big.Int, len(reqs))
	for i, r := range reqs {
		o, cost := op, r.Cost
		if r.Mode == CheckOnly && op == opRefund {
			cost = 0
		} else if r.Mode == CheckOnly {
			o = opCheck
		}
		d, next := m.decide(now, r.Key, cost, o)
		if r.Mode != CheckOnly {
			nexts[i] = next
		}
		if r.Mode == SpendOnly {
			continue
		}
		stricter := !voted
		switch {
		case d.Allowed != strictest.Allowed:
			stricter = stricter || !d.Allowed
		case d.RetryAfter != strictest.RetryAfter:
			stricter = stricter || d.RetryAfter > strictest.RetryAfter
		default:
			stricter = stricter || d.Remaining < strictest.Remaining
		}
		if stricter {
			strictest, voted = d, true
		}
	}
	if strictest.Allowed {
		for i, next := range nexts {
			if next != nil {
				m.tats[reqs[i].Key] = next
			}
		}
	}
	return strictest
}

func (m *ledger) setLimits(now int64, limits *Limits) {
	m.limits = limits
	for key := range m.tats {
		if _, _, tolerance, tat, on := m.state(key); on {
			if most := tolerance.Add(tolerance, big.NewInt(now)); tat.Cmp(most) > 0 {
				m.tats[key] = most
			}
		}
	}
}

// past is a history of four limiters that differ in where their buckets are, and a ledger.
type past struct {
	t      *testing.T
	rnd    *rand.Rand
	clock  *simClock
	rigs   [4]*rig
	stores [4]func() Store
	opts   [4]Options
	ledger *ledger
	keys   []Key
	log    []string
}

func newPast(t *testing.T, seed uint64) *past {
	p := &past{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), clock: newSimClock()}
	mem := NewMemStore()
	p.stores[0] = func() Store { return mem }
	for i := 1; i < 4; i++ {
		path := filepath.Join(t.TempDir(), "buckets.db")
		p.stores[i] = func() Store { return openBolt(t, path, testNames) }
	}
	p.opts[3].MaxResident = 8
	p.ledger = &ledger{p.pickLimits(), make(map[Key]*big.Int), make(map[Key]int64)}
	for i := range p.rigs {
		p.open(i)
	}
	for i := range 14 {
		p.keys = append(p.keys, perID.Key(fmt.Sprint("id ", i)), other.Key(strings.Repeat(string(rune('a'+i)), 1+3*i)))
	}
	p.keys = append(p.keys, everyone.Key(""), off.Key("a"), off.Key("b"), single.Key("a"), single.Key("b"), single.Key("*"))
	return p
}

func (p *past) open(i int) {
	opts := p.opts[i]
	opts.Now = p.clock.Now
	p.rigs[i] = rigOn(p.t, p.stores[i](), p.ledger.limits, opts)
}

func (p *past) now() int64 { return p.clock.ns.Load() }

// pickLimits returns limits for some of the Names.
func (p *past) pickLimits() *Limits {
	pick := func() Limit {
		return Limit{
			Burst:      1 + p.rnd.Int64N(6),
			Count:      []int64{1, 3, 5, 7, 1000}[p.rnd.IntN(5)],
			Period:     []time.Duration{time.Second, time.Minute, time.Hour, 240 * time.Hour, 1001}[p.rnd.IntN(5)],
			Durability: Durability(p.rnd.IntN(int(Flushed) + 1)),
		}
	}
	defaults := make(map[Name]Limit)
	for _, name := range []Name{perID, everyone, single, other} {
		if p.rnd.IntN(8) > 0 {
			defaults[name] = pick()
		}
	}
	overrides := map[Name][]Override{perID: {{[]OverrideID{{ID: "id 3"}, {ID: "id 4"}}, pick()}}}
	ls, err := NewLimits(testNames, defaults, overrides)
	require.NoError(p.t, err)
	return ls
}

func (p *past) pickKey() Key { return p.keys[p.rnd.IntN(len(p.keys))] }

// pickCost returns a cost that the key's bucket may have.
func (p *past) pickCost(key Key) int64 {
	limit, on := p.ledger.limits.For(key)
	if !on {
		return p.rnd.Int64N(1000)
	}
	return p.rnd.Int64N(limit.Burst + 1)
}

func (p *past) pickRequests() (reqs []Request) {
	for _, i := range p.rnd.Perm(len(p.keys))[:1+p.rnd.IntN(7)] {
		key := p.keys[i]
		reqs = append(reqs, Request{key, p.pickCost(key), Mode(p.rnd.IntN(3))})
	}
	return reqs
}

// each does the same with all of the limiters, and requires that it comes to the same.
func each[T any](p *past, what string, do func(*rig) (T, error)) (same T) {
	p.t.Helper()
	p.log = append(p.log, fmt.Sprintf("%d %s", p.now(), what))
	for i, r := range p.rigs {
		got, err := do(r)
		require.NoError(p.t, err, what)
		if i == 0 {
			same = got
		} else {
			require.Equal(p.t, same, got, "%s: limiter %d differs", what, i)
		}
	}
	return same
}

func (p *past) step() {
	key := p.pickKey()
	cost := p.pickCost(key)
	switch p.rnd.IntN(24) {
	case 0, 1, 2, 3, 4, 5:
		d := each(p, fmt.Sprint("spend ", key, cost), func(r *rig) (Decision, error) { return r.Spend(key, cost) })
		require.Equal(p.t, p.ledger.one(p.now(), key, cost, opSpend), d)
		if !d.Allowed && p.rnd.IntN(3) == 0 {
			p.clock.advance(d.RetryAfter - time.Duration(p.rnd.IntN(2)))
		}
	case 6, 7:
		d := each(p, fmt.Sprint("check ", key, cost), func(r *rig) (Decision, error) { return r.Check(key, cost) })
		require.Equal(p.t, p.ledger.one(p.now(), key, cost, opCheck), d)
	case 8, 9:
		d := each(p, fmt.Sprint("refund ", key, cost), func(r *rig) (Decision, error) { return r.Refund(key, cost) })
		require.Equal(p.t, p.ledger.one(p.now(), key, cost, opRefund), d)
	case 10:
		keys := []Key{key, p.pickKey()}
		each(p, fmt.Sprint("reset ", keys), func(r *rig) (int, error) { return 0, r.Reset(keys...) })
		for _, key := range keys {
			delete(p.ledger.tats, key)
			delete(p.ledger.holds, key)
		}
	case 11:
		until := p.clock.Now().Add(time.Duration(p.rnd.Int64N(int64(2*time.Hour))) - time.Hour/2)
		each(p, fmt.Sprint("hold ", key, until.UnixNano()), func(r *rig) (int, error) { return 0, r.Hold(key, until) })
		p.ledger.holds[key] = until.UnixNano()
	case 12, 13, 14, 15, 16:
		reqs, op := p.pickRequests(), opSpend
		if p.rnd.IntN(5) == 0 {
			op = opRefund
		}
		d := each(p, fmt.Sprint("all ", op, reqs), func(r *rig) (Decision, error) { return r.Limiter.all(reqs, op) })
		want := p.ledger.all(p.now(), reqs, op)
		require.Equal(p.t, want.Allowed, d.Allowed)
		require.Equal(p.t, want.RetryAfter, d.RetryAfter)
		require.Equal(p.t, want.Remaining, d.Remaining)
	case 17:
		reqs := append(p.pickRequests(), p.pickRequests()...)
		ds := each(p, fmt.Sprint("each ", reqs), func(r *rig) ([]Decision, error) {
			ds := make([]Decision, len(reqs))
			return ds, r.SpendEach(reqs, ds)
		})
		for i, req := range reqs {
			op := opSpend
			if req.Mode == CheckOnly {
				op = opCheck
			}
			require.Equal(p.t, p.ledger.one(p.now(), req.Key, req.Cost, op), ds[i])
		}
	case 18:
		if p.rnd.IntN(3) > 0 {
			return
		}
		limits := p.pickLimits()
		each(p, "set limits", func(r *rig) (int, error) { return 0, r.SetLimits(limits) })
		p.ledger.setLimits(p.now(), limits)
		// A bucket that is not in memory is brought within its new limit when it is loaded, by who does not only look. That is now.
		for _, key := range p.keys {
			d := each(p, fmt.Sprint("touch ", key), func(r *rig) (Decision, error) { return r.Spend(key, 0) })
			require.Equal(p.t, p.ledger.one(p.now(), key, 0, opSpend), d)
		}
	case 19:
		p.log = append(p.log, "reopen")
		require.NoError(p.t, p.rigs[2].Close())
		p.open(2)
	case 20:
		i := p.rnd.IntN(len(p.rigs))
		p.log = append(p.log, fmt.Sprint("flush ", i))
		require.NoError(p.t, p.rigs[i].flusher.flush(p.rnd.IntN(2) == 0))
	case 21:
		p.requireSameBuckets()
	default:
		unit := []time.Duration{1, time.Millisecond, time.Second, time.Minute, time.Hour}[p.rnd.IntN(5)]
		p.clock.advance(time.Duration(p.rnd.Int64N(20)) * unit)
	}
}

// requireSameBuckets requires that all of the limiters show the buckets of the ledger.
func (p *past) requireSameBuckets() {
	for name := range testNames {
		shown := each(p, fmt.Sprint("buckets ", name), func(r *rig) (map[Key]Bucket, error) {
			return listBuckets(p.t, r.Buckets(name)), r.Health()
		})
		want := make(map[Key]Bucket)
		for _, key := range p.keys {
			if key.Name != name {
				continue
			}
			limit, on := p.ledger.limits.For(key)
			b := Bucket{Limit: limit}
			if tat := p.ledger.tats[key]; tat != nil && tat.Int64() > p.now() {
				b.ResetAfter = time.Duration(tat.Int64() - p.now())
			}
			if on {
				b.Remaining = p.ledger.one(p.now(), key, 0, opRefund).Remaining
			}
			if until := p.ledger.holds[key]; until > p.now() {
				b.HeldUntil = time.Unix(0, until)
			}
			if b.ResetAfter > 0 || !b.HeldUntil.IsZero() {
				want[key] = b
			}
		}
		require.Equal(p.t, want, shown)
	}
}

// stored returns what is left of the buckets in a store at an instant.
func stored(t *testing.T, s Store, now int64) map[Key]int64 {
	all := make(map[Key]int64)
	for name := range testNames {
		for key, tat := range tatsOf(collect(t, s.All(name))) {
			if tat > now {
				all[key] = tat
			}
		}
	}
	return all
}

// Limiters whose buckets are in memory, in a file, in a file that is closed and opened now and then, and in a file with
// memory for eight of them cannot be told apart, and are what the ledger says.
func TestHistories(t *testing.T) {
	var evictions int64
	for range *historyCount {
		seed := *historySeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			p := newPast(t, seed)
			defer func() {
				if t.Failed() {
					t.Logf("go test -run TestHistories -histories 1 -history-steps %d -history-seed %d\nthe last of %d steps:\n%s",
						*historySteps, seed, len(p.log), strings.Join(p.log[max(0, len(p.log)-40):], "\n"))
				}
			}()
			for range *historySteps {
				p.step()
			}
			p.requireSameBuckets()
			for i, r := range p.rigs {
				require.NoError(t, r.Close())
				s := p.stores[i]()
				want := make(map[Key]int64)
				for key, tat := range p.ledger.tats {
					if tat.Int64() > p.now() {
						want[key] = tat.Int64()
					}
				}
				require.Equal(t, want, stored(t, s, p.now()), "limiter %d leaves exact TATs", i)
			}
			evictions += p.rigs[3].Stats().Evictions
		})
	}
	if *historyCount**historySteps >= 900 { // one whose limits are few has none
		require.NotZero(t, evictions)
	}
}
