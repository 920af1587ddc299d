package worlds

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/testlength"
)

// fault makes operations of a faultyStore fail. It begins with an operation of
// its kind, after `first` others that succeed. From then on operations of every
// kind fail, until `lasts` have failed. They fail before they are carried out
// or, if `after` is set, once they are done.
type fault struct {
	mu    sync.Mutex
	kind  string
	first int
	lasts int
	after bool
	met   []string // the operations that failed
}

func (f *fault) inject(op string, done bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if done != f.after {
		return nil
	}
	if len(f.met) == 0 { // the fault has yet to begin
		if op != f.kind {
			return nil
		}
		if f.first--; f.first >= 0 {
			return nil
		}
	}
	if len(f.met) == f.lasts {
		return nil
	}
	f.met = append(f.met, op)
	return errDisk
}

// faultLedger is what was spent for certain, and what may have been, because a
// call failed.
type faultLedger struct {
	t         *testing.T
	admitted  map[stint.Key]int64 // less what was certainly returned
	uncertain map[stint.Key]int64 // that a failed call may have taken
	returned  map[stint.Key]int64 // that a failed refund or reset may have returned
	held      map[stint.Key]bool
	surfaced  int // errors that the caller saw
	context   string
}

func (g *faultLedger) note(err error) bool {
	if err != nil {
		g.surfaced++
	}
	return err == nil
}

// decided notes a decision to spend.
func (g *faultLedger) decided(d stint.Decision, err error, reqs ...stint.Request) {
	ok := g.note(err)
	for _, r := range reqs {
		switch {
		case !ok:
			require.Zero(g.t, d, g.context)
			g.uncertain[r.Key] += r.Cost
		case d.Allowed:
			g.admitted[r.Key] += r.Cost
		}
		require.LessOrEqual(g.t, g.admitted[r.Key], int64(10), "%s: %v admits too many", g.context, r.Key)
	}
}

func (g *faultLedger) spend(l *stint.Limiter, key stint.Key) {
	d, err := l.Spend(key, 3)
	g.decided(d, err, stint.Request{Key: key, Cost: 3})
}

// script makes every call that asks something of the store. It reports whether
// the limiter was closed without an error.
func (g *faultLedger) script(store stint.Store, now func() time.Time) (closed bool) {
	t := g.t
	limits := levelLimits(t, stint.PerDay(10))
	events := make(chan stint.Event, 1000)
	l, err := stint.New(store, limits, &stint.Options{
		Now: now, MaxResident: 8, FlushInterval: time.Hour, CommitTimeout: time.Minute,
		OnEvent: func(e stint.Event) { events <- e },
	})
	if !g.note(err) {
		return false
	}
	for name := inMemory; name <= synced; name++ {
		for i := range 5 {
			g.spend(l, name.Key(fmt.Sprint("id", i)))
		}
	}
	reqs := []stint.Request{{Key: flushed.Key("all"), Cost: 2}, {Key: leased.Key("all"), Cost: 2},
		{Key: synced.Key("all"), Cost: 2}}
	for range 6 {
		d, err := l.SpendAll(reqs...)
		g.decided(d, err, reqs...)
	}
	for name := flushed; name <= synced; name++ {
		key := name.Key("id0")
		if _, err := l.Refund(key.Cost(1).SpentAt(inFuture)); g.note(err) {
			g.admitted[key] = max(0, g.admitted[key]-1)
		} else {
			g.returned[key]++
		}
		key = name.Key("id1")
		if g.note(l.Reset(key)) {
			g.admitted[key], g.uncertain[key] = 0, 0
		} else {
			g.returned[key] += 10
		}
		key = name.Key("held")
		if g.note(errorOf(l.Hold(key, now().Add(time.Hour)))) {
			g.held[key] = true
			d, err := l.Spend(key, 1)
			require.False(t, g.note(err) && d.Allowed, g.context)
		}
	}
	g.note(l.Flush())
	g.note(l.Health())
	g.note(store.Maintain(now())) // as at a tick
	if g.note(l.SetLimits(limits)) {
		for i := range 20 {
			g.spend(l, stint.Name(1+i%5%4).Key("id2"))
		}
	}
	g.note(store.Maintain(now()))
	for name := inMemory; name <= synced; name++ {
		for _, err := range l.Buckets(name) {
			g.note(err)
		}
		g.note(l.Health())
	}
	if l.Stats().File != (stint.FileStats{}) { // it has a file
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

// check requires, of a store that works again, what the levels promise: no
// admitted token is forgotten, and no more are gone than were taken.
func (g *faultLedger) check(store stint.Store, now func() time.Time, closed bool) {
	t := g.t
	l, err := stint.New(store, levelLimits(t, stint.PerDay(10)), &stint.Options{Now: now, FlushInterval: time.Hour, MaxResident: fewResident})
	require.NoError(t, err, g.context)
	for key, admitted := range g.admitted {
		if !closed && key.Name <= flushed {
			continue // a crash may forget it
		}
		d, err := l.Check(key, 0)
		require.NoError(t, err, g.context)
		spent := 10 - d.Remaining
		require.GreaterOrEqual(t, spent, admitted-g.returned[key], "%s: %v: %d were admitted", g.context, key, admitted)
		if closed {
			require.LessOrEqual(t, spent, admitted, "%s: %v", g.context, key)
		} else if key.Name != leased {
			require.LessOrEqual(t, spent, admitted+g.uncertain[key], "%s: %v", g.context, key)
		}
	}
	for key := range g.held {
		d, err := l.Check(key, 1)
		require.NoError(t, err, g.context)
		require.False(t, d.Allowed, "%s: the hold on %v is forgotten", g.context, key)
	}
	require.NoError(t, l.Close(), g.context)
}

// TestFaultSweep fails each operation of a store in turn. The caller sees the
// failure, no request is admitted without a save that it needs, and nothing is
// lost.
func TestFaultSweep(t *testing.T) {
	t.Parallel()
	now := func() time.Time { return damagedStart }
	files, made := Unsynced(), Path(t)
	require.NoError(t, OpenFile(t, made, nil, nil).Close()) // the names are entered by Declare
	stores := map[string]func(t *testing.T) (reopen func() stint.Store){
		"mem": func(*testing.T) func() stint.Store {
			s := stint.NewMemStore()
			return func() stint.Store { return s }
		},
		"file": func(t *testing.T) func() stint.Store {
			path := CopyOf(t, made)
			var s stint.Store
			return func() stint.Store {
				if s != nil {
					path = CopyOf(t, path)
					require.NoError(t, s.Close())
				}
				s = OpenFile(t, path, nil, files)
				return s
			}
		},
	}
	kinds := map[string][]string{"mem": {"load", "save", "all", "close"}}
	kinds["file"] = append([]string{"declare", "maintain", "snapshot"}, kinds["mem"]...)
	for name, open := range stores {
		for _, lasts := range []int{1, 5, 1 << 30} {
			for _, after := range []bool{false, true} {
				if !testlength.Long && after == (name == "file" != (lasts == 5)) {
					continue // half of the cases, with each value of all three
				}
				step := 149
				if testlength.Long {
					step = min(lasts, 4) // each operation fails alone, and one in four for longer
				}
				t.Run(fmt.Sprintf("%s/lasts %d/after %v", name, lasts, after), func(t *testing.T) {
					for _, kind := range kinds[name] {
						first := 0
						for through := false; !through; first += step {
							reopen := open(t)
							f := &fault{kind: kind, first: first, lasts: lasts, after: after}
							s := &faultyStore{reopen(), f.inject}
							g := &faultLedger{
								t: t, admitted: map[stint.Key]int64{}, uncertain: map[stint.Key]int64{}, returned: map[stint.Key]int64{}, held: map[stint.Key]bool{},
								context: fmt.Sprintf("%s %d fails", kind, first),
							}
							closed := g.script(s, now)
							through = len(f.met) == 0
							require.Equal(t, through, g.surfaced == 0, "%s: %v", g.context, f.met)
							require.True(t, !through || closed, g.context)
							g.check(reopen(), now, closed)
							require.Less(t, first, 2000, "it never gets through")
						}
						require.Greater(t, first, step, "%s: there is none", kind)
					}
				})
			}
		}
	}
}
