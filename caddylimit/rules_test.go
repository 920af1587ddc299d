package caddylimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/hostlimit"
	"github.com/stint-go/stint/httplimit"
	"github.com/stint-go/stint/internal/rulestest"
)

// door is a chain of Handlers as a door of rulestest. A zone has no cost, no
// Settle and no bucket for all requests. A handler that fails returns an error,
// as Caddy's do.
func door(t testing.TB, lim stint.Decider, layers ...[]rulestest.Rule) func(rulestest.Request) bool {
	var do rulestest.Request // of the innermost call
	reached := false
	var chain caddyhttp.Handler = caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		req := do
		req.Handle(r.Context(), nil)
		reached = true
		switch req.Outcome {
		case rulestest.Failed:
			w.WriteHeader(http.StatusUnauthorized)
		case rulestest.Broken:
			return caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream is gone"))
		}
		return nil
	})
	for i := len(layers) - 1; i >= 0; i-- {
		app := &App{metrics: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"zone", "result"})}
		app.init()
		app.setStarted()
		h := &Handler{app: app, errors: app.metrics.WithLabelValues("", "error")}
		var rules []httplimit.Rule
		for _, ru := range layers[i] {
			spec, _ := lim.Limits().Spec(ru.Name)
			if ru.Cost > 1 || ru.Free || ru.Settle || spec.IDs == stint.Single {
				return nil
			}
			z := &Zone{Name: spec.Label, number: ru.Name, Key: "{http.request.header.X-Id}", LockOut: caddy.Duration(ru.LockOut),
				Optional: ru.Optional, Shadow: ru.Shadow, Leave: ru.Leave, InFlight: ru.InFlight}
			if ru.Count {
				z.CountStatus = []int{http.StatusUnauthorized}
			}
			if ru.Refund {
				z.RefundStatus = []int{http.StatusBadGateway}
			}
			z.counters(app.metrics)
			h.Zones, rules = append(h.Zones, z), append(rules, z.rule())
		}
		h.limit(lim, rules)
		inner := chain
		chain = caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return h.ServeHTTP(w, r, inner) })
	}
	return func(req rulestest.Request) bool {
		do, reached = req, false
		r := httptest.NewRequest("GET", "/", nil)
		if req.ID != "" {
			r.Header.Set("X-Id", req.ID)
		}
		w := httptest.NewRecorder()
		err := chain.ServeHTTP(w, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, nil))
		require.True(t, err == nil || w.Code == http.StatusOK, "Caddy writes the status of an error: %v", err)
		return reached
	}
}

// TestRules runs the zones with every kind of limit.
func TestRules(t *testing.T) {
	t.Parallel()
	rulestest.Run(t, door, rulestest.Host(hostlimit.RoleOwner))
}

// newApp returns an App of zones with numbers, without a file.
func newApp(zones ...*Zone) *App {
	a := &App{file: &file{zones: stint.Names{}}, zones: map[string]*Zone{}}
	a.init()
	for _, z := range zones {
		a.zones[z.Name], a.all = z, append(a.all, z)
	}
	return a
}

// writePlans writes a file of overrides, and returns its path.
func writePlans(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "plans.yml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// newFile returns a path that is short enough for the socket.
func newFile(t *testing.T) string {
	folder, err := os.MkdirTemp("", "zones")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	return filepath.Join(folder, "q.db")
}

// open opens a file with the Names of another program.
func open(t *testing.T, path string, names stint.Names) *hostlimit.Limiter {
	limits, err := stint.NewLimits(names)
	require.NoError(t, err)
	l, err := hostlimit.Open(path, limits, nil)
	require.NoError(t, err)
	return l
}

// The overrides of a zone have its durability, those of files too, unless they name
// another one.
func TestDurabilityOfOverrides(t *testing.T) {
	plans := writePlans(t, `
- api: {burst: 10, count: 10, period: 1h, ids: [ada]}
- api: {quota: 10, resets: monthly, ids: [cy]}
- api: {burst: 10, count: 10, period: 1h, durability: memory, ids: [dee]}
- api: {unlimited: true, ids: [eve]}
- api: {blocked: true, ids: [fay]}
`)
	z := &Zone{Name: "api", number: 1, Limit: "5/1h", Overrides: map[string]string{"bob": "10/1h"}, OverrideFiles: []string{plans}}
	a := newApp(z)
	for durability, level := range map[string]stint.Durability{"": 0, "leased": stint.Leased} {
		z.Durability = durability
		limits, err := a.build(false)
		require.NoError(t, err)
		got := make(map[string]stint.Durability)
		for o := range limits.Overrides(1) {
			got[o.Key.ID] = o.Limit.Durability
		}
		require.Equal(t, map[string]stint.Durability{"bob": level, "ada": level, "cy": level, "dee": stint.Memory, "eve": 0, "fay": 0}, got)
	}
}

// The id of an address is that of httplimit.ByIP. Overrides may name its network.
func TestCanonical(t *testing.T) {
	for _, tc := range []struct {
		v4, v6    int
		key, want string
	}{
		{32, 64, "203.0.113.9", "203.0.113.9"},
		{32, 64, "::ffff:203.0.113.9", "203.0.113.9"},
		{32, 64, "64:ff9b::cb00:7109", "203.0.113.9"},
		{32, 64, "2001:db8::1", "2001:db8::/64"},
		{32, 64, "2001:DB8::1/64", "2001:db8::/64"},
		{32, 64, "203.0.113.9/24", "203.0.113.9/24"}, // no network of clients
		{24, 56, "203.0.113.9", "203.0.113.0/24"},
		{24, 56, "64:ff9b::cb00:7109", "203.0.113.0/24"},
		{24, 56, "203.0.113.9/24", "203.0.113.0/24"},
		{24, 56, "2001:db8:0:1ff::1", "2001:db8:0:100::/56"},
		{24, 56, "2001:db8::/64", "2001:db8::/64"},
		{24, 56, "ada.b", "ada.b"},
	} {
		z := &Zone{number: 1, IPv4Prefix: tc.v4, IPv6Prefix: tc.v6}
		require.Equal(t, tc.want, z.canonical(tc.key), "%+v", tc)
	}
}

// Two spellings of one key are one override, so they must not have two limits.
func TestOverrideTwice(t *testing.T) {
	z := &Zone{Name: "api", number: 1, Limit: "5/1h", IPv4Prefix: 32, IPv6Prefix: 64}
	a := newApp(z)
	z.Overrides = map[string]string{"2001:db8::1": "10/1h", "2001:db8::/64": "blocked"}
	_, err := a.build(false)
	require.EqualError(t, err, "zone api: 2001:db8::/64 has two overrides")

	plans := writePlans(t, `
- api: {blocked: true, ids: ["2001:db8::2"]}
- api: {unlimited: true, ids: ["2001:DB8::1"]}
`)
	z.Overrides, z.OverrideFiles = nil, []string{plans}
	_, err = a.build(false)
	require.EqualError(t, err, "zone api: "+plans+": 2001:db8::/64 has two overrides")

	z.Overrides = map[string]string{"2001:db8::/64": "10/1h"} // comes before those of a file
	z.OverrideFiles = []string{writePlans(t, `[api: {blocked: true, ids: ["2001:db8::2"]}]`)}
	limits, err := a.build(false)
	require.NoError(t, err)
	limit := limits.For(stint.Name(1).Key("2001:db8::/64"))
	require.Equal(t, stint.PerHour(10), limit)
}

// A zone that the next configuration does not have keeps its limit and all of its
// overrides: requests that have begun are decided under them.
func TestZoneThatGoes(t *testing.T) {
	plans := writePlans(t, "- api: {blocked: true, ids: [ada]}\n")
	api := &Zone{Name: "api", number: 1, Limit: "5/1h", Overrides: map[string]string{"bob": "10/1h"}, OverrideFiles: []string{plans}}
	before, after := newApp(api), newApp(&Zone{Name: "all", number: 2, Limit: "1/1h"})
	var err error
	before.limits, err = before.build(false)
	require.NoError(t, err)
	after.file.inForce = before
	require.NoError(t, os.Remove(plans))

	limits, err := after.build(false)
	require.NoError(t, err)
	for id, want := range map[string]stint.Limit{"ada": stint.Blocked, "bob": stint.PerHour(10), "cy": stint.PerHour(5)} {
		limit := limits.For(stint.Name(1).Key(id))
		require.Equal(t, want, limit, id)
	}
}

// A reload that fails cuts no bucket down: a zone keeps its limit until a request
// comes to the new configuration, or the earlier one is stopped. Then the new limit
// is in force.
func TestLimitsInForce(t *testing.T) {
	path := newFile(t)
	config := func(limit string) *App {
		z := &Zone{Name: "api", Limit: limit}
		a := &App{path: path, zones: map[string]*Zone{z.Name: z}, all: []*Zone{z}}
		a.init()
		require.NoError(t, a.Start())
		return a
	}
	end := func(a *App) {
		t.Helper()
		require.NoError(t, a.Stop())
		require.NoError(t, a.Cleanup())
	}
	running := config("100/100h")
	require.NoError(t, running.wait(t.Context()))
	lim, key := running.file.limiter, running.all[0].number.Key("ada")
	requires := func(limit string, spent int64) {
		t.Helper()
		d, err := lim.Spend(key, spent)
		require.NoError(t, err)
		require.Equal(t, limit, d.Limit.String())
	}
	requires("100/100h", 90)
	failing := config("1/1s")
	requires("100/100h", 0)
	end(failing)
	require.Error(t, failing.wait(t.Context()))
	d, err := lim.Check(key, 0)
	require.NoError(t, err)
	require.EqualValues(t, 10, d.Remaining, "nothing came back")

	reached := config("200/200h") // a request comes before the running one is stopped
	require.NoError(t, reached.wait(t.Context()))
	requires("200/200h", 1)
	end(running)
	requires("200/200h", 1)
	again := config("300/300h")
	require.NoError(t, again.wait(t.Context()))
	end(again) // it fails after all
	requires("200/200h", 1)
	quiet := config("400/400h") // no request comes
	requires("200/200h", 1)
	end(reached)
	requires("400/400h", 1)
	require.NoError(t, quiet.wait(t.Context()))

	// An attempt that has failed holds only its own configuration up.
	unlike := config("450/450h")
	unlike.limits, err = stint.NewLimits(stint.Names{unlike.all[0].number: {Label: "of another zone", Limit: stint.PerHour(1)}})
	require.NoError(t, err)
	require.NoError(t, unlike.wait(t.Context()))
	requires("400/400h", 1)
	end(unlike)
	next := config("460/460h")
	require.NoError(t, next.wait(t.Context()))
	requires("460/460h", 1)
	end(quiet)

	last := config("500/500h") // the file fails before a request comes
	require.NoError(t, lim.Close())
	for range 2 {
		require.NoError(t, last.wait(t.Context()), "the rules say what becomes of the request")
		require.Same(t, last, last.file.next)
	}
	require.ErrorIs(t, next.Stop(), stint.ErrClosed)
	require.NoError(t, next.Cleanup())
	end(last)
}

// Zones keep their numbers in the file, even if the process that has it, such as
// stint serve, does not declare them.
func TestNumbersBehindAnotherOwner(t *testing.T) {
	path, free := newFile(t), stint.Unlimited
	require.NoError(t, open(t, path, stint.Names{1: {Label: "a", Limit: free}, 2: {Label: "b", Limit: free}}).Close())
	owner := open(t, path, stint.Names{3: {Label: "CL.THROTTLE", Limit: free}})
	defer owner.Close()
	f, err := openFile(path)
	require.NoError(t, err)
	defer f.close()
	number := func(zone string, want stint.Name) {
		t.Helper()
		n, err := f.numberLocked(zone)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	number("b", 2)
	number("c", 4)

	// Later another process takes the next number, and sees a zone first.
	names := owner.Limits().Names()
	names[5], names[6] = stint.NameSpec{Label: "d", Limit: free}, stint.NameSpec{Label: "e", Limit: free}
	limits, err := stint.NewLimits(names)
	require.NoError(t, err)
	require.NoError(t, owner.SetLimits(limits))
	number("e", 6)
	number("f", 7)
	number("a", 1)
}

// Caddy shares a file with a program whose Names have one bucket, or
// are not those of its zones, whichever of them has the file.
func TestFileOfAnotherProgram(t *testing.T) {
	program := stint.Names{
		1: {Label: "Total", IDs: stint.Single, Limit: stint.PerHour(5)},
		2: {Label: "Tenants", IDs: stint.Single, Limit: stint.PerHour(6)},
		3: {Label: "Others", Limit: stint.Unlimited},
		4: {Label: "PerTenant", Limit: stint.PerHour(4)},
	}
	for name, caddyFirst := range map[string]bool{"Caddy has the file": true, "the program has the file": false} {
		t.Run(name, func(t *testing.T) {
			path := newFile(t)
			l := open(t, path, program)
			if caddyFirst { // the file has the labels of the program
				require.NoError(t, l.Close())
			}
			logins := &Zone{Name: "logins", Limit: "1/1h"}
			a := newApp(logins)
			a.path = path
			require.NoError(t, a.Start())
			defer a.file.close()
			if caddyFirst {
				l = open(t, path, program)
			}
			defer l.Close()
			require.Equal(t, stint.Name(5), logins.number)
			for _, want := range []bool{true, false} {
				d, err := a.file.limiter.Spend(stint.Name(5).Key("ada"), 1)
				require.NoError(t, err)
				require.Equal(t, want, d.Allowed)
			}
			d, err := l.Spend(stint.Name(1).Key(""), 5)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			require.False(t, l.Allow(stint.Name(1).Key("")))

			if caddyFirst {
				return
			}
			clash := &Zone{Name: "Total", Limit: "1/1h"}
			b := newApp(clash)
			b.path = path
			err = b.Start()
			defer b.file.close()
			require.Equal(t, stint.Name(1), clash.number)
			require.ErrorIs(t, err, stint.ErrNameMismatch)
		})
	}
}

// An overdue save that fails is no good news.
func TestLogEvent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, caddy.Load(fmt.Appendf(nil, `{"admin": {"disabled": true, "config": {"persist": false}},
		"logging": {"logs": {"default": {"writer": {"output": "file", "filename": %q}, "encoder": {"format": "json"}}}}}`,
		path), true))
	t.Cleanup(func() { require.NoError(t, caddy.Stop()) })
	f := &file{path: "limits.db"}
	f.logEvent(stint.Event{Kind: stint.SaveEnded, Err: errors.New("no space left on device")})
	f.logEvent(stint.Event{Kind: stint.SaveEnded})
	f.logEvent(stint.Event{Kind: stint.FlushFailed, Err: errors.New("no space left on device")})
	f.logEvent(stint.Event{Kind: stint.FlushRecovered})
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var got []string
	for text := range strings.Lines(string(data)) {
		var line struct{ Level, Logger, Event string }
		require.NoError(t, json.Unmarshal([]byte(text), &line))
		if line.Logger == "stint" {
			got = append(got, line.Level+": "+line.Event)
		}
	}
	require.Equal(t, []string{
		"error: overdue save ended", "info: overdue save ended", "error: flush failed", "info: flush recovered",
	}, got)
}

// A configuration that fails before the file has a path is an error, after which
// Caddy calls Cleanup. The path is relative to a folder that is gone.
func TestNoFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "gone")
	require.NoError(t, os.Mkdir(folder, 0o700))
	t.Chdir(folder)
	require.NoError(t, os.Remove(folder))
	app, err := json.Marshal(App{File: "limits.db"})
	require.NoError(t, err)
	err = caddy.Validate(&caddy.Config{AppsRaw: caddy.ModuleMap{"stint": app}})
	require.ErrorContains(t, err, "getwd")
}

// A request that found its configuration prepared passes, even if a later
// configuration has replaced it since.
func TestReplacedWhileRequestWaits(t *testing.T) {
	a := &App{file: &file{}}
	a.init()
	a.setStarted()
	a.file.inForce = &App{}
	require.NoError(t, a.enforce())

	never := &App{file: a.file}
	never.init()
	require.Error(t, never.enforce())
}

// A configuration in JSON is not read by the Caddyfile, which has bounds of its own.
func TestPrefixBounds(t *testing.T) {
	for _, c := range []struct {
		v4, v6 int
		want   string
	}{{32, 64, ""}, {1, 128, ""}, {33, 64, "ipv4_prefix is 33"}, {-1, 64, "ipv4_prefix is -1"}, {32, 129, "ipv6_prefix is 129"}} {
		z := &Zone{Name: "a", Limit: "1/1h", Key: defaultKey, IPv4Prefix: c.v4, IPv6Prefix: c.v6}
		if err := z.validate(); c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
}
