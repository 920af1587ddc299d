package hostlimit

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

const (
	perID  stint.Name = 1
	shared stint.Name = 2
	free   stint.Name = 3
)

var testNames = stint.Names{
	perID:  {Label: "PerID", Limit: stint.PerHour(100)},
	shared: {Label: "Shared", IDs: stint.Single, Limit: stint.PerHour(10)},
	free:   {Label: "Free", Limit: stint.Unlimited},
}

// limitsWith returns the limits of testNames, with other defaults.
func limitsWith(t testing.TB, defaults map[stint.Name]stint.Limit) *stint.Limits {
	t.Helper()
	return newLimits(t, testNames.WithLimits(defaults))
}

// newLimits returns limits of Names and overrides.
func newLimits(t testing.TB, names stint.Names, overrides ...stint.Override) *stint.Limits {
	t.Helper()
	limits, err := stint.NewLimits(names, overrides...)
	require.NoError(t, err)
	return limits
}

func filePath(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "hostlimit")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	return filepath.Join(folder, "quota.db")
}

// patient returns options with a TakeoverTimeout that lasts on a busy machine, unless
// they have one.
func patient(opts *Options) *Options {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.TakeoverTimeout = cmp.Or(o.TakeoverTimeout, 20*time.Second)
	return &o
}

// openOn returns a Limiter of the file with patient options, and closes it at the end
// of the test.
func openOn(t testing.TB, path string, limits *stint.Limits, opts *Options) *Limiter {
	t.Helper()
	o := patient(opts)
	if o.LimiterOptions.MaxResident == 0 {
		o.LimiterOptions.MaxResident = 1000 // shards for a million take most of the memory
	}
	l, err := Open(path, limits, o)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// openAlone opens the file without guests, until the end of the test.
func openAlone(t testing.TB, path string, limits *stint.Limits, opts *stint.Options) *stint.Limiter {
	t.Helper()
	l, err := stint.Open(path, limits, opts)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// inMemory returns a Limiter of the store, until the end of the test.
func inMemory(t testing.TB, store stint.Store, limits *stint.Limits, opts *stint.Options) *stint.Limiter {
	t.Helper()
	l, err := stint.New(store, limits, opts)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// serveOn serves guests until the end of the test.
func serveOn(t testing.TB, l *stint.Limiter, path string) *Server {
	t.Helper()
	s, err := Serve(l, path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// dialOn returns a guest with patient options, until the end of the test.
func dialOn(t testing.TB, path string, names stint.Names, opts *Options) *Limiter {
	t.Helper()
	g, err := Dial(path, names, patient(opts))
	require.NoError(t, err)
	t.Cleanup(func() { g.Close() })
	return g
}

// spend returns the Decision on a spend that has no error.
func spend(t testing.TB, l vocabulary, key stint.Key, cost int64) stint.Decision {
	t.Helper()
	d, err := l.Spend(key, cost)
	require.NoError(t, err)
	return d
}

// check returns what Check does at a cost of 0.
func check(t testing.TB, l vocabulary, key stint.Key) stint.Decision {
	t.Helper()
	d, err := l.Check(key, 0)
	require.NoError(t, err)
	return d
}

// bucket returns what Bucket does.
func bucket(t testing.TB, l vocabulary, key stint.Key) stint.Bucket {
	t.Helper()
	b, err := l.Bucket(key)
	require.NoError(t, err)
	return b
}

// reserve returns what Reserve does.
func reserve(t testing.TB, l vocabulary, req stint.Request) stint.Reservation {
	t.Helper()
	p, err := l.Reserve(req)
	require.NoError(t, err)
	return p
}

// placeFor returns the place of a file.
func placeFor(t testing.TB, path string) place {
	t.Helper()
	p, err := placeOf(path)
	require.NoError(t, err)
	return p
}

// recorder keeps events.
type recorder struct {
	mu     sync.Mutex
	events []Event
	came   chan Event
}

func newRecorder() *recorder { return &recorder{came: make(chan Event, 1000)} }

func (r *recorder) record(e Event) {
	r.mu.Lock()
	r.events = append(r.events, e)
	r.mu.Unlock()
	r.came <- e
}

// wait returns the next event of a role, which has an error if something failed.
func (r *recorder) wait(t testing.TB, role Role, failed bool) Event {
	t.Helper()
	for {
		select {
		case e := <-r.came:
			if e.Role == role && (e.Err != nil) == failed {
				return e
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no event of an %v, failed: %v", role, failed)
		}
	}
}

// connsOf returns the connections of an owner.
func connsOf(s *Server) (all []*serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

// errorOf returns the error of a call that has another result, too.
func errorOf(_ any, err error) error { return err }

// withNames returns limits with further Names.
func withNames(limits *stint.Limits, names stint.Names) (*stint.Limits, error) {
	all := limits.Names()
	for name, spec := range names {
		if had, ok := all[name]; ok && had.Label != spec.Label {
			return nil, fmt.Errorf("%w: %v", stint.ErrNameMismatch, name)
		}
		if spec.Limit == (stint.Limit{}) {
			spec.Limit = stint.Unlimited
		}
		all[name] = spec
	}
	return stint.NewLimits(all)
}

// addNames adds Names to the limits of a process.
func addNames(l interface {
	Limits() *stint.Limits
	SetLimits(limits *stint.Limits) error
}, names stint.Names) error {
	limits, err := withNames(l.Limits(), names)
	if err != nil {
		return err
	}
	return l.SetLimits(limits)
}

// guestOn returns what Dial would, with a connection, until the end of the test.
func guestOn(t testing.TB, c *conn) *Limiter {
	o, err := (*Options)(nil).withDefaults()
	require.NoError(t, err)
	limits := newLimits(t, nil)
	g := asking(c, limits, o)
	t.Cleanup(func() { g.Close() })
	return g
}
