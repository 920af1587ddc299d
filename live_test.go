package stint

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limitPerID returns limits with one for perID, overridden for some ids.
func limitPerID(t testing.TB, limit Limit, overrides ...Override) *Limits {
	t.Helper()
	ls, err := NewLimits(testNames, map[Name]Limit{perID: limit}, map[Name][]Override{perID: overrides})
	require.NoError(t, err)
	return ls
}

// New limits, with the buckets in memory, on disk, or met again in another run.
func TestLimitsChange(t *testing.T) {
	tenPerTenDays := Limit{Burst: 10, Count: 10, Period: 240 * time.Hour}
	for _, tc := range []struct {
		what       string
		old, new   Limit
		spent      int64
		after      time.Duration // from the last of those to the change
		remaining  int64
		retryAfter time.Duration
	}{
		{"raised", tenPerTenDays, PerDay(100), 10, 0, 0, 14*time.Minute + 24*time.Second},
		{"raised a little later", tenPerTenDays, PerDay(100), 10, time.Hour, 0, 14*time.Minute + 24*time.Second},
		{"raised when not used up", tenPerTenDays, PerDay(100), 1, 0, 0, 14*time.Minute + 24*time.Second},
		{"lowered", PerDay(100), tenPerTenDays, 100, 0, 9, 0},
		{"lowered, and slower", PerHour(10), tenPerTenDays, 10, 0, 9, 0},
		{"lowered, and as slow", PerHour(10), PerHour(10).WithBurst(5), 10, 0, 0, 6 * time.Minute},
		{"more burst", PerHour(10), PerHour(10).WithBurst(15), 10, 0, 5, 0},
		{"the same", PerHour(10), PerHour(10), 10, time.Minute, 0, 5 * time.Minute},
	} {
		for where, reload := range map[string]func(r *rig, store Store, limits *Limits) *rig{
			"in memory": func(r *rig, _ Store, limits *Limits) *rig {
				require.NoError(t, r.SetLimits(limits))
				return r
			},
			"on disk": func(r *rig, _ Store, limits *Limits) *rig {
				require.NoError(t, r.Flush())
				r.directory.evict(r.clock.ns.Load(), true, func() bool { return true })
				require.Zero(t, r.Stats().Resident)
				require.NoError(t, r.SetLimits(limits))
				return r
			},
			"reopened": func(r *rig, store Store, limits *Limits) *rig {
				require.NoError(t, r.Close())
				clock := r.clock
				r = rigOn(t, store, limits, Options{Now: clock.Now})
				r.clock = clock
				return r
			},
		} {
			store := NewMemStore()
			r := rigOn(t, store, limitPerID(t, tc.old), Options{})
			key := perID.Key("a")
			require.True(t, r.spend(key, tc.spent).Allowed)
			r.clock.advance(tc.after)
			r = reload(r, store, limitPerID(t, tc.new))
			d := r.check(key, 0)
			require.Equal(t, tc.remaining, d.Remaining, "%s, %s", tc.what, where)
			require.Equal(t, tc.new, d.Limit)
			require.LessOrEqual(t, d.ResetAfter, tc.new.Tolerance())
			d = r.check(key, tc.remaining+1)
			want := tc.retryAfter
			if want == 0 {
				want = d.RetryAfter
			}
			require.Equal(t, want, d.RetryAfter, "%s, %s", tc.what, where)
			r.clock.advance(d.RetryAfter)
			require.True(t, r.spend(key, tc.remaining+1).Allowed, "%s, %s", tc.what, where)
			require.False(t, r.spend(key, 1).Allowed, "none is refilled: %s, %s", tc.what, where)
		}
	}
}

func TestLimitRemovedAndRestored(t *testing.T) {
	for _, flush := range []bool{false, true} {
		r := rigOn(t, NewMemStore(), limitPerID(t, PerHour(10)), Options{})
		a, b, c := perID.Key("a"), perID.Key("b"), perID.Key("c")
		for _, key := range []Key{a, b, c} {
			r.spend(key, 10)
		}
		if flush {
			require.NoError(t, r.Flush())
			r.directory.evict(r.clock.ns.Load(), true, func() bool { return true })
		}
		require.NoError(t, r.SetLimits(limitsOf(t, testNames, nil)))
		require.True(t, r.spend(a, 1000).Allowed, "it is off")
		require.True(t, r.refund(a, 1000).Allowed)
		require.True(t, r.spendAll(Request{Key: a, Cost: 3}, Request{Key: b, Cost: 3}).Allowed)
		reserve(t, r.Limiter, a, 3)
		require.NoError(t, r.Reset(c))
		require.NoError(t, r.Flush())
		r.clock.advance(6 * time.Minute)
		require.NoError(t, r.SetLimits(limitPerID(t, PerHour(10))))
		require.EqualValues(t, 1, r.left(a), "what came back meanwhile, and no more")
		require.EqualValues(t, 1, r.left(b))
		require.EqualValues(t, 10, r.left(c), "reset while it was off")
	}
}

func TestOverridesChange(t *testing.T) {
	r := rigOn(t, NewMemStore(), limitPerID(t, PerHour(10)), Options{})
	a, b := perID.Key("a"), perID.Key("b")
	r.spend(a, 10)
	r.spend(b, 10)
	require.NoError(t, r.SetLimits(limitPerID(t, PerHour(10), Override{[]OverrideID{{ID: "a"}}, PerHour(10).WithBurst(20)})))
	require.EqualValues(t, 10, r.left(a))
	require.EqualValues(t, 0, r.left(b))
	require.NoError(t, r.SetLimits(limitPerID(t, PerHour(10), Override{[]OverrideID{{ID: "b"}}, PerHour(10).WithBurst(20)})))
	require.EqualValues(t, 0, r.left(a))
	require.EqualValues(t, 10, r.left(b))
	require.NoError(t, r.SetLimits(limitPerID(t, PerHour(10))))
	require.EqualValues(t, 0, r.left(b))
}

// A listener may call SetLimits at any time: also while Close waits for it.
func TestSetLimitsByAListenerWhileClosing(t *testing.T) {
	limits := faultLimits(t, 10)
	told, goOn := make(chan struct{}), make(chan struct{})
	var l *Limiter
	set := make(chan error, 1)
	l, err := New(&saveFails{NewMemStore()}, limits, &Options{FlushInterval: time.Hour, OnEvent: func(Event) {
		close(told)
		<-goOn
		set <- l.SetLimits(limits)
	}})
	require.NoError(t, err)
	_, err = l.Spend(Name(2).Key("a"), 1)
	require.NoError(t, err)
	require.Error(t, l.Flush())
	<-told
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	<-l.flusher.silent // from here on Close waits for the listener
	close(goOn)
	require.ErrorIs(t, <-set, ErrClosed)
	require.ErrorIs(t, <-closed, errFault)
}

func TestSetLimitsMistakes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buckets.db")
	r := rigOn(t, openBolt(t, path, testNames), testLimits(t), Options{})
	key := perID.Key("a")
	r.spend(key, 5)
	require.EqualError(t, r.SetLimits(nil), "stint: SetLimits: no limits")
	spec := func(label string) NameSpec { return NameSpec{Label: label, Limit: PerHour(1)} }
	for _, names := range []Names{{perID: spec("Other")}, {77: spec("PerID")}, {perID: spec("Renamed"), 78: spec("New")}} {
		limits := limitsOf(t, names, nil)
		require.ErrorIs(t, r.SetLimits(limits), ErrNameMismatch)
		require.False(t, r.spend(key, 1).Allowed, "the old ones are in force")
		_, err := r.Spend(Name(78).Key("a"), 1)
		require.ErrorIs(t, err, ErrUnknownName)
	}

	require.NoError(t, r.SetLimits(limitsOf(t, Names{79: spec("New")}, nil)))
	require.EqualValues(t, 0, r.spend(Name(79).Key("a"), 1).Remaining)
	_, err := r.Spend(key, 1)
	require.ErrorIs(t, err, ErrUnknownName, "no longer declared")
	require.NoError(t, r.SetLimits(testLimits(t)))
	require.False(t, r.spend(key, 1).Allowed, "and declared again")
	require.NoError(t, r.Close())
	require.Equal(t, "New", openBolt(t, path, nil).store.Names()[79])
}
