package otellimit_test

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/otellimit"
)

// source is a Source that answers as told.
type source struct {
	stats  stint.Stats
	limits *stint.Limits
	health error
	held   []stint.Held
}

func (s *source) Stats() stint.Stats    { return s.stats }
func (s *source) Limits() *stint.Limits { return s.limits }
func (s *source) Health() error         { return s.health }

func (s *source) Held() iter.Seq[stint.Held] { return slices.Values(s.held) }

func register(t testing.TB, p *sdk.MeterProvider, s otellimit.Source, opts *otellimit.Options) metric.Registration {
	t.Helper()
	r, err := otellimit.Register(p.Meter("test"), s, opts)
	require.NoError(t, err)
	return r
}

// TestRegister compares each instrument with the Stats that it comes from.
func TestRegister(t *testing.T) {
	provider, reader := newMeter(t)
	s := &source{limits: newLimits(t, names), stats: stint.Stats{
		Limits: map[stint.Name]stint.LimitStats{
			stint.Unknown: {Errors: 3},
			perAddress:    {Allowed: 11, Denied: 12, Errors: 13},
			class:         {Allowed: 9},
		},
		Resident: 20, Dirty: 21, Forward: 22, Backward: 23, Loads: 24, Evictions: 25,
		Flush:  stint.SaveStats{Saves: 1, Buckets: 6, Last: 1500 * time.Millisecond, Longest: 2 * time.Second},
		Commit: stint.SaveStats{Failures: 1, Last: 250 * time.Microsecond, Longest: time.Second},
		File:   stint.FileStats{Format: 1, Bytes: 30, Free: 31, Journal: 32, Journaled: 33},
	}, held: []stint.Held{
		{Key: class.Key(""), HeldUntil: time.Unix(1, 0), Waiting: 2}, {Key: perAddress.Key("a"), Waiting: 3},
		{Key: perAddress.Key("b"), Waiting: 4},
	}}
	register(t, provider, s, nil)
	metrics := collect(t, reader)
	type kind struct {
		unit      string
		monotonic bool
		values    map[string]float64
	}
	none := func(v float64) map[string]float64 { return map[string]float64{"": v} }
	want := map[string]kind{
		"stint.decisions": {"{decision}", true, map[string]float64{
			"stint.decision=allowed,stint.limit=address": 11,
			"stint.decision=denied,stint.limit=address":  12,
			"stint.decision=allowed,stint.limit=class":   9,
			"stint.decision=denied,stint.limit=class":    0,
		}},
		"stint.errors": {"{error}", true, map[string]float64{
			"stint.limit=_OTHER": 3, "stint.limit=address": 13, "stint.limit=class": 0,
		}},
		"stint.buckets.resident": {"{bucket}", false, none(20)},
		"stint.buckets.dirty":    {"{bucket}", false, none(21)},
		"stint.buckets.held": {"{bucket}", false, map[string]float64{
			"stint.limit=address": 0, "stint.limit=class": 1,
		}},
		"stint.requests.waiting": {"{request}", false, map[string]float64{
			"stint.limit=address": 7, "stint.limit=class": 2,
		}},
		"stint.loads":           {"{load}", true, none(24)},
		"stint.evictions":       {"{eviction}", true, none(25)},
		"stint.flushes":         {"{flush}", true, none(1)},
		"stint.flush.failures":  {"{failure}", true, none(0)},
		"stint.flush.buckets":   {"{bucket}", true, none(6)},
		"stint.flush.duration":  {"s", false, none(1.5)},
		"stint.flush.longest":   {"s", false, none(2)},
		"stint.commits":         {"{commit}", true, none(0)},
		"stint.commit.failures": {"{failure}", true, none(1)},
		"stint.commit.buckets":  {"{bucket}", true, none(0)},
		"stint.commit.duration": {"s", false, none(0.00025)},
		"stint.commit.longest":  {"s", false, none(1)},
		"stint.file.size":       {"By", false, none(30)},
		"stint.file.free":       {"By", false, none(31)},
		"stint.journal.size":    {"By", false, none(32)},
		"stint.journal.buckets": {"{bucket}", false, none(33)},
		"stint.clock.steps": {"{step}", true, map[string]float64{
			"stint.clock.direction=forward": 22, "stint.clock.direction=backward": 23,
		}},
		"stint.healthy": {"", false, none(1)},
	}
	got := make(map[string]kind)
	for name, m := range metrics {
		sum, _ := m.Data.(metricdata.Sum[int64])
		got[name] = kind{m.Unit, sum.IsMonotonic, series(t, m)}
		assert.NotEmpty(t, m.Description, name)
	}
	assert.Equal(t, want, got)

	s.health = errors.New("disk full")
	assert.Equal(t, none(0), series(t, collect(t, reader)["stint.healthy"]))
}

// A process has its own requests in flight, also of limits that nobody asks for now.
func TestRegisterInFlight(t *testing.T) {
	provider, reader := newMeter(t)
	lim, err := stint.New(stint.NewMemStore(), newLimits(t, names), nil)
	require.NoError(t, err)
	defer lim.Close()
	register(t, provider, lim, nil)
	seen := func() map[string]float64 {
		return only(series(t, collect(t, reader)["stint.requests.in_flight"]), "address", "login")
	}
	h := httplimit.Middleware(lim, nil, httplimit.Rule{Key: httplimit.ByIP(perAddress), InFlight: 3})(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			assert.Equal(t, map[string]float64{"stint.limit=address": 1, "stint.limit=login": 0}, seen())
		}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	assert.Equal(t, map[string]float64{"stint.limit=address": 0, "stint.limit=login": 0}, seen())
}

// What has never happened has no value: no flush, no commit, no file.
func TestRegisterNothingYet(t *testing.T) {
	provider, reader := newMeter(t)
	lim, err := stint.New(stint.NewMemStore(), newLimits(t, names), nil)
	require.NoError(t, err)
	defer lim.Close()
	register(t, provider, lim, nil)
	metrics := collect(t, reader)
	for _, name := range []string{
		"stint.flush.duration", "stint.commit.duration", "stint.file.size", "stint.file.free",
		"stint.journal.size", "stint.journal.buckets",
	} {
		assert.NotContains(t, metrics, name)
	}
	assert.Len(t, series(t, metrics["stint.decisions"]), 2*len(names))
}

// A counter never falls: that would look like a restart. Labels outlive limits.
func TestRegisterChanges(t *testing.T) {
	provider, reader := newMeter(t)
	s := &source{limits: newLimits(t, names), stats: stint.Stats{Limits: map[stint.Name]stint.LimitStats{
		class: {Allowed: 9}, 99: {Allowed: 1},
	}}}
	register(t, provider, s, nil)
	collect(t, reader)
	s.limits = newLimits(t, stint.Names{perAddress: {Label: "address", Limit: stint.Unlimited}})
	decisions := series(t, collect(t, reader)["stint.decisions"])
	assert.Equal(t, 9., decisions["stint.decision=allowed,stint.limit=class"], "%v", decisions)
	assert.Equal(t, 1., decisions["stint.decision=allowed,stint.limit=99"], "%v", decisions)

	s.limits = newLimits(t, stint.Names{99: {Label: "new", Limit: stint.Unlimited}})
	assert.Equal(t, 1., series(t, collect(t, reader)["stint.decisions"])["stint.decision=allowed,stint.limit=new"])
}

func TestRegisterAttributes(t *testing.T) {
	provider, reader := newMeter(t)
	for i, file := range []string{"a.db", "b.db"} {
		s := &source{limits: newLimits(t, names), stats: stint.Stats{Resident: int64(i + 1),
			Limits: map[stint.Name]stint.LimitStats{logins: {Allowed: int64(i + 1)}}}}
		register(t, provider, s, &otellimit.Options{Attributes: []attribute.KeyValue{attribute.String("file", file)}})
	}
	metrics := collect(t, reader)
	assert.Equal(t, map[string]float64{"file=a.db": 1, "file=b.db": 2}, series(t, metrics["stint.buckets.resident"]))
	assert.Equal(t, 2., series(t, metrics["stint.decisions"])["file=b.db,stint.decision=allowed,stint.limit=login"])
}

func TestUnregister(t *testing.T) {
	provider, reader := newMeter(t)
	r := register(t, provider, &source{limits: newLimits(t, names)}, nil)
	assert.NotEmpty(t, collect(t, reader))
	require.NoError(t, r.Unregister())
	assert.Empty(t, collect(t, reader))
}

// If the process that has the counts does not answer, they are not 0.
func TestRegisterNoAnswer(t *testing.T) {
	provider, reader := newMeter(t)
	s := &source{limits: newLimits(t, names), health: errors.New("no owner"), stats: stint.Stats{Err: errors.New("no owner")}}
	register(t, provider, s, nil)
	metrics := collect(t, reader)
	assert.Len(t, metrics, 1)
	assert.Equal(t, map[string]float64{"": 0}, series(t, metrics["stint.healthy"]))
}

// After Close, the counts stay.
func TestRegisterClosed(t *testing.T) {
	provider, reader := newMeter(t)
	lim, err := stint.Open(filepath.Join(t.TempDir(), "q.db"), newLimits(t, names), nil)
	require.NoError(t, err)
	register(t, provider, lim, nil)
	spend(t, lim, logins.Key("a"), 3)
	require.NoError(t, lim.Close())
	decisions := series(t, collect(t, reader)["stint.decisions"])
	assert.Equal(t, 1., decisions["stint.decision=allowed,stint.limit=login"])
	assert.Equal(t, 2., decisions["stint.decision=denied,stint.limit=login"])
}

// Several readers collect while limits change, decisions go on and the Limiter
// closes. The race detector looks for the rest.
func TestRegisterConcurrent(t *testing.T) {
	failOnSDKErrors(t)
	readers := []*sdk.ManualReader{sdk.NewManualReader(), sdk.NewManualReader()}
	provider := sdk.NewMeterProvider(sdk.WithReader(readers[0]), sdk.WithReader(readers[1]))
	lim, err := stint.Open(filepath.Join(t.TempDir(), "q.db"), newLimits(t, names), nil)
	require.NoError(t, err)
	register(t, provider, lim, nil)
	var all sync.WaitGroup
	for _, reader := range readers {
		all.Go(func() {
			last := 0.
			for range 100 {
				now := series(t, collect(t, reader)["stint.decisions"])["stint.decision=allowed,stint.limit=total"]
				assert.GreaterOrEqual(t, now, last)
				last = now
			}
		})
	}
	all.Go(func() {
		for i := range 500 {
			lim.Spend(class.Key(""), int64(i%2))
			lim.SetLimits(newLimits(t, names))
		}
		assert.NoError(t, lim.Close())
	})
	all.Wait()
}

// Of the processes that share a file, only the owner reports counts.
func TestSharedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.db")
	patient := &hostlimit.Options{TakeoverTimeout: 20 * time.Second}
	owner, err := hostlimit.Open(path, newLimits(t, names), patient)
	require.NoError(t, err)
	guest, err := hostlimit.Open(path, newLimits(t, names), patient)
	require.NoError(t, err)
	defer guest.Close()
	owners, ownersReader := newMeter(t)
	guests, guestsReader := newMeter(t)
	register(t, owners, owner, nil)
	register(t, guests, guest, nil)
	spend(t, owner, perAddress.Key("a"), 2)
	spend(t, guest, perAddress.Key("a"), 2)

	const allowed = "stint.decision=allowed,stint.limit=address"
	assert.Equal(t, 4., series(t, collect(t, ownersReader)["stint.decisions"])[allowed])
	metrics := collect(t, guestsReader)
	assert.Len(t, metrics, 2) // its requests in flight are its own
	assert.Contains(t, metrics, "stint.requests.in_flight")
	assert.Equal(t, map[string]float64{"": 1}, series(t, metrics["stint.healthy"]))

	require.NoError(t, owner.Close())
	spend(t, guest, perAddress.Key("a"), 1) // waits until the guest owns the file
	require.Equal(t, hostlimit.RoleOwner, guest.Role())
	assert.Equal(t, 1., series(t, collect(t, guestsReader)["stint.decisions"])[allowed])
}

// A thousand limits have 2,000 series, one more than the SDK keeps apart by
// default: the rest is in the series for the overflow, and nothing is lost.
func TestCardinality(t *testing.T) {
	many := thousand()
	s := &source{limits: newLimits(t, many), stats: stint.Stats{Limits: make(map[stint.Name]stint.LimitStats)}}
	for name := range many {
		s.stats.Limits[name] = stint.LimitStats{Allowed: 3, Denied: 4}
	}
	for limit, want := range map[int]int{2000: 2000, 4000: 2000, 100: 100} {
		provider, reader := newMeter(t, sdk.WithCardinalityLimit(limit))
		register(t, provider, s, nil)
		for range 3 {
			sum, decisions := 0., series(t, collect(t, reader)["stint.decisions"])
			for _, v := range decisions {
				sum += v
			}
			assert.Len(t, decisions, want)
			assert.Equal(t, 7000., sum)
			assert.Equal(t, limit < 2001, decisions["otel.metric.overflow=true"] > 0)
		}
	}
}

func thousand() stint.Names {
	names := make(stint.Names)
	for i := range stint.Name(1000) {
		names[i+1] = stint.NameSpec{Label: fmt.Sprintf("limit-%03d", i), Limit: stint.PerHour(10)}
	}
	return names
}

type refusing struct{ metric.Meter }

func (refusing) Int64ObservableCounter(
	string, ...metric.Int64ObservableCounterOption,
) (metric.Int64ObservableCounter, error) {
	return nil, errRefused
}

func (refusing) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errRefused
}

var errRefused = errors.New("refused")

func TestMeterErrors(t *testing.T) {
	provider, _ := newMeter(t)
	m := refusing{provider.Meter("test")}
	_, err := otellimit.Register(m, &source{}, nil)
	assert.ErrorIs(t, err, errRefused)
	_, err = otellimit.NewObserver(m)
	assert.ErrorIs(t, err, errRefused)
}
