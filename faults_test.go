package stint

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/boltfile"
)

var errFault = errors.New("the disk is on fire")

// faultStore is a Store one of whose operations fails: the one of its kind with the number fail, before it is carried out or
// after. Those behind it, of every kind, fail too, for as long as the fault lasts.
type faultStore struct {
	Store
	mu    sync.Mutex
	kind  string
	fail  int
	lasts int
	after bool
	met   []string // what failed
}

// fault counts an operation, and says whether it is to fail.
func (s *faultStore) fault(kind string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.met) == 0 { // the fault has yet to begin
		if kind != s.kind {
			return false
		}
		if s.fail--; s.fail >= 0 {
			return false
		}
	}
	if len(s.met) == s.lasts {
		return false
	}
	s.met = append(s.met, kind)
	return true
}

func (s *faultStore) failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.met)
}

// run carries out an operation, unless it is to fail before that.
func (s *faultStore) run(kind string, do func() error) error {
	fault := s.fault(kind)
	if fault && !s.after {
		return errFault
	}
	if err := do(); err != nil || !fault {
		return err
	}
	return errFault
}

func (s *faultStore) Load(key Key) (tat int64, err error) {
	err = s.run("load", func() (err error) {
		tat, err = s.Store.Load(key)
		return err
	})
	if err != nil {
		return 0, err
	}
	return tat, nil
}

func (s *faultStore) Save(changes []Change) error {
	return s.run("save", func() error { return s.Store.Save(changes) })
}

func (s *faultStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		fault := s.fault("all")
		if !fault || s.after {
			for c, err := range s.Store.All(name) {
				if !yield(c, err) {
					return
				}
			}
		}
		if fault {
			yield(Change{}, errFault)
		}
	}
}

func (s *faultStore) Close() error { return s.run("close", s.Store.Close) }

func (s *faultStore) Declare(names Names) error {
	return s.run("declare", func() error { return s.Store.Declare(names) })
}

func (s *faultStore) Maintain(now time.Time) error {
	return s.run("maintain", func() error { return s.Store.Maintain(now) })
}

func (s *faultStore) Snapshot(w io.Writer) (n int64, err error) {
	err = s.run("snapshot", func() (err error) {
		n, err = s.Store.Snapshot(w)
		return err
	})
	return n, err
}

var faultNames = Names{1: {Label: "memory"}, 2: {Label: "flushed"}, 3: {Label: "leased"}, 4: {Label: "synced"}}

func faultLimits(t testing.TB, burst int64) *Limits {
	defaults := make(map[Name]Limit)
	for name := Name(1); name <= 4; name++ {
		defaults[name] = Limit{Burst: burst, Count: burst, Period: 24 * time.Hour, Durability: Durability(name)}
	}
	return limitsOf(t, faultNames, defaults)
}

// faultLedger is what was spent for certain, and what may have been: of an operation that failed, both ends.
type faultLedger struct {
	t         *testing.T
	admitted  map[Key]int64 // allowed, less what was given back for certain
	uncertain map[Key]int64 // that a failed call may have taken
	returned  map[Key]int64 // that a failed refund or reset may have given back
	held      map[Key]bool
	surfaced  int
	context   string
}

func (g *faultLedger) note(err error) bool {
	if err != nil {
		g.surfaced++
	}
	return err == nil
}

func (g *faultLedger) spend(l *Limiter, key Key, cost int64) {
	d, err := l.Spend(key, cost)
	if !g.note(err) {
		require.Zero(g.t, d, g.context)
		g.uncertain[key] += cost
	} else if d.Allowed {
		g.admitted[key] += cost
	}
	require.LessOrEqual(g.t, g.admitted[key], int64(10), "%s: %v admits too many", g.context, key)
}

// script is a life of a limiter, with everything that asks something of the store. It returns whether the limiter was closed
// without an error.
func (g *faultLedger) script(store Store, now func() time.Time) (closed bool) {
	t := g.t
	events := make(chan Event, 1000)
	l, err := New(store, faultLimits(t, 10), &Options{Now: now, MaxResident: 8, FlushInterval: time.Hour, CommitTimeout: time.Minute,
		OnEvent: func(e Event) { events <- e }})
	if !g.note(err) {
		return false
	}
	health := func() { g.note(l.Health()) }
	for name := Name(1); name <= 4; name++ {
		for i := range 5 {
			g.spend(l, name.Key(fmt.Sprint("id", i)), 3)
		}
	}
	reqs := []Request{{Key: Name(2).Key("all")}, {Key: Name(3).Key("all")}, {Key: Name(4).Key("all")}}
	for i := range reqs {
		reqs[i].Cost = 2
	}
	for range 6 {
		d, err := l.SpendAll(reqs...)
		for _, r := range reqs {
			if err != nil {
				g.uncertain[r.Key] += r.Cost
			} else if d.Allowed {
				g.admitted[r.Key] += r.Cost
			}
			require.LessOrEqual(t, g.admitted[r.Key], int64(10), g.context)
		}
		g.note(err)
	}
	for name := Name(2); name <= 4; name++ {
		if key := name.Key("id0"); true {
			if _, err := l.Refund(key, 1); g.note(err) {
				g.admitted[key] = max(0, g.admitted[key]-1)
			} else {
				g.returned[key]++
			}
		}
		if key := name.Key("id1"); true {
			if g.note(l.Reset(key)) {
				g.admitted[key], g.uncertain[key] = 0, 0
			} else {
				g.returned[key] += 10
			}
		}
		if key := name.Key("held"); g.note(l.Hold(key, now().Add(time.Hour))) {
			g.held[key] = true
			d, err := l.Spend(key, 1)
			require.False(t, g.note(err) && d.Allowed, g.context)
		}
	}
	sweep := func() {
		g.note(store.Maintain(now())) // as at a tick
	}
	g.note(l.Flush())
	health()
	sweep()
	if g.note(l.SetLimits(faultLimits(t, 10))) {
		for range 4 {
			for i := range 5 {
				g.spend(l, Name(1+i%4).Key("id2"), 3)
			}
		}
	}
	sweep()
	for name := Name(1); name <= 4; name++ {
		for _, err := range l.Buckets(name) {
			g.note(err)
		}
		health()
	}
	if store.Stats() != (FileStats{}) { // it has a file
		_, err := l.Snapshot(io.Discard)
		g.note(err)
	}
	st := l.Stats()
	var errs int64
	for _, s := range st.Limits {
		errs += s.Errors
	}
	require.LessOrEqual(t, st.Resident, int64(8+2), g.context) // a SpendAll brings in three at once
	if st.Flush.Failures+st.Commit.Failures+errs > 0 {
		g.surfaced++
	}
	return g.note(l.Close())
}

// check requires of a limiter on a store that works again that nothing is lost that was admitted, but what its level allows.
func (g *faultLedger) check(store Store, now func() time.Time, closed bool) {
	t := g.t
	l, err := New(store, faultLimits(t, 10), &Options{Now: now, FlushInterval: time.Hour})
	require.NoError(t, err, g.context)
	for key, admitted := range g.admitted {
		if !closed && key.Name <= 2 {
			continue // what a crash may forget
		}
		d, err := l.Check(key, 0)
		require.NoError(t, err, g.context)
		spent := 10 - d.Remaining
		require.GreaterOrEqual(t, spent, admitted-g.returned[key], "%s: %v: %d were admitted", g.context, key, admitted)
		if closed {
			require.LessOrEqual(t, spent, admitted, "%s: %v: more is gone than was taken", g.context, key)
		} else if key.Name != 3 {
			require.LessOrEqual(t, spent, admitted+g.uncertain[key], "%s: %v: more is gone than was taken", g.context, key)
		}
	}
	for key := range g.held {
		d, err := l.Check(key, 1)
		require.NoError(t, err, g.context)
		require.False(t, d.Allowed, "%s: the hold on %v is forgotten", g.context, key)
	}
	require.NoError(t, l.Close(), g.context)
}

// Whatever call to the store fails, that it did is told, nothing passes that the store did not take where it had to, and
// nothing is lost.
func TestFaultSweep(t *testing.T) {
	now := func() time.Time { return damagedStart }
	files := boltfile.OS() // no power is cut: syncs only take time
	files.SyncFile, files.SyncDir, files.NoSync = func(*os.File) error { return nil }, func(string) error { return nil }, true
	made := storePath(t)
	require.NoError(t, openBolt(t, made, nil).Close()) // the names are entered by Declare
	stores := map[string]func(t *testing.T) func() Store{
		"mem": func(*testing.T) func() Store {
			s := NewMemStore()
			return func() Store { return s }
		},
		"bbolt": func(t *testing.T) func() Store {
			path := copyOf(t, made)
			var s *BoltStore
			return func() Store {
				if s != nil {
					path = copyOf(t, path)
					require.NoError(t, s.Close())
				}
				s = openBoltOn(t, path, nil, files)
				return s
			}
		},
	}
	step := 1
	if raceEnabled { // which is slow, and looks for something else
		step = 7
	}
	kinds := map[string][]string{"mem": {"load", "save", "all", "close"}}
	kinds["bbolt"] = append([]string{"declare", "maintain", "snapshot"}, kinds["mem"]...)
	for name, open := range stores {
		for _, lasts := range []int{1, 5, 1 << 30} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/lasts %d/after %v", name, lasts, after), func(t *testing.T) {
					for _, kind := range kinds[name] {
						fail := 0
						for through := false; !through; fail += step {
							reopen := open(t)
							s := &faultStore{Store: reopen(), kind: kind, fail: fail, lasts: lasts, after: after}
							g := &faultLedger{t: t, admitted: map[Key]int64{}, uncertain: map[Key]int64{}, returned: map[Key]int64{}, held: map[Key]bool{},
								context: fmt.Sprintf("%s %d fails", kind, fail)}
							closed := g.script(s, now)
							if s.failures() > 0 {
								require.Positive(t, g.surfaced, "%s, and nobody was told: %v", g.context, s.met)
							}
							through = s.failures() == 0
							require.True(t, !through || closed && g.surfaced == 0, g.context)
							g.check(reopen(), now, closed)
							if fail > 2000 {
								t.Fatal("it never gets through")
							}
						}
						require.Greater(t, fail, step, "%s: there is none", kind)
					}
				})
			}
		}
	}
}

// A full disk: flushes fail, Health says so, decisions go on from memory; once there is room again all is saved.
func TestDiskFull(t *testing.T) {
	path := storePath(t)
	store, err := OpenBolt(path, faultNames, nil)
	require.NoError(t, err)
	require.NoError(t, store.Close())
	info, err := os.Stat(path)
	require.NoError(t, err)
	files := boltfile.OS()
	files.MaxSize = int(info.Size())
	store = openBoltOn(t, path, faultNames, files)
	events := make(chan Event, 100)
	now := func() time.Time { return damagedStart }
	l, err := New(store, faultLimits(t, 10), &Options{Now: now, FlushInterval: time.Hour, OnEvent: func(e Event) { events <- e }})
	require.NoError(t, err)

	const n = 60_000
	key := func(i int) Key { return Name(2).Key(fmt.Sprintf("client-%06d", i)) }
	for i := range n {
		d, err := l.Spend(key(i), 7)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	require.Error(t, l.Flush())
	require.Error(t, l.Health())
	require.Equal(t, FlushFailed, (<-events).Kind)
	require.Positive(t, l.Stats().Flush.Failures)
	require.EqualValues(t, n, l.Stats().Dirty)
	for i := range n {
		d, err := l.Spend(key(i), 7)
		require.NoError(t, err)
		require.False(t, d.Allowed, "decisions go on, exactly")
	}
	d, err := l.Spend(Name(4).Key("synced"), 1)
	if err != nil { // there may be room for this one
		require.ErrorIs(t, err, ErrNotDurable)
		require.Zero(t, d)
	}
	require.Error(t, l.Flush())

	files.MaxSize = 0
	require.NoError(t, l.Flush())
	require.NoError(t, l.Health())
	require.Equal(t, FlushRecovered, (<-events).Kind)
	path = copyOf(t, path)
	require.NoError(t, l.Close())

	l, err = Open(path, faultLimits(t, 10), &Options{Now: now})
	require.NoError(t, err)
	for i := range n {
		d, err := l.Check(key(i), 0)
		require.NoError(t, err)
		require.EqualValues(t, 3, d.Remaining)
	}
	require.NoError(t, l.Close())
}

// Where nothing can be saved, and memory is full, new buckets are refused and old ones are not forgotten.
func TestFullOfUnsaved(t *testing.T) {
	now := func() time.Time { return damagedStart }
	l, err := New(&saveFails{NewMemStore()}, faultLimits(t, 10), &Options{Now: now, MaxResident: 8, FlushInterval: time.Hour})
	require.NoError(t, err)
	for i := range 8 {
		d, err := l.Spend(Name(2).Key(fmt.Sprint(i)), 10)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	d, err := l.Spend(Name(2).Key("one more"), 1)
	require.ErrorIs(t, err, ErrFull)
	require.ErrorIs(t, err, errFault)
	require.Zero(t, d)
	for i := range 8 {
		d, err := l.Spend(Name(2).Key(fmt.Sprint(i)), 1)
		require.NoError(t, err)
		require.False(t, d.Allowed)
	}
	require.ErrorIs(t, l.Health(), errFault)
	require.ErrorIs(t, l.Close(), errFault)
}

// saveFails is a Store that reads, and saves nothing.
type saveFails struct{ Store }

func (s *saveFails) Save([]Change) error { return errFault }
